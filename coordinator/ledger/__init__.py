"""The ledger of a run: all that SQLite keeps of it, written and read here alone."""

LEDGER = "ledger.sqlite"
"""Name of its file, in the run's folder."""
