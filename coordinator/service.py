"""The coordinator at work: events of the wire into the state machine, its actions into effects.

One thread does everything. A transition is written to the ledger before its effects, so the
process may be killed anywhere; signals therefore need no care and simply end it.
"""

from __future__ import annotations

import secrets
import time
from typing import Literal, assert_never

from protofleet.coordinator import events, rounds
from protofleet.coordinator._telling import Teller
from protofleet.coordinator.admission import Expected, admit
from protofleet.coordinator.closing import Closer
from protofleet.coordinator.downlink import Downlink
from protofleet.coordinator.ledger import Accepted, Ledger, Totals
from protofleet.coordinator.plan import Plan, policy_of
from protofleet.coordinator.registry import Registry
from protofleet.coordinator.rounds import Phase
from protofleet.errors import RefusedError, UnavailableError
from protofleet.wire.endpoint import CoordinatorEndpoint, Event, Ignored, PeerMessage
from protofleet.wire.link import Connected, Disconnected
from protofleet.wire.messages import Announcement, Heartbeat, Presence, Task, TransferOffer
from protofleet.wire.transfer import Delivered, Received, Rejected

_POLL_S = 0.1
"""Resolution of deadlines, graces and silences."""
_BROKER_S = 60.0
"""How long a finished run waits for a lost broker, to tell the devices."""


