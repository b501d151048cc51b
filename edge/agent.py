"""The device's agent: what a device makes of its coordinator's messages, and of its owner's wishes.

::

    IDLE ── task ──► RECEIVE ── payload stored ──► TRAIN ── committed ──► SEND ── receipt ──► IDLE
      │                                                                    │
      └── finish, signal ──► LEAVE                                         └── rejected: dropped

What a task means at each place is decided in ``decide``; the round itself is ``current_round``'s;
what is true after a crash stands in the store.
"""

from __future__ import annotations

import time
from typing import Any, assert_never

from protofleet.edge.checks import round_is_over
from protofleet.edge.credentials import REMEDY
from protofleet.edge.current_round import CurrentRound
from protofleet.edge.decide import Decision, DevicePhase, decide
from protofleet.edge.learning.calibrating import CalibrationClient
from protofleet.edge.parts import DeviceParts
from protofleet.edge.state.move import BundleMove
from protofleet.edge.upgrade import Upgrades
from protofleet.errors import RefusedError, StorageError, UnavailableError
from protofleet.wire.endpoint import Event
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.messages import Announcement, BundleOffer, Task
from protofleet.wire.mqtt.link import Connected, Disconnected, Hindered
from protofleet.wire.transfers.transfer import Delivered, Received, Rejected
from protofleet.wire.trust.protection import KEYS

ASK_AGAIN_S = 1.0
"""The broker is not asked for the announcement more often, however many tasks come without one."""


