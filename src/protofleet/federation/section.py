"""What the sections of a federation file have in common."""

from __future__ import annotations

import msgspec

Amount = int | float
"""A count (an integer, from 1) or a fraction (a float in (0, 1])."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and a misspelt key is an error that names it."""


def check(name: str, good: bool, expected: str, value: object) -> None:  # noqa: FBT001 - the checked condition, always at the call
    """Raise ValueError unless a setting is ``good``."""
    if not good:
        raise ValueError(f"`{name}`: expected {expected}, got {value!r}")


def check_amount(name: str, amount: Amount) -> None:
    """Raise ValueError for what is neither a count nor a fraction."""
    good = 0 < amount <= 1 if isinstance(amount, float) else amount >= 1
    check(name, good, "a count from 1 or a fraction above 0 up to 1.0", amount)
