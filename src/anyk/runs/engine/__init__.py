"""The engine of a run: the driver, its ledger, model versions and steps."""
