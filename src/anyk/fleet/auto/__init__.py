"""Training that measures, plans, trains and replans by itself."""
