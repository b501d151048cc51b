"""How large a constant inside a program may be; what is larger lies in the bundle's state, once."""

from __future__ import annotations

MAX_CONSTANT_BYTES = 1 << 16
"""Of numbers: a program that held weights would not be one of any initial values."""
MAX_TABLE_BYTES = 1 << 24
"""Of whole numbers, such as those of rows that are looked up: they belong to the program."""
