"""The coordinator at work: events of the wire into the state machine, its actions into effects.

One thread does everything. A transition is written to the ledger before its effects, so the
process may be killed anywhere; signals therefore need no care and simply end it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from protofleet.coordinator import events
from protofleet.coordinator.acceptance import Acceptance
from protofleet.coordinator.announcer import Announcer
from protofleet.coordinator.devices.attendance import Attendance
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.coordinator.membership.members import Revocations
from protofleet.coordinator.parts import Devices, Run
from protofleet.coordinator.process.expiry import Expiry
from protofleet.coordinator.results import Results
from protofleet.coordinator.rollout import Rollouts
from protofleet.coordinator.rounds import Rounds
from protofleet.durable import replace_whole, sync_folder, write_whole
from protofleet.errors import RefusedError, UnavailableError
from protofleet.federation.client_limits import relaxed_bounds
from protofleet.federation.outcomes.trouble import troubles
from protofleet.federation.plan import Plan
from protofleet.federation.schedules import schedule
from protofleet.federation.schedules.schedule import RoundPhase
from protofleet.tensors import blobs
from protofleet.wire.endpoint import Event
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.messages import Announcement, Heartbeat, Presence, TransferOffer
from protofleet.wire.mqtt.link import Connected, Disconnected, Hindered
from protofleet.wire.transfers.transfer import Delivered, Received, Rejected

_FAREWELL_POLL_S = 0.02
"""Between two looks at the link, while devices are to be sent home."""
_POLL_S = 0.1
"""Resolution of deadlines, graces and silences."""
_BROKER_S = 60.0
"""How long a finished run waits for a lost broker, to tell the devices."""


class _EndedError(Exception):
    """``Service.end`` was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Of a service.

    Attributes:
        run, devices: what the others share.
        rounds: what the schedule wants done.
        attendance: who takes part.
        acceptance: of updates that have arrived.
        announcer: of this process.
        rollouts: of other bundles.
        results: what is written when the run pauses, stops or ends.
        revocations: of a federation with keys; who is revoked leaves.
        expiry: of a federation with keys; what ends by the calendar is renewed and told.
    """

    run: Run
    devices: Devices
    rounds: Rounds
    attendance: Attendance
    acceptance: Acceptance
    announcer: Announcer
    rollouts: Rollouts
    results: Results
    revocations: Revocations | None = None
    expiry: Expiry | None = None


class Service:
    """One run of one federation.

    Args:
        parts: that ``process.compose`` has made.

    Attributes:
        switched: whether ``run`` has ended because the run has another bundle now.
    """

    def __init__(self, parts: Parts) -> None:
        run = parts.run
        self._ledger, self._endpoint = run.ledger, run.endpoint
        self._sink, self._reporter = run.sink, run.reporter
        self._registry, self._roll_call = parts.devices.registry, parts.devices.roll_call
        self._troubles, self._arrivals = parts.devices.troubles, parts.acceptance.arrivals
        self._rounds, self._attendance = parts.rounds, parts.attendance
        self._announcer, self._operation = parts.announcer, run.operation
        self._rollouts, self._results = parts.rollouts, parts.results
        self._lease, self._expiry, self._revocations = run.lease, parts.expiry, parts.revocations
        self._ended = self.switched = self._draining = self._paused = False

    def end(self) -> None:
        """Let ``run`` return soon, resumably, as a signal would; from any thread."""
        self._ended = True
        self._endpoint.wake()

    def run(self) -> events.Finished | events.Stopped | None:
        """Run all rounds that are left, or until the operator stops; the results are written then.

        Returns:
            The last event; None after ``end``, and where the run has ``switched``.

        Raises:
            UnavailableError: the broker refuses this coordinator for good.
        """
        try:
            self._endpoint.start()
            self._tell_start()
            waiting = deque(self._await_lease())  # perhaps the presences of all devices
            self._resume()
            while waiting:
                self._act_on(waiting.popleft())
            while not self._is_over():
                if self._operation.ends(self._rounds.state):
                    return self._stop()
                if self._rollouts.switches(self._rounds.state):
                    self._switch()
                    return None
                self._take_part()
                self._watch()
            return self._say_goodbye()
        except _EndedError:
            return None
        finally:
            if self._lease is not None:
                self._lease.release()
            self._attendance.close()
            self._endpoint.close()

    def _take_part(self) -> None:
        """Take what comes next; accept what has come, if that is due."""
        event = self._endpoint.poll(min(_POLL_S, self._arrivals.wait_s(time.monotonic())))
        self._handle(event)
        if self._arrivals.is_due(time.monotonic(), self._rounds.state, idle=event is None):
            self._rounds.accept_arrived()

    def _tell_start(self) -> None:
        plan, (state, resumed) = self._plan, self._rounds.peek()
        self._sink(
            events.Started(
                federation=plan.config.federation,
                strategy=plan.strategy.description.name,
                rounds=plan.config.rounds,
                round_id=state.round_id,
                seed=plan.config.seed,
                resumed=resumed,
                bundle=plan.bundle.digest,
                sequence=plan.bundle.manifest.sequence,
                run_dir=str(self._ledger.folder),
            )
        )
        self._rounds.tell_early_end()

    def _await_lease(self) -> list[Event]:
        """What has come until no other coordinator can be acting, or until the operator ends it."""
        passed: list[Event] = []
        lease = self._lease
        while lease is not None and lease.idle and not self._operation.ends(self._rounds.state):
            self._check_ended()
            passed = lease.pass_on(self._endpoint.poll(_POLL_S))
            if lease.idle and passed:
                self._act_on(passed.pop())  # the link is down: no more can come of it
            self._operation.news()
        return passed

    def _resume(self) -> None:
        self._rounds.resume()
        if self._operation.pending:
            self._obey()

    def _is_over(self) -> bool:
        """Whether the last round is; an extension that came while it closed counts yet."""
        if self._rounds.state.phase is RoundPhase.FINISHED and self._operation.news():
            self._obey()
        return self._rounds.state.phase is RoundPhase.FINISHED

    def _watch(self) -> None:
        """What comes with time alone, or from the operator."""
        now = time.monotonic()
        if self._operation.news():
            self._obey()
        before, self._paused = self._paused, bool(self._operation.hold(self._rounds.state))
        if self._paused and not before:
            self._results.write()  # by the time that it is told, they are there
        if self._operation.report(self._rounds.state):
            self._rounds.announce()
        if self._expiry is not None and self._expiry.watch(now):
            self._rounds.announce()
        if self._announcer.idle:
            return
        self._attendance.watch(now)
        if self._revocations is not None:
            for device_id, serial in self._revocations.take(now):
                if self._endpoint.end_session(device_id, serial):
                    self._attendance.revoked(device_id)
                    self._rounds.announce()  # whose grant is no longer in force
        self._rollouts.epoch = self._announcer.epoch
        if self._rollouts.watch(now, self._rounds.state):
            self._rounds.announce()
        self._drain()
        self._rounds.calibrate(now)
        self._rounds.apply(schedule.Tick())
        self._attendance.flush(now)
        self._reporter.watch(now)
        self._rounds.tell_waiting(now)

    def _drain(self) -> None:
        """Let no other round open while the run is about to have another bundle, or rests."""
        if self._rollouts.drains or self._rounds.rests(time.time()):
            self._draining = True
            if not self._rounds.state.paused:
                self._rounds.apply(schedule.Pause())
        elif self._draining:
            self._draining = False
            self._rounds.apply(self._operation.event())

    def _obey(self) -> None:
        """Take the operator's order, which is in the ledger."""
        if self._rounds.raise_to(self._operation.rounds):
            self._sink(events.RoundsRaised(rounds=self._operation.rounds))
            self._rounds.announce()
        self._rounds.apply(self._operation.event())
        self._operation.taken()

    @property
    def _plan(self) -> Plan:
        return self._rounds.server.plan

    def _check_ended(self) -> None:
        if self._ended:
            raise _EndedError

    def _handle(self, event: Event | None) -> None:
        self._check_ended()
        for passed in [event] if self._lease is None else self._lease.pass_on(event):
            self._act_on(passed)

    def _act_on(self, event: Event | None) -> None:
        match event:
            case None:
                pass
            case Delivered():
                self._on_delivered(event)
            case Connected():
                self._sink(events.BrokerConnected(protocol=event.protocol))
                self._roll_call.begin(time.monotonic())
                self._rounds.announce()
            case Disconnected() | Hindered():
                self._on_trouble(event)
            case PeerMessage():
                self._on_message(event)
            case Received():
                self._on_received(event)
            case Rejected():
                self._on_rejected(event)
            case Ignored():
                self._attendance.on_ignored(event)
            case _:
                assert_never(event)

    def _on_delivered(self, event: Delivered) -> None:
        self._attendance.on_sign(event.device_id)
        if event.offer.kind == "bundle":
            self._rollouts.fetched(event.device_id)
        else:
            self._rounds.blob_bytes_down += event.offer.total_bytes

    def _on_trouble(self, event: Disconnected | Hindered) -> None:
        if isinstance(event, Hindered):
            self._sink(events.BrokerHinders(reason=event.reason))
            return
        if event.final:
            raise UnavailableError(f"broker {self._plan.config.broker}: {event.reason}")
        self._sink(events.BrokerDisconnected(reason=event.reason))

    def _on_message(self, incoming: PeerMessage) -> None:
        device_id, message = incoming.device_id, incoming.message
        try:
            if isinstance(message, Presence):
                self._attendance.on_presence(device_id, message)
                self._rollouts.on_presence(device_id, message)
            elif isinstance(message, Heartbeat):
                self._attendance.on_heartbeat(device_id, message)
            elif isinstance(message, TransferOffer):
                self._on_offer(device_id, message)
            elif isinstance(message, Announcement):
                self._on_announcement(message, retained=incoming.retained)
        except RefusedError as error:
            self._reporter.refused(device_id, error)

    def _on_announcement(self, announcement: Announcement, *, retained: bool) -> None:
        if retained or announcement.boot_id == self._announcer.boot_id:
            return
        again = self._lease is not None and self._lease.outranked(announcement.epoch)
        self._reporter.another_coordinator(announcement)
        if again:
            self._rounds.announce()

    def _on_offer(self, device_id: str, offer: TransferOffer) -> None:
        self._attendance.on_sign(device_id)
        if self._ledger.has_accepted(device_id, offer):
            # The endpoint forgets decisions; it must not fetch a counted update again.
            self._endpoint.remember(offer.transfer_id)
            self._endpoint.expect(device_id, offer)
            return
        refused = self._refusal(device_id, offer)
        if refused is None:
            broken = self._endpoint.expect(device_id, offer)
            if broken is not None:
                self._reporter.rejected(device_id, offer, broken)
        else:
            self._reject(device_id, offer, refused)

    def _on_received(self, event: Received) -> None:
        device_id, offer = event.device_id, event.offer
        self._attendance.on_sign(device_id)
        if self._arrivals.holds(device_id):
            self._rounds.accept_arrived()  # of two updates of a device the first counts
        refused = self._refusal(device_id, offer)
        if refused is not None:
            self._reject(device_id, offer, refused)
            return
        try:
            arrival = self._admit(event)
        except RefusedError as error:
            self._reject(device_id, offer, error)
            self._rollouts.round_failed(device_id, error.rule, str(error))
            self._rounds.apply(schedule.UpdateRefused(device_id))
            return
        self._arrivals.add(event, arrival, time.monotonic())

    def _admit(self, event: Received) -> ArrivedUpdate:
        """Decode and check an update that has arrived; its device now has its payload.

        Raises:
            RefusedError: it breaks a rule.
        """
        device_id, offer, rounds = event.device_id, event.offer, self._rounds
        counted_in = rounds.state.round_id
        baseline = rounds.payloads.update_baseline(offer.round_id, device_id, offer.coding)
        decoded = rounds.server.admit(
            event.path.read_bytes(),
            offer.coding,
            baseline=baseline,
            client_id=device_id,
            round_id=offer.round_id,
            class_counts=self._attendance.class_counts(device_id),
            num_examples=self._registry.num_examples(device_id),
            bounds=relaxed_bounds(rounds.bounds, rounds.state.attempt),
        )
        decoded = rounds.server.to_keep(decoded, baseline, counted_in)
        path = event.path
        if not (offer.coding.is_raw and decoded.is_whole):
            path = event.path.with_suffix(".raw")
            replace_whole(path, decoded.to_raw(max_bytes=rounds.server.expected.max_bytes))
        accepted = Accepted(
            device_id=device_id,
            transfer_id=offer.transfer_id,
            record=decoded.record,
            norms=decoded.norms,
        )
        reference = rounds.payloads.held_reference(device_id)
        return ArrivedUpdate(path, accepted, offer, reference, counted_in)

    def _refusal(self, device_id: str, offer: TransferOffer) -> RefusedError | None:
        if offer.kind != "update":
            return RefusedError("kind", f"expected an update, got a {offer.kind}")
        return self._rounds.refusal(device_id, offer.round_id)

    def _reject(self, device_id: str, offer: TransferOffer, error: RefusedError) -> None:
        self._endpoint.reject(device_id, offer.transfer_id, error.rule, str(error))
        self._reporter.rejected(device_id, offer, error)

    def _on_rejected(self, event: Rejected) -> None:
        if event.offer.kind == "bundle":
            self._rollouts.refused(event.device_id, event.rule, event.reason)
            return
        round_id = event.offer.round_id
        awaited = self._rounds.awaits(event.device_id, round_id)
        if awaited and self._rounds.payloads.send_otherwise(event.device_id, event.rule):
            self._rounds.invite((event.device_id,))
            return
        self._reporter.task_refused(event)
        if event.rule == "diverged":
            self._troubles.note(event.device_id, event.rule, there=True)
        self._rollouts.round_failed(event.device_id, event.rule, event.reason)
        if awaited:
            self._rounds.apply(schedule.DeviceFailed(event.device_id))

    def _switch(self) -> None:
        """End with the bundle before: the next service of the folder has the one of the ledger."""
        self.switched = True
        former, active = self._plan.bundle.digest, self._ledger.rollouts.active()
        self._sink(events.BundleSwitched(bundle=active, former=former))

    def _stop(self) -> events.Stopped:
        """End with rounds left, as the operator wants it: devices wait for the next start."""
        self._rounds.announce(hold="stopped")
        self._finish()
        return self._operation.stopped(self._rounds.state, str(self._results.path))

    def _say_goodbye(self) -> events.Finished:
        """Send every device home and wait, bounded, for what it has paid.

        A device that is away learns the end from the retained announcement, so a broker that is
        away too is waited for.
        """
        self._rollouts.finish(self._rounds.state)
        self._await_broker()
        self._send_home()
        until = time.monotonic() + _BROKER_S
        while self._announcer.idle and time.monotonic() < until:
            # The lease has run out while its last record lay behind what thousands have sent.
            self._handle(self._endpoint.poll(_POLL_S))
        self._rounds.announce()
        finished = self._finish()
        self._await_acknowledgements()
        self._sink(finished)
        return finished

    def _send_home(self) -> None:
        """Tell every device that is there, and await their leaving, bounded."""
        live, until = self._registry.live, time.monotonic() + self._plan.config.liveness.farewell_s
        asked: set[str] = set()
        unasked: set[str] = set()
        looked_s = float("-inf")
        while (now := time.monotonic()) < until:
            if not unasked and now >= looked_s + _POLL_S:
                unasked, looked_s = set(live) - asked, now
            # No more than the link takes: what waits in it would be lost with its end, and the
            # announcement of the end stands behind it.
            for device_id in list(islice(unasked, self._endpoint.room)):
                unasked.discard(device_id)
                if self._endpoint.send_finish(device_id, self._rounds.finish_task()):
                    asked.add(device_id)
            if asked and not live:
                break
            more = self._endpoint.connected and unasked
            self._handle(self._endpoint.poll(_FAREWELL_POLL_S if more else _POLL_S))

    def _await_acknowledgements(self) -> None:
        """The broker has the last announcement, behind all that was published before it.

        What it has sent meanwhile has to be read first: of thousands of devices that is much.
        """
        until = time.monotonic() + _BROKER_S
        while self._endpoint.unacknowledged and time.monotonic() < until:
            self._handle(self._endpoint.poll(_FAREWELL_POLL_S))

    def _finish(self) -> events.Finished:
        """Write the final global state and the final results."""
        record = self._results.write()
        aggregated = len(record.aggregated)
        self._save_model(aggregated)
        for one in troubles(record.rounds, record.outcome):
            self._sink(events.ResultsTrouble(what=one.what, remedy=one.remedy))
        return events.Finished(
            rounds=aggregated,
            idle=sum(one.trained == 0 for one in record.aggregated),
            scores=record.scores,
            outcome=record.outcome and record.outcome.summary,
            result=str(self._results.path),
        )

    def _save_model(self, aggregated: int) -> None:
        state = self._rounds.server_state
        model = self._plan.strategy.server_model(state)
        tensors = state.tensors if model is None else {**model.params, **model.buffers}
        metadata = {
            "strategy": self._plan.strategy.description.name,
            "round_id": str(aggregated),
            "content": "server state" if model is None else "model",
        }
        folder = self._ledger.folder
        write_whole(folder / "global.safetensors", blobs.encode(tensors, metadata))
        sync_folder(folder)

    def _await_broker(self) -> None:
        until = time.monotonic() + _BROKER_S
        while (self._announcer.idle or not self._endpoint.connected) and time.monotonic() < until:
            self._handle(self._endpoint.poll(_POLL_S))
