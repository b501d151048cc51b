"""Of rounds."""

from __future__ import annotations

import logging
from typing import ClassVar

from protofleet.coordinator.events.base import CoordinatorEvent
from protofleet.coordinator.events.text import (
    privacy_text,
    round_text,
    safe,
    scores_text,
    since_text,
)
from protofleet.federation.records import RoundRecord
from protofleet.units import byte_text, duration_text


class Waiting(CoordinatorEvent, frozen=True, kw_only=True, tag="waiting"):
    """A round cannot open before more devices are there; told again at growing intervals.

    ``opens_in_s``: nor before so long is over (``round.every_s``).
    """

    round_id: int
    live: int
    needed: int
    waited_s: float
    opens_in_s: float = 0.0

    def _says(self) -> str:
        if self.opens_in_s and self.live >= self.needed:
            return (
                f"round {self.round_id} opens in {duration_text(self.opens_in_s)} (round.every_s); "
                f"devices that are there: {self.live}"
            )
        return (
            f"round {self.round_id} waits for devices: {self.live} of {self.needed} are there"
            f"{since_text(self.waited_s)}"
        )


class RoundOpened(CoordinatorEvent, frozen=True, kw_only=True, tag="round_opened"):
    """A round has begun, or goes on after a restart; ``final``: it is the final fit.

    ``size``: with so many updates it closes, where more are invited than are needed.
    """

    routine: ClassVar[bool] = True

    round_id: int
    final: bool
    cohort: tuple[str, ...]
    delivered: int
    resumed: bool
    deadline_s: float
    size: int

    def _says(self) -> str:
        again = f" again, {self.delivered} updates are in" if self.resumed else ""
        enough = f", {self.size} updates suffice" if self.size < len(self.cohort) else ""
        name = round_text(self.round_id, final=self.final)
        return f"[cyan]{name}[/cyan] open{again}: {len(self.cohort)} devices{enough}"


class RoundExtended(CoordinatorEvent, frozen=True, kw_only=True, tag="round_extended"):
    """The deadline passed below the quorum; the same round goes on."""

    level: ClassVar[int] = logging.WARNING

    round_id: int
    attempt: int
    delivered: int
    needed: int
    missing: tuple[str, ...]
    added: tuple[str, ...]

    def _says(self) -> str:
        added = f"; also invited: {', '.join(self.added)}" if self.added else ""
        return (
            f"[yellow]round {self.round_id}[/yellow] missed its quorum at the deadline: "
            f"{self.delivered} updates, {self.needed} needed, missing {', '.join(self.missing)}"
            f"{added}; extended ({self.attempt})"
        )


class UpdatesLeftOut(CoordinatorEvent, frozen=True, kw_only=True, tag="updates_left_out"):
    """The new state would have left no room for honest updates.

    ``devices``: whose updates it was made without; none: the round's were all ``dropped`` and the
    model stays as it was.
    """

    level: ClassVar[int] = logging.WARNING

    round_id: int
    devices: tuple[str, ...]
    dropped: bool
    reason: str

    def _says(self) -> str:
        without = f"without {', '.join(self.devices)}"
        return (
            f"[yellow]round {self.round_id}: "
            f"{'the model stays as it was' if self.dropped else without}[/yellow]: "
            f"{safe(self.reason)}"
        )


class RoundClosed(
    RoundRecord, CoordinatorEvent, frozen=True, kw_only=True, tag_field="event", tag="round_closed"
):
    """A round is committed. Bytes: what heartbeats have reported so far, or the blobs if more."""

    def _says(self) -> str:
        updates = f"{self.participants} updates"
        if self.trained == 0 < self.participants:
            updates += (
                " ([yellow]none of a device with training examples: nothing was learnt[/yellow])"
            )
        elif self.trained is not None and self.trained < self.participants:
            updates += f" ({self.trained} of devices with examples)"
        return (
            f"[green]{round_text(self.round_id, final=self.final)}[/green] committed in "
            f"{self.seconds:.2f} s: {updates}, {byte_text(self.bytes_up)} up, "
            f"{byte_text(self.bytes_down)} down{scores_text(self.scores)}"
            f"{privacy_text(self.privacy)}"
        )