class Agent:
    """One device in one federation.

    Args:
        device: its parts.
        move: of the store in the federation; committed when that is known to run the bundle.
        upgrades: other bundles over the wire.
        stays: whether the device waits for another run when the federation has finished.

    Attributes:
        switched: whether ``run`` has ended because the store has another bundle now.
    """

    def __init__(
        self, device: DeviceParts, move: BundleMove, upgrades: Upgrades, *, stays: bool
    ) -> None:
        self._endpoint, self._participation = device.endpoint, device.participation
        self._move, self._store, self._report = move, device.store, device.report
        self._who, self._stays, self._warn = device.who, stays, device.warn
        self._presence, self._run, self._refusals = device.presence, device.run, device.refusals
        self._training, self._upgrades, self._held = device.training, upgrades, device.held
        self._stop_flag, self._storage, self._waiting = (
            device.stop_flag,
            device.storage,
            device.waiting,
        )
        self._calibrating, self._round = CalibrationClient(device), CurrentRound(device)
        self._presence.calibration = self._calibrating.answer
        self._rest = device.rest
        self._joined = self.switched = False
        self._finished_in, self._ask_from = 0, 0.0

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
            while self._takes_part:
                event = self._poll()
                self._round.count_bytes()
                if event is not None:
                    self._handle(event)
                    self._take_next()
                self._advance()
        except StorageError:
            if not self._stop_flag.wanted:
                raise
        finally:
            self._leave()
        return self._finished

    @property
    def _takes_part(self) -> bool:
        return not (self._finished or self._stop_flag.wanted or self.switched)

    @property
    def _finished(self) -> bool:
        return self._round.phase is DevicePhase.LEAVE

    def _poll(self) -> Event | None:
        try:
            return self._endpoint.poll(self._wait_s())
        except StorageError as error:
            self._storage.wait(error)
            self._endpoint.listen_again()  # the announcement may be what could not be noted
            return None

    def stop(self) -> None:
        """Leave soon and keep the state; safe in a signal handler and in another thread."""
        self._stop_flag.wanted = True
        self._training.cancel()
        self._endpoint.wake()

    def _resume(self) -> None:
        """Continue where the store says that the process before this one stood."""
        if not self._move.committed:
            return
        self._remember_transfers()
        self._round.resume()

    def _remember_transfers(self) -> None:
        """Payloads that the store has, or had, are not to be fetched again."""
        for transfer_id in self._store.journal.transfers:
            self._endpoint.remember(transfer_id)

    def _handle(self, event: Event) -> None:
        match event:
            case Connected():
                self._on_connected()
            case Disconnected() | Hindered():
                self._on_trouble(event)
            case PeerMessage():
                self._on_message(event)
            case Received() if event.offer.kind == "bundle":
                self._upgrades.received(event)
            case Received():
                self._round.on_received(event)
            case Delivered():
                self._round.on_delivered(event)
            case Rejected():
                self._round.on_rejected(event)
            case Ignored():
                if event.rule == KEYS:
                    self._waiting.has_keys()
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
            if self._round.phase is DevicePhase.IDLE:
                self._waiting.begin(time.monotonic())

    def _on_trouble(self, event: Disconnected | Hindered) -> None:
        if isinstance(event, Hindered):
            self._warn("the broker hinders: %s", event.reason)
            return
        if event.final:
            name, place = self._who.device_id, self._who.binding.federation
            forbidden = (
                f"its account has to be called as this device, '{name}', and the list to serve "
                f"federation '{place}'"
            )
            unknown = (
                "the broker, and it alone, says that it does not take this device's account; if "
                f"the operator has revoked the device, {REMEDY}"
            )
            remedy = forbidden if event.forbidden else unknown
            raise UnavailableError(f"broker: {event.reason}; {remedy}")
        self._warn("no connection to the broker: %s; trying again", event.reason)

    def _on_announcement(self, announcement: Announcement, *, retained: bool) -> None:
        self._presence.announced(announcement, time.monotonic(), retained=retained)
        try:
            self._run.announced(announcement)
        except RefusedError as error:
            # Perhaps an older run's, or a stranger's: the device stays, and says what it waits for.
            self._refusals.note("waiting for another coordinator", error)
            if error.rule == "bundle" and self._follows(announcement):
                return
            if error.rule in {"bundle", "layout"}:
                self._waiting.announced(announcement, retained=True, mismatch=str(error))
            return
        self._endpoint.spread(announcement.spread_s)
        self._waiting.announced(announcement, retained=retained)
        self._commit_membership()
        self._upgrades.announced(announcement)
        self._calibrating.announced(announcement)
        self._round.take_receipt(announcement)
        current = self._round.progress.round_id
        if announcement.round_id - announcement.staleness > current:
            self._round.end(f"round {current} is over")
        if announcement.phase != "finished":
            # An update in the outbox belongs to the data of its own round.
            round_id = self._round.progress.round_id or announcement.round_id
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

    def _follows(self, announcement: Announcement) -> bool:
        """Whether the federation runs the bundle before again, and this device does, too."""
        try:
            self._run.heard(announcement)
            if not self._upgrades.is_taken_back(announcement):
                return False
        except RefusedError as error:
            self._refusals.note("kept its bundle", error)
            return False
        if self._round.phase is not DevicePhase.IDLE:
            self._round.next = None
            self._round.drop("its bundle was taken back")
        self._switch(self._upgrades.go_back())
        return True

    def _switch(self, figures: dict[str, Any]) -> None:
        """The store has another bundle from here on: this process ends its part with the former."""
        self.switched = True
        self._training.cancel()
        self._report("switched", figures)

    def _commit_membership(self) -> None:
        """The federation runs this device's bundle: from here on the store belongs to both."""
        if self._move.committed:
            return
        move = self._move.commit()
        self._remember_transfers()
        if move is not None:
            self._report("moved", {"bundle": self._who.binding.bundle, **move.by_fate()})

    def _obey(self) -> None:
        """Do, and say, what follows from the owner's conditions if others are met than before."""
        if self._participation.news():
            self._held.tell()
            self._round.obey()

    def _take_next(self) -> None:
        """Take the task that has waited for the end of a round, if that has come.

        What was delivered since may have answered it.
        """
        while self._takes_part and (task := self._round.take_next()) is not None:
            self._on_task(task)

    def _on_task(self, task: Task) -> None:
        try:
            self._run.check(task)
        except RefusedError as error:
            self._refuse(task, error)
            return
        current = self._round
        decision = decide(current.progress, task)
        if decision is Decision.BEGIN and task.payload is not None:
            self._participation.expect(task.payload.total_bytes + current.update_bytes)
            self._obey()
            if (refusal := self._participation.refusal) is not None:
                self._refuse(task, refusal)
                return
        if decision is Decision.BEGIN and self._calibrating.ends_for(task):
            return
        if decision is Decision.BEGIN:
            self._begin(task)
        elif decision is Decision.REPEAT:
            current.answer_again(task)
        elif decision is Decision.REPLACE:
            if current.give_way(task):
                self._begin(task)
        elif decision is Decision.SETTLE:
            current.await_fate(task)
        else:
            self._refuse(task, round_is_over(task, current.progress.last_round_id))

    def _begin(self, task: Task) -> None:
        """Fetch a checked task's payload, or finish."""
        self._round.next = None
        if task.payload is None:
            self._finish(task)
        else:
            self._round.begin(task, task.payload)

    def _finish(self, task: Task) -> None:
        if not self._stays:
            self._round.phase = DevicePhase.LEAVE
            return
        if self._round.phase is not DevicePhase.IDLE:
            self._round.become_idle()
        if self._finished_in != task.round_id:
            self._finished_in = task.round_id
            self._report("finished", {"round_id": task.round_id})

    def _refuse(self, task: Task, error: RefusedError) -> None:
        """Say why, and stay; what is in progress goes on."""
        self._refusals.note("refused a task", error)
        # Before an announcement nothing can be judged: the task will come again. What a coordinator
        # that was replaced offers may be, bit for bit, what its successor does.
        silent = error.rule in {"announcement", "epoch"}
        if error.rule == "announcement":
            self._ask_for_announcement(time.monotonic())
        if not silent and task.payload and task.payload.transfer_id not in self._round.transfers:
            self._endpoint.reject(task.payload.transfer_id, error.rule, str(error))

    def _ask_for_announcement(self, now: float) -> None:
        """It may have been lost, as the one before it; the broker keeps the latest."""
        if now >= self._ask_from:
            self._ask_from = now + ASK_AGAIN_S
            self._endpoint.listen_again()

    def _advance(self) -> None:
        """Do what no event of the wire brings: held, trained, settled, heartbeat."""
        self._obey()
        self._calibrate()
        self._round.advance()
        self._take_next()
        self._upgrade()
        self._presence.answer(time.monotonic())
        if time.monotonic() >= self._presence.heartbeat_due:
            self._round.heartbeat(self._round.phase.value)
        self._rest.advance(may=self._joined and self._presence.is_told and not self._transfers)
        is_idle = self._round.phase is DevicePhase.IDLE and not self._rest.now
        if is_idle and time.monotonic() >= self._waiting.due:
            self._tell_waiting()

    @property
    def _transfers(self) -> bool:
        """Whether a payload is coming or an update going, as far as the owner lets them."""
        moves = self._round.phase in {DevicePhase.RECEIVE, DevicePhase.SEND}
        return moves and self._participation.may_transfer

    def _calibrate(self) -> None:
        """Go on with learning rates, while there is no round."""
        owner = self._participation
        if self._calibrating.advance(idle=self._round.idle and not owner.held):
            self._presence.calibration = self._calibrating.answer
            self._presence.publish(owner.held)
        task = self._calibrating.take_waiting()
        if task is not None:
            self._on_task(task)

    def _upgrade(self) -> None:
        """Go on with a bundle that was offered, and switch to it between two rounds."""
        over = self._upgrades.has_other_run and self._round.phase is not DevicePhase.TRAIN
        idle = self._round.idle or over
        if self._upgrades.advance(idle=idle and not self._participation.held):
            self._presence.progress = self._upgrades.progress
            self._presence.publish(self._participation.held)
        if idle and self._upgrades.due and not self.switched:
            stood = self._round.progress
            figures = self._upgrades.switch()
            if figures is None:
                return
            if self._round.phase is not DevicePhase.IDLE:
                ids = {"round_id": stood.round_id, "transfer_id": stood.transfer_id}
                reason = "the federation has begun another run"
                self._report("dropped", {**ids, "reason": reason})
            self._switch(figures)

    def _tell_waiting(self) -> None:
        self._endpoint.listen_again()
        figures = self._waiting.report(time.monotonic())
        if figures is not None:
            self._report("waiting", figures)

    def _wait_s(self) -> float | None:
        due = min(self._presence.due, self._round.due, self._waiting.due)
        return None if due == float("inf") else max(0.0, due - time.monotonic())

    def _leave(self) -> None:
        self._participation.close()
        self._training.close()
        self._round.heartbeat("leave")
        self._presence.leave()
        self._endpoint.close()
        self._round.count_bytes()
        up, down = self._store.counters.totals
        figures = {"finished": self._finished, "bytes_up": up, "bytes_down": down}
        self._report("left", figures | {"refused": self._refusals.by_rule})
