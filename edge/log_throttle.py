"""A device's warnings about messages: a flood of them fills no log."""

from __future__ import annotations

import logging
import time

BURST = 10
"""Warnings of one kind that are told at once."""
MINUTE_S = 60.0
"""Then one in this time, which says how many there were."""


class WarningThrottle:
    """Passes warnings on to ``log``; of one kind (one text before its values) few.

    Args:
        log: where to.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: dict[str, int] = {}
        self._withheld: dict[str, int] = {}
        self._next_at: dict[str, float] = {}

    def warning(self, text: str, *values: object) -> None:
        """As of a logger; ``text`` is one of the program's own."""
        now = time.monotonic()
        told = self._told.get(text, 0)
        if told >= BURST and now < self._next_at[text]:
            self._withheld[text] = self._withheld.get(text, 0) + 1
            return
        self._told[text], self._next_at[text] = told + 1, now + MINUTE_S
        more = self._withheld.pop(text, 0)
        if more:
            text, values = f"{text} (and %d more since the last such line)", (*values, more)
        self._log.warning(text, *values)
