"""What a device tells of its data, and when it must tell anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protofleet.strategies import DESCRIPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the presence says of the data.

    Attributes:
        num_examples: training samples.
        class_counts: of each class; empty unless the federation's strategy asks for them.
    """

    num_examples: int
    class_counts: tuple[int, ...] = ()


class Registration:
    """What is told for a strategy and a round: class counts only to who asks for them.

    Args:
        class_counts: of the data of a round.
    """

    def __init__(self, class_counts: Callable[[int], tuple[int, ...]]) -> None:
        self._class_counts = class_counts
        self.told = Told(num_examples=sum(class_counts(1)))

    def update(self, strategy: str, round_id: int) -> bool:
        """Bring ``told`` up to date; whether it changed, so that the presence is due again."""
        before, counts = self.told, self._class_counts(round_id)
        asked = strategy in DESCRIPTIONS and DESCRIPTIONS[strategy].class_counts
        self.told = Told(num_examples=sum(counts), class_counts=counts if asked else ())
        return self.told != before
