"""What a device refused, counted by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from protofleet.errors import RefusedError

_SHOWN = 400
"""Characters of a message in the log."""


class Refusals:
    """Messages that broke a rule.

    Args:
        warn: logs a format and its values; of a flood few.
    """

    def __init__(self, warn: Callable[..., None]) -> None:
        self._counts: Counter[str] = Counter()
        self._warn = warn

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
        text = str(error)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        self._warn(f"{what}: {error.rule}: %s", shown)
