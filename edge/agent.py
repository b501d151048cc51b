"""The device's agent: takes tasks, trains in a thread of its own, delivers, survives.

::

    IDLE ── task ──► RECEIVE ── payload stored ──► TRAIN ── committed ──► SEND ── receipt ──► IDLE
      │                                                                    │
      └── finish, signal ──► LEAVE                                         └── rejected: dropped

What a task means at each place is decided in ``decide``; what is true after a crash stands in the
store. A round's new state counts only after the coordinator's receipt. If a newer task comes while
an update is still in the outbox, the update is offered once more and the device waits
``SETTLE_S`` for its fate: ``done`` keeps the state, ``reject`` or silence drops it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, assert_never

from protofleet.edge.checks import AnnouncedRun, round_is_over
from protofleet.edge.decide import (
    ActiveRound,
    Decision,
    DevicePhase,
    RoundProgress,
    decide,
    progress_of,
)
from protofleet.edge.identity import Identity
from protofleet.edge.journal import Pending
from protofleet.edge.log_tail import LogTail
from protofleet.edge.log_throttle import WarningThrottle
from protofleet.edge.move import Membership
from protofleet.edge.outbox import SETTLE_S, Outbox
from protofleet.edge.participation import Participation
from protofleet.edge.presence import PresencePublisher, Registration
from protofleet.edge.refusals import Refusals
from protofleet.edge.storage import StorageWait
from protofleet.edge.training import Learner, TrainingThread, trained_figures
from protofleet.edge.upgrade import Upgrades
from protofleet.edge.waiting import WaitingLog
from protofleet.errors import (
    InputError,
    ProvisionError,
    RefusedError,
    StorageError,
    UnavailableError,
)
from protofleet.federation.client import (
    ReceivedPayload,
    TrainedRound,
    open_payload,
    receive_payload,
)
from protofleet.strategies.training import DivergedError
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.endpoint import Event
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.link import Connected, Disconnected
from protofleet.wire.messages import (
    Announcement,
    BundleOffer,
    HeartbeatPhase,
    Task,
    TransferOffer,
)
from protofleet.wire.transfer import Delivered, Received, Rejected
from protofleet.wire.transfer import transfer_id as transfer_of

_log = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0
"""The broker is not asked for the announcement more often, however many tasks come without one."""

Report = Callable[[str, dict[str, Any]], None]
"""Takes an event's name (joined, moved, switched, held, free, waiting, task, trained, delivered,
dropped, finished, left) and its figures."""


class Agent:
    """One device in one federation.

    Args:
        device: the wire's device end, not yet started.
        membership: of the store in the federation; committed when that is known to run the bundle.
        learner: trains, scores and measures.
        report: told what happens, in the agent's thread.
        who: what the device says about itself; the link's will says the same.
        stays: whether the device waits for another run when the federation has finished.
        participation: whether the owner's conditions are met; None: there are none.
        upgrades: other bundles over the wire; None: it takes none.
        tail: of the log, which goes to the coordinator when a round fails; None: it stays here.

    Attributes:
        switched: whether ``run`` has ended because the store has another bundle now.
    """

    def __init__(  # noqa: PLR0913 - its parts, and two options by name
        self,
        device: DeviceEndpoint,
        membership: Membership,
        learner: Learner,
        report: Report,
        who: Identity,
        *,
        stays: bool = False,
        participation: Participation | None = None,
        upgrades: Upgrades | None = None,
        tail: LogTail | None = None,
    ) -> None:
        self._endpoint = device
        self._participation = participation or Participation()
        self._membership = membership
        self._store = membership.store
        self._learner = learner
        self._meter = learner.meter
        self._report = report
        self._who, self._stays = who, stays
        registration = Registration(learner, who.sends)
        self._presence = PresencePublisher(device, who, registration, tail)
        self._warn = WarningThrottle(_log).warning
        self._phase = DevicePhase.IDLE
        self._round: ActiveRound | None = None
        self._next: Task | None = None
        self._run = AnnouncedRun(who, self._store, learner)
        self._refusals = Refusals(self._warn)
        self._outbox = Outbox(device, self._store, self._participation)
        self._training = TrainingThread(learner, device.wake)
        self._upgrades = upgrades or Upgrades(device, membership.store, learner.manifest)
        self._stopped = self._joined = self.switched = False
        self._storage = StorageWait(
            self._store, self._participation, self._tell_held, lambda: self._stopped
        )
        self._finished_in, self._over, self._ask_from = 0, "", 0.0
        self._waiting = WaitingLog(who.binding.federation, device)

    def run(self) -> bool:
        """Take part until the federation has finished.

        No message ends it but the announced run's own finish.

        Returns:
            True when it has; False when ``stop`` was called, or it has ``switched``.

        Raises:
            ProvisionError: the store is damaged.
            UnavailableError: the broker refuses this device for good.
        """
        self._training.warm_up()
        try:
            self._endpoint.start()
            self._participation.start(self._endpoint.wake)
            self._obey()
            self._resume()
            while self._phase is not DevicePhase.LEAVE and not (self._stopped or self.switched):
                event = self._poll()
                self._count_bytes()
                if event is not None:
                    self._handle(event)
                self._advance()
        except StorageError:
            if not self._stopped:
                raise
        finally:
            self._leave()
        return self._phase is DevicePhase.LEAVE

    def _poll(self) -> Event | None:
        try:
            return self._endpoint.poll(self._wait_s())
        except StorageError as error:
            self._storage.wait(error)
            self._endpoint.listen_again()  # the announcement may be what could not be noted
            return None

    def stop(self) -> None:
        """Leave soon and keep the state; safe in a signal handler and in another thread."""
        self._stopped = True
        self._training.cancel()
        self._endpoint.wake()

    def _resume(self) -> None:
        """Continue where the store says that the process before this one stood."""
        if not self._membership.committed:
            return
        self._remember_transfers()
        pending = self._store.journal.pending
        if pending is not None:
            _log.info("round %d: continuing to deliver its update", pending.round_id)
            self._send_update(pending.round_id)

    def _remember_transfers(self) -> None:
        """Payloads that the store has, or had, are not to be fetched again."""
        for transfer_id in self._store.journal.transfers:
            self._endpoint.remember(transfer_id)

    def _handle(self, event: Event) -> None:
        match event:
            case Connected():
                self._on_connected()
            case Disconnected():
                self._on_disconnected(event)
            case PeerMessage():
                self._on_message(event)
            case Received():
                self._on_received(event)
            case Delivered():
                self._on_delivered(event)
            case Rejected():
                self._on_rejected(event)
            case Ignored():
                self._refusals.note("ignored a message", RefusedError(event.rule, event.detail))
            case _:
                assert_never(event)

    def _on_message(self, incoming: PeerMessage) -> None:
        message = incoming.message
        match message:
            case Announcement():
                self._on_announcement(message, retained=incoming.retained)
            case Task():
                self._on_task(message)
            case BundleOffer():
                self._on_bundle_offer(message)
            case _:
                wrong = RefusedError("kind", f"{type(message).__name__}: not for devices")
                self._refusals.note("ignored a message", wrong)

    def _on_connected(self) -> None:
        self._presence.connected(self._participation.held, time.monotonic())
        if not self._joined:
            self._joined = True
            self._report("joined", {**self._who.figures(), "store": str(self._store.folder)})
            if self._phase is DevicePhase.IDLE:
                self._waiting.begin(time.monotonic())

    def _on_disconnected(self, event: Disconnected) -> None:
        if event.final:
            raise UnavailableError(f"broker: {event.reason}")
        self._warn("no connection to the broker: %s; trying again", event.reason)

    def _on_announcement(self, announcement: Announcement, *, retained: bool) -> None:
        self._presence.announced(announcement, time.monotonic(), retained=retained)
        try:
            self._run.announced(announcement)
        except RefusedError as error:
            # Perhaps an older run's, or a stranger's: the device stays, and says what it waits for.
            self._refusals.note("waiting for another coordinator", error)
            if error.rule == "bundle" and self._taken_back(announcement):
                return
            if error.rule in {"bundle", "layout"}:
                self._waiting.announced(announcement, retained=True, mismatch=str(error))
            return
        self._endpoint.spread(announcement.spread_s)
        self._waiting.announced(announcement, retained=retained)
        self._commit_membership()
        self._upgrades.announced(announcement)
        self._take_receipt(announcement)
        if announcement.round_id - announcement.staleness > self._progress().round_id:
            self._end_round(f"round {self._progress().round_id} is over")
        if announcement.phase != "finished":
            # An update in the outbox belongs to the data of its own round.
            round_id = self._progress().round_id or announcement.round_id
            self._presence.register(announcement.strategy, round_id)
        elif self._store.journal.last_round_id or self._store.journal.pending:
            # It finished while this device was away. A device that never took part waits instead:
            # the announcement may be of an older run, and a new one about to begin.
            last, name = announcement.round_id, announcement.federation
            epoch = announcement.epoch
            self._on_task(Task(task="finish", round_id=last, federation=name, epoch=epoch))

    def _on_bundle_offer(self, offer: BundleOffer) -> None:
        try:
            self._who.check(offer)
            self._run.check_epoch(offer)
            if self._participation.may_transfer:  # else it comes again
                self._upgrades.offered(offer)
        except RefusedError as error:
            self._refusals.note("refused a bundle", error)
            if offer.payload is not None and error.rule not in {"announcement", "epoch"}:
                self._endpoint.reject_bundle(offer.payload.transfer_id, error.rule, str(error))
        except StorageError as error:
            self._warn("no bundle can be fetched now: %s", error)  # it is offered again

    def _taken_back(self, announcement: Announcement) -> bool:
        """Whether the federation runs the bundle before again, and this device does, too."""
        try:
            self._run.check_epoch(announcement)
            if not self._upgrades.is_taken_back(announcement):
                return False
        except RefusedError as error:
            self._refusals.note("kept its bundle", error)
            return False
        if self._phase is not DevicePhase.IDLE:
            self._next = None
            self._drop("its bundle was taken back")
        self._switch(self._upgrades.go_back())
        return True

    def _switch(self, figures: dict[str, Any]) -> None:
        """The store has another bundle from here on: this process ends its part with the former."""
        self.switched = True
        self._training.cancel()
        self._report("switched", figures)

    def _commit_membership(self) -> None:
        """The federation runs this device's bundle: from here on the store belongs to both."""
        if self._membership.committed:
            return
        move = self._membership.commit()
        self._remember_transfers()
        if move is not None:
            self._report("moved", {"bundle": self._who.binding.bundle, **move.by_fate()})

    def _end_round(self, why: str) -> None:
        """Nobody waits for the round in progress; what is in the outbox gets its answer."""
        if self._phase is DevicePhase.RECEIVE:
            self._drop(why)
        elif self._phase is DevicePhase.TRAIN:
            self._over = why
            self._training.cancel()

    def _obey(self) -> None:
        """Do, and say, what follows from the owner's conditions if others are met than before.

        A round in training waits between two steps. Where nothing may be transferred, a payload on
        its way is given back, and an update waits in the outbox.
        """
        owner = self._participation
        if not owner.news():
            return
        self._tell_held()
        self._training.hold(bool(owner.held))
        if self._phase is DevicePhase.RECEIVE and not owner.may_transfer:
            self._give_back()
        elif self._phase is DevicePhase.SEND and not owner.may_transfer:
            self._outbox.withhold()
        elif self._phase is DevicePhase.SEND and not self._outbox.sending:
            self._send_update(self._progress().round_id)

    def _tell_held(self) -> None:
        """Say what holds this device, to its owner and to the coordinator."""
        owner = self._participation
        owner.news()
        self._report(
            "held" if owner.held else "free", {"conditions": owner.held, "reason": owner.reason}
        )
        self._presence.publish(owner.held)

    def _give_back(self) -> None:
        """Refuse the payload on its way; nothing is kept of that, so it may be offered again."""
        refusal, current = self._participation.refusal, self._round
        if refusal is not None and current is not None:
            self._give_up(refusal.rule, str(refusal))
            self._endpoint.cancel(current.payload.transfer_id)

    def _on_task(self, task: Task) -> None:
        try:
            self._run.check(task)
        except RefusedError as error:
            self._refuse(task, error)
            return
        decision = decide(self._progress(), task)
        if decision is Decision.BEGIN and task.payload is not None:
            self._participation.expect(task.payload.total_bytes + self._outbox.update_bytes)
            self._obey()
            if (refusal := self._participation.refusal) is not None:
                self._refuse(task, refusal)
                return
        if decision is Decision.BEGIN:
            self._begin(task)
        elif decision is Decision.REPEAT:
            self._answer_again(task)
        elif decision is Decision.REPLACE:
            self._replace(task)
        elif decision is Decision.SETTLE:
            self._settle(task)
        else:
            self._refuse(task, round_is_over(task, self._progress().last_round_id))

    def _begin(self, task: Task) -> None:
        """Fetch a checked task's payload, or finish."""
        self._next = None
        if task.payload is None:
            self._finish(task)
            return
        self._waiting.end()
        offer = task.payload
        figures = {"payload_bytes": offer.total_bytes, "transfer_id": offer.transfer_id}
        self._report("task", {"round_id": task.round_id, **figures})
        self._phase = DevicePhase.RECEIVE
        self._meter.enter("receive")
        self._presence.register(task.strategy, task.round_id)
        strategy = self._run.strategy_of(task)
        self._store.bind_strategy(task.strategy, task.settings)
        self._round = ActiveRound(
            task=task, payload=task.payload, strategy=strategy, sends=self._who.sends
        )
        if task.payload.reference and not self._store.has_payload(task.payload.reference):
            self._give_up("base", "this device does not have the payload that this one refers to")
            return
        self._expect(task.payload, task.shared)
        received = self._store.journal.received
        if received is not None and received.transfer_id == task.payload.transfer_id:
            self._train_stored(self._round)

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

    def _finish(self, task: Task) -> None:
        if not self._stays:
            self._phase = DevicePhase.LEAVE
            return
        if self._phase is not DevicePhase.IDLE:
            self._become_idle()
        if self._finished_in != task.round_id:
            self._finished_in = task.round_id
            self._report("finished", {"round_id": task.round_id})

    def _answer_again(self, task: Task) -> None:
        """Answer a repeated offer; one of the last round comes of a coordinator that was restored.

        It is given that round's update once more, as soon as nothing else is on its way.
        """
        pending = self._store.journal.pending
        if self._phase is DevicePhase.SEND and pending and task.round_id != pending.round_id:
            return  # it is repeated
        if task.payload is not None:
            if self._round is not None and not self._round.offers(task.payload):
                wrong = RefusedError("offer", f"round {task.round_id}: the offer has changed")
                self._refusals.note("refused a task", wrong)
                return
            self._expect(task.payload, task.shared)
        delivered = self._store.journal.delivered
        if pending is not None and task.round_id == pending.round_id:
            self._send_update(pending.round_id)
        elif self._phase is DevicePhase.IDLE and delivered and task.round_id == delivered.round_id:
            self._outbox.send_delivered(delivered)

    def _replace(self, task: Task) -> None:
        if self._phase is DevicePhase.TRAIN:
            self._next = task
            self._training.cancel()
            return
        if self._round is not None:
            self._endpoint.cancel(self._round.payload.transfer_id)
        self._begin(task)

    def _settle(self, task: Task) -> None:
        if self._next is None and (pending := self._store.journal.pending):
            self._outbox.settle(time.monotonic())
            self._send_update(pending.round_id)
        self._next = task

    def _refuse(self, task: Task, error: RefusedError) -> None:
        """Say why, and stay; what is in progress goes on."""
        self._refusals.note("refused a task", error)
        progress = self._progress()
        awaited = self._next.payload.transfer_id if self._next and self._next.payload else ""
        ours = progress.transfer_id, progress.last_transfer_id, awaited
        # Before an announcement nothing can be judged: the task will come again. What a coordinator
        # that was replaced offers may be, bit for bit, what its successor does.
        silent = error.rule in {"announcement", "epoch"}
        if error.rule == "announcement":
            self._ask_for_announcement(time.monotonic())
        if not silent and task.payload and task.payload.transfer_id not in ours:
            self._endpoint.reject(task.payload.transfer_id, error.rule, str(error))

    def _ask_for_announcement(self, now: float) -> None:
        """It may have been lost, as the one before it; the broker keeps the latest."""
        if now >= self._ask_from:
            self._ask_from = now + ASK_AGAIN_S
            self._endpoint.listen_again()

    def _on_received(self, event: Received) -> None:
        current, transfer_id = self._round, event.offer.transfer_id
        if event.offer.kind == "bundle":
            self._upgrades.received(event)
            return
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

    def _give_up(self, rule: str, reason: str) -> None:
        """Say why the payload of the round in progress cannot be used."""
        if self._round is None:
            return
        refused = f"round {self._round.task.round_id}: payload refused"
        self._refusals.note(refused, RefusedError(rule, reason))
        self._tell_failed()
        self._endpoint.reject(self._round.payload.transfer_id, rule, reason)
        self._become_idle()

    def _train(self, current: ActiveRound, received: ReceivedPayload) -> None:
        self._phase = DevicePhase.TRAIN
        memory = self._store.load_memory()
        self._training.start(current.strategy, memory, received)

    def _advance(self) -> None:
        """Do what no event of the wire brings: held, trained, settled, heartbeat."""
        self._obey()
        if self._training.finished():
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
        if self._phase is DevicePhase.SEND and time.monotonic() >= self._outbox.settle_by:
            self._drop(f"no receipt within {SETTLE_S:.0f} s of the next task")
        self._upgrade()
        self._presence.answer(time.monotonic())
        if time.monotonic() >= self._presence.heartbeat_due:
            self._heartbeat(self._phase.value)
        if self._phase is DevicePhase.IDLE and time.monotonic() >= self._waiting.due:
            self._tell_waiting()

    def _upgrade(self) -> None:
        """Go on with a bundle that was offered, and switch to it between two rounds."""
        idle = self._phase is DevicePhase.IDLE and self._next is None
        if self._upgrades.advance(idle=idle and not self._participation.held):
            self._presence.progress = self._upgrades.progress
            self._presence.publish(self._participation.held)
        if idle and self._upgrades.due and not self.switched:
            self._switch(self._upgrades.switch())

    def _tell_waiting(self) -> None:
        self._endpoint.listen_again()
        figures = self._waiting.report(time.monotonic())
        if figures is not None:
            self._report("waiting", figures)

    def _on_failed(self, rule: str, reason: str) -> None:
        """Say why this round has no update; the state of the round before stays."""
        if self._round is not None and self._next is None:
            round_id, payload = self._round.task.round_id, self._round.payload
            self._warn("round %d refused: %s", round_id, reason)
            self._tell_failed()
            self._drop(reason)
            self._endpoint.reject(payload.transfer_id, rule, reason)
            return
        self._drop(reason)

    def _on_trained(self, trained: TrainedRound | None) -> None:
        if trained is None and self._stopped:
            return
        if trained is None or self._next is not None or self._round is None:
            self._drop(self._over or "a newer task came")
            return
        with self._meter.phase("encode"):
            self._store.commit_trained(trained, transfer_id=self._round.payload.transfer_id)
        self._report("trained", trained_figures(trained, self._learner.task))
        self._send_update(trained.update.round_id)

    def _send_update(self, round_id: int) -> None:
        self._phase = DevicePhase.SEND
        self._meter.enter("send")
        self._outbox.send(round_id)

    def _on_rejected(self, event: Rejected) -> None:
        pending = self._store.journal.pending
        if pending is not None and pending.update.sha256 == event.offer.sha256:
            self._warn("round %d: update rejected: %s", pending.round_id, event.reason)
            self._tell_failed()
            self._drop(event.reason)

    def _on_delivered(self, event: Delivered) -> None:
        pending = self._store.journal.pending
        if pending is not None and pending.update.sha256 == event.offer.sha256:
            self._count_round(pending, event.offer.transfer_id)

    def _take_receipt(self, announcement: Announcement) -> None:
        """The run may have ended before this device heard that its last update was taken."""
        pending = self._store.journal.pending
        if pending is None:
            return
        sent = transfer_of(pending.update.sha256, self._store.device_id, pending.round_id)
        if announcement.has_receipt(sent):
            self._endpoint.cancel(sent)
            self._count_round(pending, sent)

    def _count_round(self, pending: Pending, transfer: str) -> None:
        """The coordinator has the round's update: its state is this device's from now on."""
        self._store.commit_delivered()
        self._count_bytes()
        up, down = self._store.counters.totals
        figures = {"update_bytes": pending.update.bytes, "bytes_up": up, "bytes_down": down}
        ids = {"round_id": pending.round_id, "transfer_id": transfer}
        self._report("delivered", {**ids, **figures})
        self._heartbeat("idle")
        self._become_idle()

    def _drop(self, reason: str) -> None:
        """The round in progress does not count; its trained state goes with it."""
        progress = self._progress()
        transfer_id = self._outbox.sending or progress.transfer_id
        ids = {"round_id": progress.round_id, "transfer_id": transfer_id}
        self._report("dropped", {**ids, "reason": reason})
        for transfer_id in filter(None, (progress.transfer_id, self._outbox.sending)):
            self._endpoint.cancel(transfer_id)
        self._store.commit_dropped()
        self._become_idle()

    def _become_idle(self) -> None:
        self._meter.enter("idle")
        self._phase = DevicePhase.IDLE
        self._round, self._over = None, ""
        self._outbox.clear()
        self._waiting.begin(time.monotonic())
        task, self._next = self._next, None
        if task is not None:
            # What has been delivered since may have answered it.
            self._on_task(task)

    def _progress(self) -> RoundProgress:
        return progress_of(self._phase, self._round, self._store.journal)

    def _wait_s(self) -> float | None:
        due = min(self._presence.due, self._outbox.settle_by, self._waiting.due)
        return None if due == float("inf") else max(0.0, due - time.monotonic())

    def _count_bytes(self) -> None:
        traffic = self._endpoint.traffic
        self._store.counters.record(traffic.socket_up_bytes, traffic.socket_down_bytes)

    def _heartbeat(self, phase: HeartbeatPhase) -> None:
        progress = self._progress()
        round_id = progress.round_id or progress.last_round_id
        totals = self._store.counters.totals
        self._presence.heartbeat(phase, round_id, totals, time.monotonic())

    def _tell_failed(self) -> None:
        """Before the round in progress is dropped: its phase and number are those that failed."""
        round_id, totals = self._progress().round_id, self._store.counters.totals
        self._presence.failed(self._phase.value, round_id, totals)

    def _leave(self) -> None:
        self._participation.close()
        self._training.close()
        self._heartbeat("leave")
        self._presence.leave()
        self._endpoint.close()
        self._count_bytes()
        up, down = self._store.counters.totals
        finished = self._phase is DevicePhase.LEAVE
        figures = {"finished": finished, "bytes_up": up, "bytes_down": down}
        self._report("left", figures | {"refused": self._refusals.by_rule})
