"""A file for each strategy, both halves; two are folders. ``strategies`` finds what is here."""
