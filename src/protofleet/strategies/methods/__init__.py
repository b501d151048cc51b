"""A file for each strategy, both halves (two of them are folders)."""
