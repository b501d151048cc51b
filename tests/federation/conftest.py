"""The tiny plan, for every test here."""

from tiny_plan import tiny

__all__ = ["tiny"]
