"""What an update is worth that was made from an older state than the one that it changes.

Sources: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (arXiv:1903.03934), section
5.2, for the functions and for mixing models; Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and
Huba, "Federated Learning with Buffered Asynchronous Aggregation" (arXiv:2106.06639), algorithm 1,
for buffers of differences.

| symbol | name | meaning |
|---|---|---|
| τ | ``staleness`` | round that an update counts in, less the round of its task |
| s(τ) | ``ScheduleSettings.weight`` | share of the update that counts |
| η_g, α | ``server_lr`` | FedBuff's learning rate of the server, FedAsync's mixing weight |
| Δ | difference | what the client sent, less what it had received |

An update becomes what its client would have sent, had it started from the server's present state w:
w + η_g s(τ) Δ, or w + α s(τ) (its tensors - w) where models are mixed. The strategy then takes the
weighted mean of those, as always. One of the present state with η_g = 1 stays as it is, to the bit.

Deviation: clients of a buffer count by their examples where the strategy says so; in FedBuff alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.federation.client_limits import Admitted, Norms
from protofleet.federation.records import UpdateRecord
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.strategies.types import Update, Updates
from protofleet.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Mixing:
    """How updates of earlier rounds count.

    Attributes:
        settings: of the schedule.
    """

    settings: ScheduleSettings

    def factor(self, staleness: int) -> float:
        """η_g s(τ), or α s(τ)."""
        return self.settings.server_lr * self.settings.weight(staleness)

    def as_it_is(self, staleness: int) -> bool:
        """Whether such an update is aggregated without any change."""
        return staleness == 0 and self.settings.server_lr == 1

    def keeps_difference(self, staleness: int) -> bool:
        """Whether the difference of such an update is kept until its round closes.

        What its client had received may be gone by then.
        """
        return self.settings.mixing == "difference" and not self.as_it_is(staleness)

    def applied(
        self, updates: Updates, admitted: Sequence[Admitted], round_id: int, present: PresentFn
    ) -> tuple[Updates, list[Admitted]]:
        """The updates as if all had been made from the present state, and what was noted of them.

        One device may have two updates in a round, of different tasks: a late one has the round of
        its task behind its client_id, ``pi-7#3``, in both.

        Args:
            updates: as they are kept (``keeps_difference``).
            admitted: the same clients.
            round_id: the closing round.
            present: the tensors by which a client's are replaced.
        """
        told = [_renamed(one, round_id) for one in admitted]
        return _Applied(self, updates, round_id, present), told

    def moved(self, update: Update, staleness: int, present: Tensors) -> dict[str, NDArray[Any]]:
        """An update's tensors as if they had been made from the present state."""
        factor = self.factor(staleness)
        mixes = self.settings.mixing == "model"
        return {
            name: _step(present[name], value, factor, from_present=mixes)
            for name, value in update.tensors.items()
        }


PresentFn = Callable[[str], Tensors]
"""From a client_id, what it would receive now, by the names of its update's tensors."""


def difference(tensors: Tensors, baseline: Tensors) -> dict[str, NDArray[Any]]:
    """Δ of an update to what its client had received; float32, rounded once."""
    return {
        name: np.subtract(value, baseline[name], dtype=np.float64).astype(value.dtype)
        for name, value in tensors.items()
    }


def _step(
    old: NDArray[Any], value: NDArray[Any], factor: float, *, from_present: bool
) -> NDArray[Any]:
    delta = value.astype(np.float64) - old if from_present else value.astype(np.float64)
    stepped: NDArray[Any] = (old + factor * delta).astype(value.dtype)
    return stepped


def late_name(client_id: str, round_id: int) -> str:
    """How a late update of an earlier round's task is told from its client's other one."""
    return f"{client_id}#{round_id}"  # "#" is before all that an id may have, so the order stays


@dataclass(frozen=True, slots=True)
class _Applied:
    """Updates that are moved when they are read."""

    mixing: Mixing
    updates: Updates
    round_id: int
    present: PresentFn

    def __len__(self) -> int:
        return len(self.updates)

    def __iter__(self) -> Iterator[Update]:
        for update in self.updates:
            staleness = self.round_id - update.round_id
            if self.mixing.as_it_is(staleness):
                yield update
                continue
            moved = self.mixing.moved(update, staleness, self.present(update.client_id))
            name = late_name(update.client_id, update.round_id) if staleness else update.client_id
            yield replace(update, client_id=name, tensors=moved)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """What was noted of a late update, under the name that it has beside its client's own."""

    record: UpdateRecord
    norms: Norms


def _renamed(one: Admitted, round_id: int) -> Admitted:
    record = one.record
    if record.round_id == round_id:
        return one
    name = late_name(record.client_id, record.round_id)
    return _Renamed(msgspec.structs.replace(record, client_id=name), one.norms)
