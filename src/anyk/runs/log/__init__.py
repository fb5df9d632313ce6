"""The log of a run: its tables, their writer and readers, and results derived from them."""
