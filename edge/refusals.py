"""What a device refused, counted by rule; of a flood the log gets few lines."""

from __future__ import annotations

import logging
from collections import Counter

from protofleet.errors import RefusedError

_log = logging.getLogger(__name__)

_SHOWN = 400
"""Characters of a message in the log."""


class Refusals:
    """Messages that broke a rule; the 1st, 2nd, 4th, 8th … of each rule is logged."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @property
    def by_rule(self) -> dict[str, int]:
        """How many, by the broken rule's name."""
        return dict(self._counts)

    def note(self, what: str, error: RefusedError) -> None:
        """Count a refusal.

        Args:
            what: begins the line, such as ``refused a task``.
            error: the rule, and what is wrong.
        """
        self._counts[error.rule] += 1
        count = self._counts[error.rule]
        if count & (count - 1) == 0:
            again = f" (the {count}th of this kind)" if count > 2 else ""
            _log.warning("%s: %s: %s%s", what, error.rule, printable(str(error)), again)


def printable(text: str) -> str:
    """A stranger's text for a terminal: of bounded length, without control characters."""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