class Service:
    """One run of one federation; made by ``run.open_service``.

    Args:
        plan: bundle, strategy and settings.
        ledger: of the run folder.
        endpoint: not yet started.
        expected: what updates must look like.
        closer: ends rounds.
        sink: told what happens.
    """

    def __init__(  # noqa: PLR0913 - the parts it is wired from, each named at the call
        self,
        plan: Plan,
        ledger: Ledger,
        endpoint: CoordinatorEndpoint,
        *,
        expected: Expected,
        closer: Closer,
        sink: events.Sink,
    ) -> None:
        self._plan, self._config = plan, plan.config
        self._policy = policy_of(plan.config, final_fit=plan.strategy.description.final_fit)
        self._ledger, self._endpoint, self._closer = ledger, endpoint, closer
        self._expected, self._sink = expected, sink
        self._boot_id = secrets.token_hex(8)
        self._server = ledger.server_state() or plan.server_init()
        self._state = rounds.State()
        self._downlink = Downlink(plan, ledger)
        self._accepted_ids = set(ledger.transfer_ids())
        self._transfers: set[str] = set()
        self._teller = Teller(plan.config, self._policy, sink)
        self._class_counts = ledger.registered()
        self._registry = Registry(
            bundle=plan.bundle.digest,
            layout_hash=plan.bundle.manifest.layout_hash,
            silent_after_s=plan.config.liveness.silent_after_s,
            num_classes=plan.model.num_classes if expected.class_counts else None,
        )

    def run(self) -> events.Finished:
        """Run all rounds that are left; returns when the results are written.

        Raises:
            UnavailableError: the broker refuses this coordinator for good.
        """
        try:
            self._endpoint.start()
            self._resume()
            while self._state.phase is not Phase.FINISHED:
                self._handle(self._endpoint.poll(_POLL_S))
                self._watch()
            return self._say_goodbye()
        finally:
            self._endpoint.close()

    def _resume(self) -> None:
        found = self._ledger.state()
        resumed = found != rounds.State()
        self._state, actions = rounds.resume(self._policy, found, time.monotonic())
        self._sink(
            events.Started(
                federation=self._config.federation,
                strategy=self._plan.strategy.description.name,
                rounds=self._config.rounds,
                round_id=self._state.round_id,
                seed=self._config.seed,
                resumed=resumed,
                bundle=self._plan.bundle.digest,
                run_dir=str(self._ledger.folder),
            )
        )
        if self._state.phase is Phase.OPEN:
            self._teller.opened(self._state, resumed=True)
        for action in actions:
            self._do(action)

    def _watch(self) -> None:
        """What comes with time alone."""
        now = time.monotonic()
        for device_id in self._registry.fall_silent(now):
            self._depart(device_id, "silent")
        self._apply(rounds.Tick())
        self._teller.waiting(self._state)

    def _handle(self, event: Event | None) -> None:
        match event:
            case None | Delivered():
                pass
            case Connected():
                self._sink(events.Connected(protocol=event.protocol))
                self._announce()
            case Disconnected():
                if event.final:
                    raise UnavailableError(f"broker {self._config.broker}: {event.reason}")
                self._sink(events.Disconnected(reason=event.reason))
            case PeerMessage():
                self._on_message(event)
            case Received():
                self._on_received(event)
            case Rejected():
                self._on_rejected(event)
            case Ignored():
                self._teller.refused(event.device_id, RefusedError(event.rule, event.detail))
            case _:
                assert_never(event)

    def _on_message(self, incoming: PeerMessage) -> None:
        peer, message = incoming.device_id, incoming.message
        try:
            if isinstance(message, Presence):
                self._on_presence(peer, message)
            elif isinstance(message, Heartbeat):
                self._on_heartbeat(peer, message)
            elif isinstance(message, TransferOffer):
                self._on_offer(peer, message)
        except RefusedError as error:
            self._teller.refused(peer, error)

    def _on_presence(self, peer: str, presence: Presence) -> None:
        try:
            device = self._registry.presence(peer, presence, time.monotonic())
        except RefusedError as error:
            self._apply(rounds.Departed(peer))
            if self._teller.may_answer(peer, error):
                # What it got when it subscribed may be an older run's; this one it can trust.
                self._announce()
            raise
        if device.live:
            self._register(peer, presence.class_counts)
            self._appear(peer)
        else:
            unregistered = presence.status == "online"
            self._depart(peer, "unregistered" if unregistered else presence.status)

    def _register(self, peer: str, class_counts: tuple[int, ...]) -> None:
        if self._expected.class_counts and self._class_counts.get(peer) != class_counts:
            self._ledger.register(peer, class_counts)
            self._class_counts[peer] = class_counts

    def _on_heartbeat(self, peer: str, heartbeat: Heartbeat) -> None:
        if self._registry.heartbeat(peer, heartbeat, time.monotonic()):
            self._appear(peer)
        known = peer in self._registry.devices
        if known and heartbeat.round_id <= self._state.round_id:
            totals = Totals(
                bytes_up=heartbeat.bytes_up,
                bytes_down=heartbeat.bytes_down,
                peak_rss_bytes=heartbeat.peak_rss_bytes,
            )
            self._ledger.pay(peer, heartbeat.round_id, totals)

    def _on_offer(self, peer: str, manifest: TransferOffer) -> None:
        if self._registry.heard(peer, time.monotonic()):
            self._appear(peer)
        if manifest.transfer_id in self._accepted_ids:
            # The endpoint forgets old decisions; it must not fetch a counted update again.
            self._endpoint.remember(manifest.transfer_id)
            self._endpoint.expect(peer, manifest)
            return
        reason = self._refusal(peer, manifest)
        if reason is None:
            self._transfers.add(manifest.transfer_id)
            self._endpoint.expect(peer, manifest)
        else:
            self._reject(peer, manifest, reason)

    def _on_received(self, event: Received) -> None:
        peer, manifest = event.device_id, event.offer
        self._registry.heard(peer, time.monotonic())
        reason = self._refusal(peer, manifest)
        if reason is not None:
            self._reject(peer, manifest, reason)
            return
        try:
            blob = self._downlink.raw_update(event, self._server)
            record = admit(
                blob,
                self._expected,
                client_id=peer,
                round_id=manifest.round_id,
                class_counts=self._class_counts.get(peer),
            )
        except RefusedError as error:
            self._reject(peer, manifest, str(error), error.rule)
            self._apply(rounds.Failed(peer))
            return
        accepted = Accepted(client_id=peer, transfer_id=manifest.transfer_id, record=record)
        self._downlink.accept(event, blob, accepted)
        self._accepted_ids.add(manifest.transfer_id)
        self._transfers.discard(manifest.transfer_id)
        self._endpoint.accept(manifest.transfer_id)
        self._sink(
            events.UpdateReceived(
                round_id=manifest.round_id,
                device=peer,
                bytes=manifest.total_bytes,
                num_examples=record.num_examples,
                loss=record.loss,
                delivered=len(self._state.delivered) + 1,
                cohort=len(self._state.cohort),
            )
        )
        self._apply(rounds.Delivered(peer))

    def _refusal(self, peer: str, manifest: TransferOffer) -> str | None:
        if manifest.kind != "update":
            return f"expected an update, got a {manifest.kind}"
        return rounds.refusal(self._state, peer, manifest.round_id)

    def _reject(self, peer: str, manifest: TransferOffer, reason: str, rule: str = "offer") -> None:
        self._transfers.discard(manifest.transfer_id)
        self._endpoint.reject(peer, manifest.transfer_id, rule, reason)
        self._teller.rejected(peer, manifest.round_id, reason)

    def _on_rejected(self, event: Rejected) -> None:
        round_id = event.offer.round_id
        self._transfers.discard(event.offer.transfer_id)
        current = round_id == self._state.round_id and event.device_id in self._state.outstanding
        if current and self._downlink.falls_back(event.device_id, event.rule):
            self._invite((event.device_id,))
            return
        self._sink(
            events.TaskRefused(round_id=round_id, device=event.device_id, reason=event.reason)
        )
        if round_id == self._state.round_id:
            self._apply(rounds.Failed(event.device_id))

    def _appear(self, device_id: str) -> None:
        known = device_id in self._state.live
        self._apply(rounds.Appeared(device_id))
        if not known:
            live = len(self._registry.live)
            self._sink(events.DeviceOnline(device=device_id, live=live))

    def _depart(self, device_id: str, reason: str) -> None:
        known = device_id in self._state.live
        self._apply(rounds.Departed(device_id))
        if known:
            live = len(self._registry.live)
            self._sink(events.DeviceOffline(device=device_id, reason=reason, live=live))

    def _apply(self, event: rounds.Event) -> None:
        self._state, actions = rounds.step(self._policy, self._state, event, time.monotonic())
        for action in actions:
            self._do(action)

    def _do(self, action: rounds.Action) -> None:
        match action:
            case rounds.Open(round_id, cohort, final):
                self._ledger.open_round(round_id, cohort, time.time(), final=final)
                self._announce()
                self._teller.opened(self._state, resumed=False)
                self._invite(cohort)
            case rounds.Invite(client_id):
                self._invite((client_id,))
            case rounds.Extend():
                self._extend(action)
            case rounds.Close():
                self._close(action)
            case rounds.Finish():
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
        )
        for client_id in clients:
            posted = self._downlink.post(self._server, client_id)
            manifest = self._endpoint.send_task(client_id, task, posted.path, posted.coding)
            self._transfers.add(manifest.transfer_id)

    def _extend(self, action: rounds.Extend) -> None:
        self._ledger.extend_round(action.round_id, action.attempt, action.added)
        self._teller.extended(self._state, action)
        self._invite(tuple(c for c in self._state.outstanding if c in self._state.live))

    def _close(self, action: rounds.Close) -> None:
        self._ledger.close_round(action.round_id)
        for transfer_id in self._transfers:
            self._endpoint.cancel(transfer_id)
        self._transfers.clear()
        self._downlink.clear()
        self._server, closed = self._closer.close(self._server, action)
        self._sink(closed)
        self._apply(rounds.Committed())

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
        finished = self._closer.finish(self._server)
        self._sink(finished)
        return finished

    def _await_broker(self) -> None:
        until = time.monotonic() + _BROKER_S
        while not self._endpoint.connected and time.monotonic() < until:
            self._handle(self._endpoint.poll(_POLL_S))

    def _finish_task(self) -> Task:
        return Task(
            task="finish", round_id=self._state.round_id, federation=self._config.federation
        )

    def _announce(self) -> None:
        phase: Literal["waiting", "training", "finished"] = "training"
        if self._state.phase is Phase.WAITING:
            phase = "waiting"
        elif self._state.phase is Phase.FINISHED:
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
            )
        )
