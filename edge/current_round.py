"""The round that a device is in: its payload comes, it is trained, its update goes, and it counts.

What is true after a crash stands in the store; a round's new state counts only after the
coordinator's receipt. If a newer task comes while an update is still in the outbox, the update is
offered once more and the device waits ``SETTLE_S`` for its fate: ``done`` keeps the state,
``reject`` or silence drops it. Which task is taken when is the agent's to say.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import msgspec

from protofleet.edge.decide import ActiveRound, DevicePhase, RoundProgress, progress_of
from protofleet.edge.learning.training import trained_figures
from protofleet.edge.outbox import SETTLE_S, Outbox
from protofleet.edge.parts import DeviceParts
from protofleet.edge.state.journal import PendingUpdate, PersonalState
from protofleet.edge.waiting import TransferWait
from protofleet.errors import InputError, ProvisionError, RefusedError
from protofleet.federation.client import (
    ReceivedPayload,
    TrainedRound,
    open_payload,
    receive_payload,
)
from protofleet.federation.outcomes.gate import ComparedExamples, GateEvidence
from protofleet.strategies.training import DivergedError
from protofleet.wire.messages import Announcement, FleetGain, HeartbeatPhase, Task, TransferOffer
from protofleet.wire.transfers.transfer import Delivered, Received, Rejected
from protofleet.wire.transfers.transfer import transfer_id as transfer_of

_log = logging.getLogger(__name__)


class CurrentRound:
    """One device's round, from its task to its receipt.

    Args:
        device: its parts.

    Attributes:
        phase: where the device stands.
        next: the task that waits for the end of this round; None: there is none.
    """

    def __init__(self, device: DeviceParts) -> None:
        self._endpoint, self._store, self._learner = device.endpoint, device.store, device.learner
        self._meter, self._training = device.learner.meter, device.training
        self._run, self._who, self._participation = device.run, device.who, device.participation
        self._presence, self._refusals = device.presence, device.refusals
        self._storage, self._waiting, self._stop_flag = (
            device.storage,
            device.waiting,
            device.stop_flag,
        )
        self._report, self._warn = device.report, device.warn
        self._transfer = TransferWait()
        self._outbox = Outbox(device.endpoint, device.store, device.participation)
        self._current: ActiveRound | None = None
        self._over = ""
        self.phase = DevicePhase.IDLE
        self.next: Task | None = None

    @property
    def idle(self) -> bool:
        """Whether the device is in no round, and no task waits."""
        return self.phase is DevicePhase.IDLE and self.next is None

    @property
    def progress(self) -> RoundProgress:
        """What decisions about tasks depend on."""
        return progress_of(self.phase, self._current, self._store.journal)

    @property
    def transfers(self) -> tuple[str, ...]:
        """Of the payloads of this round, of the one before and of the task that waits."""
        progress = self.progress
        awaited = self.next.payload.transfer_id if self.next and self.next.payload else ""
        return progress.transfer_id, progress.last_transfer_id, awaited

    @property
    def update_bytes(self) -> int:
        """Of the last update."""
        return self._outbox.update_bytes

    @property
    def due(self) -> float:
        """When ``settle`` has something to do; infinite: not before something happens."""
        return min(self._outbox.settle_by, self._transfer.due)

    def resume(self) -> None:
        """Go on with an update that the process before this one was delivering."""
        pending = self._store.journal.pending
        if pending is not None:
            _log.info("round %d: continuing to deliver its update", pending.round_id)
            self._send_update(pending.round_id)

    def begin(self, task: Task, offer: TransferOffer) -> None:
        """Fetch a checked task's payload."""
        self._waiting.end()
        figures = {"payload_bytes": offer.total_bytes, "transfer_id": offer.transfer_id}
        self._report("task", {"round_id": task.round_id, **figures})
        self.phase = DevicePhase.RECEIVE
        self._meter.enter("receive")
        self._presence.register(task.strategy, task.round_id)
        strategy = self._run.strategy_of(task)
        self._store.bind_strategy(task.strategy, task.settings)
        self._current = ActiveRound(
            task=task, payload=offer, strategy=strategy, sends=self._who.sends
        )
        if offer.reference and not self._store.has_payload(offer.reference):
            self._give_up("base", "this device does not have the payload that this one refers to")
            return
        self._await(f"the payload of round {task.round_id} ({offer.total_bytes:,} bytes)")
        self._expect(offer, task.shared)
        received = self._store.journal.received
        if received is not None and received.transfer_id == offer.transfer_id:
            self._train_stored(self._current)

    def answer_again(self, task: Task) -> None:
        """Answer a repeated offer; one of the last round comes of a coordinator that was restored.

        It is given that round's update once more, as soon as nothing else is on its way.
        """
        pending = self._store.journal.pending
        if self.phase is DevicePhase.SEND and pending and task.round_id != pending.round_id:
            return  # it is repeated
        if task.payload is not None:
            if self._current is not None and not self._current.offers(task.payload):
                wrong = RefusedError("offer", f"round {task.round_id}: the offer has changed")
                self._refusals.note("refused a task", wrong)
                return
            self._expect(task.payload, task.shared)
        delivered = self._store.journal.delivered
        if pending is not None and task.round_id == pending.round_id:
            self._send_update(pending.round_id)
        elif self.phase is DevicePhase.IDLE and delivered and task.round_id == delivered.round_id:
            self._outbox.send_delivered(delivered)

    def give_way(self, task: Task) -> bool:
        """Make room for a newer task, for which nobody waits for this round; False: it waits."""
        if self.phase is DevicePhase.TRAIN:
            self.next = task
            self._training.cancel()
            return False
        if self._current is not None:
            self._endpoint.cancel(self._current.payload.transfer_id)
        return True

    def await_fate(self, task: Task) -> None:
        """A newer task waits for the fate of the update in the outbox."""
        if self.next is None and (pending := self._store.journal.pending):
            self._outbox.settle(time.monotonic())
            self._send_update(pending.round_id)
        self.next = task

    def end(self, why: str) -> None:
        """Nobody waits for the round; what is in the outbox gets its answer."""
        if self.phase is DevicePhase.RECEIVE:
            self.drop(why)
        elif self.phase is DevicePhase.TRAIN:
            self._over = why
            self._training.cancel()

    def obey(self) -> None:
        """The owner's conditions have changed.

        A round in training waits between two steps. Where nothing may be transferred, a payload on
        its way is given back, and an update waits in the outbox.
        """
        owner = self._participation
        self._training.hold(bool(owner.held))
        if self.phase is DevicePhase.RECEIVE and not owner.may_transfer:
            self._give_back()
        elif self.phase is DevicePhase.SEND and not owner.may_transfer:
            self._outbox.withhold()
        elif self.phase is DevicePhase.SEND and not self._outbox.sending:
            self._send_update(self.progress.round_id)

    def on_received(self, event: Received) -> None:
        """A payload is complete."""
        current, transfer_id = self._current, event.offer.transfer_id
        if current is None or current.payload.transfer_id != transfer_id:
            self._endpoint.cancel(transfer_id)
            return
        try:
            received = receive_payload(
                event.path.read_bytes(),
                event.offer.coding,
                current.order,
                model=self._learner.model,
                earlier=self._store.load_payload,
                forms=current.strategy.payload,
            )
        except RefusedError as error:
            self._give_up(error.rule, str(error))
            return
        self._store.commit_received(
            current.task.round_id,
            transfer_id,
            bytes(received.raw),
            reference=None if event.offer.coding.is_raw else event.offer.reference,
        )
        self._endpoint.accept(transfer_id)
        self._train(current, received)

    def on_delivered(self, event: Delivered) -> None:
        """An update was taken."""
        pending = self._store.journal.pending
        if pending is not None and pending.update.sha256 == event.offer.sha256:
            self._count(pending, event.offer.transfer_id)

    def on_rejected(self, event: Rejected) -> None:
        """An update was not taken."""
        pending = self._store.journal.pending
        if pending is not None and pending.update.sha256 == event.offer.sha256:
            self._warn("round %d: update rejected: %s", pending.round_id, event.reason)
            self._tell_failed()
            self.drop(event.reason)

    def take_receipt(self, announcement: Announcement) -> None:
        """The run may have ended before this device heard that its last update was taken."""
        pending = self._store.journal.pending
        if pending is None:
            return
        sent = transfer_of(pending.update.sha256, self._store.device_id, pending.round_id)
        if announcement.has_receipt(sent):
            self._endpoint.cancel(sent)
            self._count(pending, sent)

    def advance(self) -> None:
        """Do what no event of the wire brings: trained, settled, waited for long."""
        self._take_fold()
        if self._training.finished():
            self._take_trained()
        if self.phase is DevicePhase.SEND and time.monotonic() >= self._outbox.settle_by:
            self.drop(f"no receipt within {SETTLE_S:.0f} s of the next task")
        now = time.monotonic()
        if now >= self._transfer.due:
            figures = self._transfer.report(now, self._carried)
            if self._endpoint.connected:  # a lost link is told of by itself
                self._report("waiting", figures)

    def drop(self, reason: str) -> None:
        """The round does not count; its trained state goes with it."""
        progress = self.progress
        transfer_id = self._outbox.sending or progress.transfer_id
        ids = {"round_id": progress.round_id, "transfer_id": transfer_id}
        self._report("dropped", {**ids, "reason": reason})
        for transfer_id in filter(None, (progress.transfer_id, self._outbox.sending)):
            self._endpoint.cancel(transfer_id)
        self._store.commit_dropped()
        self.become_idle()

    def become_idle(self) -> None:
        """The round is over."""
        self._meter.enter("idle")
        self.phase = DevicePhase.IDLE
        self._current, self._over = None, ""
        self._outbox.clear()
        self._transfer.end()
        self._waiting.begin(time.monotonic())

    def take_next(self) -> Task | None:
        """The task that has waited for the end of a round, once that has come; None: none has."""
        if self.phase is not DevicePhase.IDLE:
            return None
        task, self.next = self.next, None
        return task

    def heartbeat(self, phase: HeartbeatPhase) -> None:
        """Say that the device lives, which round it is in, and what it has paid."""
        progress = self.progress
        round_id = progress.round_id or progress.last_round_id
        totals = self._store.counters.totals
        self._presence.heartbeat(phase, round_id, totals, time.monotonic())

    def count_bytes(self) -> None:
        """Note what the socket has carried."""
        traffic = self._endpoint.traffic
        self._store.counters.record(traffic.socket_up_bytes, traffic.socket_down_bytes)

    @property
    def _carried(self) -> int:
        traffic = self._endpoint.traffic
        sends = self.phase is DevicePhase.SEND
        return traffic.payload_up_bytes if sends else traffic.payload_down_bytes

    def _await(self, what: str) -> None:
        self._transfer.begin(what, time.monotonic(), self._carried)

    def _expect(self, offer: TransferOffer, shared: str) -> None:
        self._storage.repeat(lambda: self._endpoint.expect(offer, shared))

    def _train_stored(self, current: ActiveRound) -> None:
        """Go on with a payload that the process before this one has received."""
        raw = self._store.load_received()
        try:
            received = open_payload(raw, current.order, current.strategy.payload)
        except RefusedError as error:
            self._store.commit_dropped()
            self._give_up(error.rule, str(error))
            return
        self._train(current, received)

    def _give_back(self) -> None:
        """Refuse the payload on its way; nothing is kept of that, so it may be offered again."""
        refusal, current = self._participation.refusal, self._current
        if refusal is not None and current is not None:
            self._give_up(refusal.rule, str(refusal))
            self._endpoint.cancel(current.payload.transfer_id)

    def _give_up(self, rule: str, reason: str) -> None:
        """Say why the payload of the round in progress cannot be used."""
        if self._current is None:
            return
        refused = f"round {self._current.task.round_id}: payload refused"
        self._refusals.note(refused, RefusedError(rule, reason))
        self._tell_failed()
        self._endpoint.reject(self._current.payload.transfer_id, rule, reason)
        self.become_idle()

    def _train(self, current: ActiveRound, received: ReceivedPayload) -> None:
        self._transfer.end()
        self.phase = DevicePhase.TRAIN
        memory = self._store.load_memory()
        self._training.start(current.strategy, memory, received)

    def _take_trained(self) -> None:
        try:
            trained = self._training.take()
        except DivergedError as error:
            self._on_failed("diverged", str(error))
        except (InputError, ProvisionError) as error:
            self._on_failed("strategy", str(error))
        except Exception as error:  # noqa: BLE001 - whatever a payload led to, the device stays
            _log.debug("training failed", exc_info=True)
            self._on_failed("strategy", f"training failed: {type(error).__name__}: {error}")
        else:
            self._on_trained(trained)

    def _on_failed(self, rule: str, reason: str) -> None:
        """Say why this round has no update; the state of the round before stays."""
        if self._current is not None and self.next is None:
            round_id, payload = self._current.task.round_id, self._current.payload
            self._warn("round %d refused: %s", round_id, reason)
            self._tell_failed()
            self.drop(reason)
            self._endpoint.reject(payload.transfer_id, rule, reason)
            return
        self.drop(reason)

    def _on_trained(self, trained: TrainedRound | None) -> None:
        if trained is None and self._stop_flag.wanted:
            return
        if trained is None or self.next is not None or self._current is None:
            self.drop(self._over or "a newer task came")
            return
        trained = self._with_evidence(trained, self._current.task)
        with self._meter.phase("encode"):
            self._store.commit_trained(trained, transfer_id=self._current.payload.transfer_id)
        self._report("trained", trained_figures(trained, self._learner.task))
        self._send_update(trained.update.round_id)
        self._training.hold_out(trained.evidence.next_fold if trained.evidence else None)

    def _with_evidence(self, trained: TrainedRound, task: Task) -> TrainedRound:
        """With the folds of earlier rounds, and what the coordinator says of the other owners."""
        if trained.evidence is None:
            return trained
        counted = self._store.journal.state
        evidence = trained.evidence.following(None if counted is None else counted.evidence)
        if isinstance(task.fleet, FleetGain):
            evidence = msgspec.structs.replace(evidence, fleet=task.fleet)
        return replace(trained, evidence=evidence)

    def _take_fold(self) -> None:
        """Add what was held out since to the evidence for the model in use."""
        try:
            fold = self._training.take_fold()
        except Exception:  # noqa: BLE001 - the round has counted without it
            _log.warning("a held-out fold could not be compared", exc_info=True)
            fold = ComparedExamples()
        if fold is not None:
            before = self._store.journal.best
            self._store.commit_fold(fold)
            self._tell_in_use(before, self._store.journal.last_round_id)

    def _send_update(self, round_id: int) -> None:
        self.phase = DevicePhase.SEND
        self._meter.enter("send")
        self._await(f"the receipt for the update of round {round_id}")
        self._outbox.send(round_id)

    def _count(self, pending: PendingUpdate, transfer_id: str) -> None:
        """The coordinator has the round's update: its state is this device's from now on."""
        before = self._store.journal.best
        self._store.commit_delivered()
        self.count_bytes()
        up, down = self._store.counters.totals
        figures = {"update_bytes": pending.update.bytes, "bytes_up": up, "bytes_down": down}
        ids = {"round_id": pending.round_id, "transfer_id": transfer_id}
        self._report("delivered", {**ids, **figures})
        self._tell_in_use(before, pending.round_id)
        self.heartbeat("idle")
        self.become_idle()

    def _tell_in_use(self, before: PersonalState | None, round_id: int) -> None:
        """Which model the owner is served, where that is another than after the round before."""
        now = self._store.journal.best
        former, evidence = (None if one is None else one.state.evidence for one in (before, now))
        if evidence is None or (former is not None and former.served == evidence.served):
            return
        self._report("in_use", in_use_figures(round_id, evidence))

    def _tell_failed(self) -> None:
        """Before the round in progress is dropped: its phase and number are those that failed."""
        round_id, totals = self.progress.round_id, self._store.counters.totals
        self._presence.failed(self.phase.value, round_id, totals)


def in_use_figures(round_id: int, evidence: GateEvidence) -> dict[str, Any]:
    """Which model the owner is served after a round (0: before the first one), and why."""
    return {
        "round_id": round_id,
        "model": evidence.served,
        "probability": round(evidence.probability, 4),
        "text": evidence.text,
    }
