"""The log of a run: its tables, how they are written and followed, and what is derived from them."""
