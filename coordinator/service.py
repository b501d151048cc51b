"""The coordinator at work: events of the wire into the state machine, its actions into effects.

One thread does everything. A transition is written to the ledger before its effects, so the
process may be killed anywhere; signals therefore need no care and simply end it.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Literal, assert_never

import msgspec

from protofleet.coordinator import events
from protofleet.coordinator.held import HeldDevices
from protofleet.coordinator.lease import Lease
from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.ledger_rows import Accepted, Totals
from protofleet.coordinator.members import Members, Revocations
from protofleet.coordinator.operation import Operation
from protofleet.coordinator.payloads import Payloads
from protofleet.coordinator.registry import Registry
from protofleet.coordinator.reported_totals import ReportedTotals
from protofleet.coordinator.reporter import Reporter
from protofleet.coordinator.results import Results
from protofleet.coordinator.roll_call import RollCall
from protofleet.durable import replace_whole, sync_folder, write_whole
from protofleet.errors import RefusedError, UnavailableError
from protofleet.federation import schedule
from protofleet.federation.claims import learned_bounds, relaxed_bounds
from protofleet.federation.schedule import RoundPhase, RoundState
from protofleet.federation.server import Server
from protofleet.federation.stragglers import share_of_work
from protofleet.tensors import blobs
from protofleet.wire.endpoint import CoordinatorEndpoint, Event
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.link import Connected, Disconnected
from protofleet.wire.messages import Announcement, Heartbeat, Presence, Task, TransferOffer
from protofleet.wire.transfer import Delivered, Received, Rejected

_POLL_S = 0.1
"""Resolution of deadlines, graces and silences."""
_TWINS = (
    "two devices have the id '{}', and each answers for the other; give each its own --store and "
    "--id (a copied store or card has the id of the first)"
)
_REFUSED_MAX = 1000
"""Devices that cannot take part and are kept for ``status``; names cost nothing to invent."""
_BROKER_S = 60.0
"""How long a finished run waits for a lost broker, to tell the devices."""


class _EndedError(Exception):
    """``Service.end`` was called."""


class Service:
    """One run of one federation; made by ``run.open_service``.

    Args:
        server: the server's half of the rounds.
        ledger: of the run folder.
        endpoint: not yet started.
        results: what is written after each round.
        sink: told what happens.
        members: of a federation with keys; who is revoked leaves.
        lease: without which another coordinator may serve the same federation.
    """

    def __init__(  # noqa: PLR0913 - its parts, each named at the call
        self,
        server: Server,
        ledger: Ledger,
        endpoint: CoordinatorEndpoint,
        *,
        results: Results,
        sink: events.Sink,
        members: Members | None = None,
        lease: Lease | None = None,
    ) -> None:
        plan = server.plan
        self._server, self._plan, self._config = server, plan, plan.config
        self._schedule = plan.schedule(lambda: self._server_state)
        self._ledger, self._endpoint = ledger, endpoint
        self._results, self._sink = results, sink
        self._revocations = None if members is None else Revocations(members)
        self._lease = lease
        self._ended = False
        self._boot_id = secrets.token_hex(8) if lease is None else lease.boot_id
        state = ledger.server_state() or plan.server_init()
        self._server_state = replace(state, round_id=max(state.round_id, ledger.next_round - 1))
        self._state = RoundState()
        self._payloads = Payloads(plan, ledger)
        self._accepted_ids = set(ledger.transfer_ids())
        self._transfers: dict[tuple[str, str], str] = {}
        self._blob_bytes_up = self._blob_bytes_down = 0
        self._reporter = Reporter(plan.config.round.deadline_s, sink)
        self._class_counts = ledger.registered()
        self._refused = ledger.devices.refused()
        self._held = HeldDevices(ledger.devices)
        self._totals = ReportedTotals(ledger)
        self._roll_call = RollCall(self._totals.known, time.monotonic())
        self._operation = Operation(ledger.control, sink)
        self._learn_bounds()
        self._registry = Registry(
            bundle=plan.bundle.digest,
            layout_hash=plan.bundle.manifest.layout_hash,
            strategy=plan.strategy.description.name,
            silent_after_s=plan.config.liveness.silent_after_s,
            num_classes=plan.model.num_classes if server.expected.class_counts else None,
        )

    def end(self) -> None:
        """Let ``run`` return soon, resumably, as a signal would; from any thread."""
        self._ended = True
        self._endpoint.wake()

    def run(self) -> events.Finished | events.Stopped | None:
        """Run all rounds that are left, or until the operator stops; the results are written then.

        Returns:
            The last event; None after ``end``.

        Raises:
            UnavailableError: the broker refuses this coordinator for good.
        """
        try:
            self._endpoint.start()
            self._tell_start()
            waiting = self._await_lease()
            self._resume()
            for event in waiting:
                self._act_on(event)
            while self._state.phase is not RoundPhase.FINISHED:
                if self._operation.ends(self._state):
                    return self._stop()
                self._handle(self._endpoint.poll(_POLL_S))
                self._watch()
            return self._say_goodbye()
        except _EndedError:
            return None
        finally:
            if self._lease is not None:
                self._lease.release()
            self._endpoint.close()

    def _tell_start(self) -> None:
        found = self._ledger.state()
        resumed = replace(found, paused=False) != RoundState()
        state, _ = self._schedule.resume(found, time.monotonic())
        self._sink(
            events.Started(
                federation=self._config.federation,
                strategy=self._plan.strategy.description.name,
                rounds=self._config.rounds,
                round_id=state.round_id,
                seed=self._config.seed,
                resumed=resumed,
                bundle=self._plan.bundle.digest,
                sequence=self._plan.bundle.manifest.sequence,
                run_dir=str(self._ledger.folder),
            )
        )

    def _await_lease(self) -> list[Event]:
        """What has come until no other coordinator can be acting, or until the operator ends it."""
        passed: list[Event] = []
        lease = self._lease
        while lease is not None and lease.idle and not self._operation.ends(self._state):
            self._check_ended()
            passed = lease.pass_on(self._endpoint.poll(_POLL_S))
            if lease.idle and passed:
                self._act_on(passed.pop())  # the link is down: no more can come of it
            self._operation.news()
        return passed

    def _resume(self) -> None:
        self._state, actions = self._schedule.resume(self._ledger.state(), time.monotonic())
        if self._state.phase is RoundPhase.OPEN:
            self._reporter.opened(self._state, resumed=True)
        for action in actions:
            self._do(action)
        if self._operation.pending:
            self._obey()

    def _watch(self) -> None:
        """What comes with time alone, or from the operator."""
        now = time.monotonic()
        if self._operation.news():
            self._obey()
        if self._operation.report(self._state):
            self._announce()
        if self._idle:
            return
        for device_id in self._registry.mark_silent(now):
            self._depart(device_id, "silent")
        if self._revocations is not None:
            for device_id, serial in self._revocations.take(now):
                if self._endpoint.end_session(device_id, serial):
                    self._registry.forget(device_id)
                    self._depart(device_id, "revoked")
        self._apply(schedule.Tick())
        self._held.flush(now)
        self._reporter.watch(now)
        self._reporter.waiting(self._state, self._schedule.needed_devices(self._state), now)

    def _obey(self) -> None:
        """Take the operator's order, which is in the ledger."""
        rounds = self._operation.rounds
        if rounds > self._config.rounds:
            self._config = msgspec.structs.replace(self._config, rounds=rounds)
            self._plan = replace(self._plan, config=self._config)
            self._server = replace(self._server, plan=self._plan)
            self._schedule = self._plan.schedule(lambda: self._server_state)
            self._sink(events.RoundsRaised(rounds=rounds))
            self._announce()
        self._apply(self._operation.event())
        self._operation.taken()

    @property
    def _idle(self) -> bool:
        """Whether another coordinator may have the lease: nothing is done until that is known."""
        return self._lease is not None and self._lease.idle

    @property
    def _epoch(self) -> int:
        return 0 if self._lease is None else self._lease.epoch

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
                self._blob_bytes_down += event.offer.total_bytes
                self._on_sign(event.device_id)
            case Connected():
                self._sink(events.BrokerConnected(protocol=event.protocol))
                self._roll_call.begin(time.monotonic())
                self._announce()
            case Disconnected():
                self._on_disconnected(event)
            case PeerMessage():
                self._on_message(event)
            case Received():
                self._on_received(event)
            case Rejected():
                self._on_rejected(event)
            case Ignored():
                self._reporter.refused(event.device_id, RefusedError(event.rule, event.detail))
                if event.rule == "session":
                    self._on_unknown()
            case _:
                assert_never(event)

    def _on_disconnected(self, event: Disconnected) -> None:
        if event.final:
            raise UnavailableError(f"broker {self._config.broker}: {event.reason}")
        self._sink(events.BrokerDisconnected(reason=event.reason))

    def _on_message(self, incoming: PeerMessage) -> None:
        device_id, message = incoming.device_id, incoming.message
        try:
            if isinstance(message, Presence):
                self._on_presence(device_id, message)
            elif isinstance(message, Heartbeat):
                self._on_heartbeat(device_id, message)
            elif isinstance(message, TransferOffer):
                self._on_offer(device_id, message)
            elif isinstance(message, Announcement):
                self._on_announcement(message, retained=incoming.retained)
        except RefusedError as error:
            self._reporter.refused(device_id, error)

    def _on_presence(self, device_id: str, presence: Presence) -> None:
        try:
            device = self._registry.presence(device_id, presence, time.monotonic())
        except RefusedError as error:
            self._refuse(device_id, error)
            return
        self._tell_twins(device_id, presence)
        news = self._held.note(device_id, device.held)
        if device.fits and device_id in self._refused:
            self._refused.remove(device_id)
            self._ledger.devices.forget_refusal(device_id)
        if device.held:
            self._apply(schedule.DeviceDeparted(device_id))
            if news:
                self._reporter.held(device_id, device.held, len(self._registry.live))
        elif device.live:
            self._register(device_id, presence.class_counts)
            self._appear(device_id)
        else:
            unregistered = presence.status == "online"
            self._depart(device_id, "unregistered" if unregistered else presence.status)

    def _refuse(self, device_id: str, error: RefusedError) -> None:
        """It cannot take part: say so, and keep for ``status`` what was said."""
        self._held.note(device_id, ())
        self._apply(schedule.DeviceDeparted(device_id))
        if self._reporter.may_answer(device_id, error):
            # What it got when it subscribed may be an older run's; this one it can trust.
            self._announce()
        if self._reporter.refused(device_id, error) and len(self._refused) < _REFUSED_MAX:
            self._refused.add(device_id)
            self._ledger.devices.note_refusal(device_id, error)

    def _tell_twins(self, device_id: str, message: Presence | Heartbeat) -> None:
        if self._registry.has_twin(device_id, message):
            self._reporter.refused(device_id, RefusedError("device-id", _TWINS.format(device_id)))

    def _on_announcement(self, announcement: Announcement, *, retained: bool) -> None:
        if retained or announcement.boot_id == self._boot_id:
            return
        if self._lease is not None:
            self._lease.outranked(announcement.epoch)
        if self._reporter.another_coordinator(announcement) and announcement.epoch < self._epoch:
            self._announce()  # it was cut off, and does not know yet: what is retained must be ours

    def _register(self, device_id: str, class_counts: tuple[int, ...]) -> None:
        if self._server.expected.class_counts and self._class_counts.get(device_id) != class_counts:
            self._ledger.register(device_id, class_counts)
            self._class_counts[device_id] = class_counts

    def _on_heartbeat(self, device_id: str, heartbeat: Heartbeat) -> None:
        self._registry.check_heartbeat(device_id, heartbeat)
        self._on_sign(device_id)
        known = self._registry.fits(device_id)
        if known:
            self._tell_twins(device_id, heartbeat)
        if known and heartbeat.round_id <= self._state.round_id:
            totals = Totals(
                bytes_up=heartbeat.bytes_up,
                bytes_down=heartbeat.bytes_down,
                peak_rss_bytes=heartbeat.peak_rss_bytes,
            )
            self._totals.note(device_id, heartbeat.round_id, totals, time.monotonic())

    def _on_sign(self, device_id: str) -> None:
        """The device lives, whatever was said of it; one that is not known is asked who it is."""
        now = time.monotonic()
        if self._registry.heard(device_id, now):
            self._appear(device_id)
        elif not self._registry.fits(device_id):
            self._on_unknown()

    def _on_unknown(self) -> None:
        """Ask a device that was heard, and has not presented itself, to do so."""
        if self._roll_call.heard_unknown(len(self._registry.live), time.monotonic()):
            self._announce()

    def _on_offer(self, device_id: str, offer: TransferOffer) -> None:
        self._on_sign(device_id)
        if offer.transfer_id in self._accepted_ids:
            # The endpoint forgets old decisions; it must not fetch a counted update again.
            self._endpoint.remember(offer.transfer_id)
            self._endpoint.expect(device_id, offer)
            return
        refused = self._refusal(device_id, offer)
        if refused is None:
            self._note_transfer(device_id, offer)
            self._endpoint.expect(device_id, offer)
        else:
            self._reject(device_id, offer, refused)

    def _on_received(self, event: Received) -> None:
        device_id, offer = event.device_id, event.offer
        self._on_sign(device_id)
        refused = self._refusal(device_id, offer)
        if refused is not None:
            self._reject(device_id, offer, refused)
            return
        try:
            accepted = self._admit(event)
        except RefusedError as error:
            self._reject(device_id, offer, error)
            self._apply(schedule.UpdateRefused(device_id))
            return
        self._accepted_ids.add(offer.transfer_id)
        self._forget_transfer(device_id, offer)
        self._blob_bytes_up += offer.total_bytes
        self._endpoint.accept(offer.transfer_id)
        self._sink(
            events.UpdateReceived(
                round_id=offer.round_id,
                device_id=device_id,
                bytes=offer.total_bytes,
                num_examples=accepted.record.num_examples,
                loss=accepted.record.loss,
                delivered=len(self._state.delivered) + 1,
                cohort=len(self._state.cohort),
            )
        )
        self._apply(schedule.UpdateStored(device_id))

    def _admit(self, event: Received) -> Accepted:
        """Decode, check and spool an update that has arrived; its device now has its payload.

        Raises:
            RefusedError: it breaks a rule.
        """
        device_id, offer = event.device_id, event.offer
        decoded = self._server.admit(
            event.path.read_bytes(),
            offer.coding,
            baseline=self._payloads.update_baseline(self._server_state, device_id, offer.coding),
            client_id=device_id,
            round_id=offer.round_id,
            class_counts=self._class_counts.get(device_id),
            num_examples=self._registry.num_examples(device_id),
            bounds=relaxed_bounds(self._bounds, self._state.attempt),
        )
        path = event.path
        if not (offer.coding.is_raw and decoded.is_whole):
            path = event.path.with_suffix(".raw")
            replace_whole(path, decoded.to_raw(max_bytes=self._server.expected.max_bytes))
        accepted = Accepted(
            device_id=device_id,
            transfer_id=offer.transfer_id,
            record=decoded.record,
            norms=decoded.norms,
        )
        self._ledger.accept(
            path, accepted, offer=offer, reference=self._payloads.held_reference(device_id)
        )
        return accepted

    def _refusal(self, device_id: str, offer: TransferOffer) -> RefusedError | None:
        if offer.kind != "update":
            return RefusedError("kind", f"expected an update, got a {offer.kind}")
        return self._schedule.refusal(self._state, device_id, offer.round_id)

    def _reject(self, device_id: str, offer: TransferOffer, error: RefusedError) -> None:
        self._forget_transfer(device_id, offer)
        self._endpoint.reject(device_id, offer.transfer_id, error.rule, str(error))
        self._reporter.rejected(device_id, offer.round_id, error)

    def _note_transfer(self, device_id: str, offer: TransferOffer) -> None:
        """To be cancelled at the round's end; of each device the latest, as on the wire."""
        self._transfers[device_id, offer.kind] = offer.transfer_id

    def _forget_transfer(self, device_id: str, offer: TransferOffer) -> None:
        if self._transfers.get((device_id, offer.kind)) == offer.transfer_id:
            del self._transfers[device_id, offer.kind]

    def _on_rejected(self, event: Rejected) -> None:
        round_id, state = event.offer.round_id, self._state
        self._forget_transfer(event.device_id, event.offer)
        is_open = state.phase is RoundPhase.OPEN and round_id == state.round_id
        awaited = is_open and event.device_id in state.outstanding
        if awaited and self._payloads.send_otherwise(event.device_id, event.rule):
            self._invite((event.device_id,))
            return
        self._reporter.task_refused(event)
        if is_open:
            self._apply(schedule.DeviceFailed(event.device_id))

    def _appear(self, device_id: str) -> None:
        if device_id not in self._state.live:
            self._reporter.online(device_id, len(self._registry.live))
        self._apply(schedule.DeviceAppeared(device_id))

    def _depart(self, device_id: str, reason: str) -> None:
        known = device_id in self._state.live
        self._held.note(device_id, ())
        self._apply(schedule.DeviceDeparted(device_id))
        if known:
            self._reporter.offline(device_id, reason, len(self._registry.live))

    def _apply(self, event: schedule.ScheduleEvent) -> None:
        self._state, actions = self._schedule.step(self._state, event, time.monotonic())
        for action in actions:
            self._do(action)

    def _do(self, action: schedule.ScheduleAction) -> None:
        match action:
            case schedule.OpenRound(round_id, cohort, size, final):
                self._ledger.open_round(round_id, cohort, time.time(), size=size, final=final)
                self._blob_bytes_up = self._blob_bytes_down = 0
                self._announce()
                self._reporter.opened(self._state, resumed=False)
                self._invite(cohort)
            case schedule.Invite(device_id):
                self._invite((device_id,))
            case schedule.ExtendRound():
                self._extend(action)
            case schedule.CloseRound():
                self._close(action)
            case schedule.Finish():
                pass
            case _:
                assert_never(action)

    def _invite(self, clients: tuple[str, ...]) -> None:
        task = Task(
            task="train",
            round_id=self._state.round_id,
            federation=self._config.federation,
            strategy=self._plan.strategy.description.name,
            settings=self._plan.settings,
            seed=self._config.seed,
            deadline_s=max(self._state.deadline - time.monotonic(), 0.0),
            final=self._state.final,
            update_codec=self._config.codec.updates.name,
            update_keep=self._config.codec.keep,
            scores=self._plan.sends.scores,
            counts=self._plan.sends.counts,
            epoch=self._epoch,
        )
        self._totals.invited(clients)
        for device_id in clients:
            payload = self._payloads.payload_for(self._server_state, device_id)
            offer = self._endpoint.send_task(
                device_id,
                msgspec.structs.replace(task, work=self._work_of(device_id)),
                payload.path,
                payload.coding,
                most_chunk_bytes=self._registry.chunk_bytes(device_id),
            )
            self._note_transfer(device_id, offer)

    def _work_of(self, device_id: str) -> float:
        """The share of its training that a device is asked for in the open round."""
        settings, state = self._config.stragglers, self._state
        if settings.budget_s is None or state.final:
            return 1.0
        return share_of_work(settings, self._ledger.devices.past_rounds(device_id, state.round_id))

    def _extend(self, action: schedule.ExtendRound) -> None:
        self._ledger.extend_round(action.round_id, action.attempt, action.added)
        self._reporter.extended(self._state, action)
        self._invite(tuple(c for c in self._state.outstanding if c in self._state.live))

    def _close(self, action: schedule.CloseRound) -> None:
        """Aggregate, score and commit; done again after a crash, it gives the same bits."""
        round_id, cut_off = action.round_id, bool(self._state.outstanding)
        self._ledger.close_round(round_id)
        for transfer_id in self._transfers.values():
            self._endpoint.cancel(transfer_id)
        self._transfers.clear()
        self._payloads.clear()
        accepted = self._ledger.accepted(round_id)
        before = self._server_state
        outcome = self._server.aggregate(
            before,
            round_id,
            self._ledger.updates(round_id),
            accepted,
            final=action.final,
            noise_seed=self._ledger.noise.of_round,
        )
        self._server_state = outcome.state
        records = [one.record for one in accepted]
        scores = self._server.score(self._server_state, records, final=action.final)
        self._ledger.commit_round(
            self._server_state,
            scores,
            time.time(),
            update_norms=self._server.update_norms(accepted),
            figures=self._server.figures(self._server_state),
            keep_states=self._config.limits.keep_states,
            privacy=self._server.spent(
                before, self._ledger.devices.most_invitations(), final=action.final
            ),
        )
        self._reporter.aggregated(round_id, outcome)
        self._learn_bounds()
        self._results.add(accepted)
        closed = msgspec.structs.asdict(self._results.write().rounds[-1])
        # Heartbeats about the last updates are still under way.
        closed["bytes_up"] = max(closed["bytes_up"], self._blob_bytes_up)
        closed["bytes_down"] = max(closed["bytes_down"], self._blob_bytes_down)
        self._sink(events.RoundClosed(**closed))
        self._apply(schedule.StateCommitted())
        if cut_off and self._state.phase is RoundPhase.WAITING:
            self._announce()  # who still trains for the closed round need not go on

    def _learn_bounds(self) -> None:
        """How far updates may go, as the rounds in the ledger show it."""
        rounds = (done.update_norms for done in self._ledger.committed())
        self._bounds = learned_bounds(rounds)

    def _stop(self) -> events.Stopped:
        """End with rounds left, as the operator wants it: devices wait for the next start."""
        self._announce(hold="stopped")
        self._finish()
        return self._operation.stopped(self._state, str(self._results.path))

    def _say_goodbye(self) -> events.Finished:
        """Send every device home and wait, bounded, for what it has paid.

        A device that is away learns the end from the retained announcement, so a broker that is
        away too is waited for.
        """
        self._await_broker()
        until = time.monotonic() + self._config.liveness.farewell_s
        asked: set[str] = set()
        while time.monotonic() < until:
            for device_id in set(self._registry.live) - asked:
                if self._endpoint.send_finish(device_id, self._finish_task()):
                    asked.add(device_id)
            if asked and not self._registry.live:
                break
            self._handle(self._endpoint.poll(_POLL_S))
        self._announce()
        finished = self._finish()
        self._sink(finished)
        return finished

    def _finish(self) -> events.Finished:
        """Write the final global state and the final results."""
        aggregated = sum(not done.final for done in self._ledger.committed())
        model = self._plan.strategy.server_model(self._server_state)
        tensors = self._server_state.tensors if model is None else {**model.params, **model.buffers}
        metadata = {
            "strategy": self._plan.strategy.description.name,
            "round_id": str(aggregated),
            "content": "server state" if model is None else "model",
        }
        folder = self._ledger.folder
        write_whole(folder / "global.safetensors", blobs.encode(tensors, metadata))
        sync_folder(folder)
        record = self._results.write()
        return events.Finished(
            rounds=aggregated, scores=record.scores, result=str(self._results.path)
        )

    def _await_broker(self) -> None:
        until = time.monotonic() + _BROKER_S
        while (self._idle or not self._endpoint.connected) and time.monotonic() < until:
            self._handle(self._endpoint.poll(_POLL_S))

    def _finish_task(self) -> Task:
        return Task(
            task="finish",
            round_id=self._state.round_id,
            federation=self._config.federation,
            epoch=self._epoch,
        )

    def _announce(self, *, hold: str = "") -> None:
        if self._idle:
            return
        phase: Literal["waiting", "training", "finished"] = "training"
        if self._state.phase is RoundPhase.WAITING:
            phase = "waiting"
        elif self._state.phase is RoundPhase.FINISHED:
            phase = "finished"
        self._endpoint.publish(
            Announcement(
                federation=self._config.federation,
                boot_id=self._boot_id,
                phase=phase,
                round_id=self._state.round_id,
                rounds=self._config.rounds,
                strategy=self._plan.strategy.description.name,
                bundle=self._plan.bundle.digest,
                layout_hash=self._plan.bundle.manifest.layout_hash,
                roll_call=self._roll_call.number,
                spread_s=self._roll_call.spread_s,
                epoch=self._epoch,
                hold=hold or self._operation.hold(self._state),
            )
        )
