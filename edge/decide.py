"""What a device does with a task: a pure decision, apart from sockets, disks and threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from protofleet.edge.state.journal import Journal
from protofleet.federation.client import RoundConfig
from protofleet.federation.outcomes.alone import LOCAL
from protofleet.federation.records import Sends
from protofleet.strategies.strategy import Strategy
from protofleet.wire.codecs import Codec
from protofleet.wire.messages import Task, TransferOffer


class DevicePhase(Enum):
    """Where a device stands."""

    IDLE = "idle"
    RECEIVE = "receive"
    TRAIN = "train"
    SEND = "send"
    LEAVE = "leave"


class Decision(Enum):
    """What to do with a task."""

    BEGIN = auto()
    """Fetch its payload and train, or leave; nothing else is in progress."""
    REPEAT = auto()
    """It is the one in progress, or the one just delivered: answer its offer again."""
    REPLACE = auto()
    """Nobody waits for the round in progress any more: give it up and begin this task."""
    SETTLE = auto()
    """Begin after the fate of the update in the outbox is known."""
    REFUSE = auto()
    """The device is past this round, or the task lacks a payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProgress:
    """What the decision depends on.

    Attributes:
        phase: where the device stands.
        round_id: the round in progress; 0 if none.
        transfer_id: its payload's transfer.
        last_round_id: the last delivered round; 0 if none.
        last_transfer_id: its payload's transfer.
    """

    phase: DevicePhase
    round_id: int = 0
    transfer_id: str = ""
    last_round_id: int = 0
    last_transfer_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRound:
    """The round in progress, up to its commit."""

    task: Task
    payload: TransferOffer
    strategy: Strategy
    sends: Sends = field(default_factory=Sends)

    def offers(self, payload: TransferOffer) -> bool:
        """Whether an offer under the same transfer is of the same blob."""
        fields = ("sha256", "total_bytes", "codec", "raw_bytes", "reference")
        return all(getattr(payload, name) == getattr(self.payload, name) for name in fields)

    @property
    def order(self) -> RoundConfig:
        """What the task asks for."""
        return RoundConfig(
            round_id=self.task.round_id,
            seed=self.task.seed,
            final=self.task.final,
            codec=Codec.of(self.task.update_codec, keep=self.task.update_keep),
            sends=self.sends.both(Sends(scores=self.task.scores, counts=self.task.counts)),
            alone=self.task.baseline == LOCAL,
            work=self.task.work,
        )


def progress_of(phase: DevicePhase, current: ActiveRound | None, journal: Journal) -> RoundProgress:
    """Where a device stands, by what it does and by what its store says."""
    round_id, transfer_id = 0, ""
    if journal.pending is not None:
        round_id, transfer_id = journal.pending.round_id, journal.pending.state.transfer_id
    elif current is not None:
        round_id, transfer_id = current.task.round_id, current.payload.transfer_id
    return RoundProgress(
        phase=phase,
        round_id=round_id,
        transfer_id=transfer_id,
        last_round_id=journal.last_round_id,
        last_transfer_id=journal.state.transfer_id if journal.state else "",
    )


def decide(progress: RoundProgress, task: Task) -> Decision:
    """What a device at ``progress`` does with ``task``."""
    if task.task == "train":
        if task.payload is None:
            return Decision.REFUSE
        offered = (task.round_id, task.payload.transfer_id)
        if offered in (
            (progress.round_id, progress.transfer_id),
            (progress.last_round_id, progress.last_transfer_id),
        ):
            return Decision.REPEAT
        # What is still being received may never come: it keeps no other round away.
        behind = task.round_id < progress.round_id and progress.phase is not DevicePhase.RECEIVE
        if behind or task.round_id <= progress.last_round_id:
            return Decision.REFUSE
    return {
        DevicePhase.IDLE: Decision.BEGIN,
        DevicePhase.RECEIVE: Decision.REPLACE,
        DevicePhase.TRAIN: Decision.REPLACE,
        DevicePhase.SEND: Decision.SETTLE,
        DevicePhase.LEAVE: Decision.REPEAT,
    }[progress.phase]
