"""``[schedule]`` of a federation file: when the server's state moves on, and what is late."""

from __future__ import annotations

from typing import Literal

import msgspec

from protofleet.federation.section import Amount, Section, check, check_amount
from protofleet.wire.messages import MOST_STALENESS


class ScheduleSettings(Section, frozen=True, kw_only=True):
    """``[schedule]``: when the server's state moves on, and what older updates are worth then.

    Sources of the functions and of their defaults: ``staleness.py``. τ is by how many rounds an
    update is late.

    Attributes:
        kind: ``synchronous``: rounds that wait for their cohort; ``buffered``: a new state after so
            many updates, whoever sent them, and tasks of the newest one for all that are free.
        buffer: ``buffered``: updates that make a state.
        concurrency: ``buffered``: how many devices train at once: ``"all"``, a fraction (float) of
            those that are live, or a count (integer).
        late: ``synchronous``: what becomes of an update behind its round: ``drop``; or
            ``weighted``: it counts in the next one, as much as it is still worth.
        staleness: ``constant``: 1; ``polynomial``: (1 + τ)^-``exponent``; ``hinge``: 1 up to
            ``tolerated``, then 1 / (``slope`` (τ - ``tolerated``) + 1).
        exponent, tolerated, slope: numbers in ``staleness``'s formulas.
        max_staleness: largest τ of an update that counts.
        server_lr: how much of the mean of a round's updates becomes the server's.
        mixing: an older update counts as its ``difference`` to what its device had received
            (FedBuff), or as the whole ``model`` that it sent (FedAsync).
    """

    kind: Literal["synchronous", "buffered"] = "synchronous"
    buffer: int | None = None
    concurrency: Literal["all"] | Amount = "all"
    late: Literal["drop", "weighted"] = "drop"
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    exponent: float = 0.5
    tolerated: int = 4
    slope: float = 10.0
    max_staleness: int = 20
    server_lr: float = 1.0
    mixing: Literal["difference", "model"] = "difference"

    def __post_init__(self) -> None:
        self._check_kind()
        check("exponent", 0 <= self.exponent <= 10, "a number from 0 to 10", self.exponent)
        check("slope", 0 < self.slope <= 1e6, "a number above 0 up to 1e6", self.slope)
        check("tolerated", self.tolerated >= 0, "rounds, not negative", self.tolerated)
        most, good = self.max_staleness, 1 <= self.max_staleness <= MOST_STALENESS
        check("max_staleness", good, f"1 to {MOST_STALENESS}", most)
        check("server_lr", 0 < self.server_lr <= 10, "a number above 0 up to 10", self.server_lr)
        if not self.takes_older:
            for name in _OF_OLDER:
                value, default = getattr(self, name), _DEFAULTS[name]
                check(
                    name,
                    value == default,
                    'kind = "buffered" or late = "weighted" beside it',
                    value,
                )

    def _check_kind(self) -> None:
        buffered = self.kind == "buffered"
        if buffered:
            good = self.buffer is not None and self.buffer >= 1
            check("buffer", good, "at least 1 with a buffered schedule", self.buffer)
        else:
            check("buffer", self.buffer is None, 'kind = "buffered" beside it', self.buffer)
        alone = buffered or self.concurrency == "all"
        check("concurrency", alone, 'kind = "buffered" beside it', self.concurrency)
        if self.concurrency != "all":
            check_amount("concurrency", self.concurrency)
        fits = not buffered or self.late == "drop"
        check("late", fits, 'kind = "synchronous" beside it', self.late)

    @property
    def takes_older(self) -> bool:
        """Whether updates of earlier rounds count."""
        return self.kind == "buffered" or self.late == "weighted"

    @property
    def patience(self) -> int:
        """By how many rounds an update may be late."""
        return self.max_staleness if self.takes_older else 0

    def weight(self, staleness: int) -> float:
        """s(τ): 1 for an update of the present state."""
        if self.staleness == "polynomial":
            return float((1 + staleness) ** -self.exponent)
        late = staleness - self.tolerated
        return 1.0 if self.staleness == "constant" or late <= 0 else 1 / (self.slope * late + 1)

    @property
    def identity(self) -> str:
        """What a run's ledger keeps of it."""
        return msgspec.json.encode(self, order="sorted").decode()


_OF_OLDER = ("staleness", "exponent", "tolerated", "slope", "max_staleness", "server_lr", "mixing")
"""Settings that mean something only where updates of earlier rounds count."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(ScheduleSettings)}
