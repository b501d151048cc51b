"""Who takes part: what devices say of themselves, as events of the schedule and in the ledger."""

from __future__ import annotations

import time

from protofleet.coordinator.devices.sightings import Sightings
from protofleet.coordinator.membership.held import HeldDevices
from protofleet.coordinator.parts import Devices, Run
from protofleet.coordinator.rounds import Rounds
from protofleet.errors import RefusedError
from protofleet.federation.schedules import schedule
from protofleet.wire.events import Ignored
from protofleet.wire.messages import Heartbeat, Presence
from protofleet.wire.mqtt.usage import usage_of

_TWINS = (
    "two devices have the id '{}', and each answers for the other; give each its own --store and "
    "--id (a copied store or card has the id of the first)"
)
_OF_ITSELF = frozenset({"revoked", "replay"})
"""Rules of refusals that an announcement tells the device itself."""
_REFUSED_MAX = 1000
"""Devices that cannot take part and are kept for ``status``; names cost nothing to invent."""


class Attendance:
    """Takes presences, heartbeats and other signs of devices.

    Args:
        rounds: told who comes and goes.
        run: with the ledger.
        devices: what is known of them, and told what they say.
    """

    def __init__(self, rounds: Rounds, run: Run, devices: Devices) -> None:
        self._rounds, self._ledger, self._reporter = rounds, run.ledger, run.reporter
        self._registry, self._usage = devices.registry, devices.usage
        self._roll_call, self._receipts = devices.roll_call, devices.receipts
        self._troubles, ledger = devices.troubles, run.ledger
        self._class_counts = ledger.devices.registered()
        self._refused = ledger.devices.refused()
        self._held = HeldDevices(ledger.devices)
        self._sightings = Sightings(ledger.folder)

    def close(self) -> None:
        """Write who was heard last."""
        self._sightings.close()

    def class_counts(self, device_id: str) -> tuple[int, ...] | None:
        """Of each class, as the device has registered last; None: it has not."""
        return self._class_counts.get(device_id)

    def watch(self, now: float) -> None:
        """What comes with time alone (``now``: monotonic seconds)."""
        for device_id in self._registry.mark_silent(now):
            self._depart(device_id, "silent")

    def flush(self, now: float) -> None:
        """Write who is held and who was heard, where that changed (``now``: monotonic seconds)."""
        self._held.flush(now)
        self._sightings.flush(now)

    def revoked(self, device_id: str) -> None:
        """Its grant is no longer in force."""
        self._registry.forget(device_id)
        self._depart(device_id, "revoked")

    def on_presence(self, device_id: str, presence: Presence) -> None:
        """A device says who it is, or that it leaves."""
        try:
            device = self._registry.presence(device_id, presence, time.monotonic())
        except RefusedError as error:
            self._refuse(device_id, error)
            return
        self._tell_twins(device_id, presence)
        try:
            self._rounds.take_ratios(device_id, presence)
        except RefusedError as error:
            self._reporter.refused(device_id, error)
        news = self._held.note(device_id, device.held)
        if device.fits and presence.status == "online":
            self._troubles.note(device_id, "scale", there="scale" in (presence.doubts or ()))
        if device.fits and device_id in self._refused:
            self._refused.remove(device_id)
            self._ledger.devices.forget_refusal(device_id)
        if device.held:
            self._sightings.stands(device_id, "held", device)
            self._rounds.apply(schedule.DeviceDeparted(device_id))
            if news:
                self._reporter.held(device_id, device.held, len(self._registry.live))
        elif device.live:
            self._register(device_id, presence.class_counts)
            self._sightings.stands(device_id, "online", device)
            self._appear(device_id)
        else:
            unregistered = presence.status == "online"
            self._depart(device_id, "unregistered" if unregistered else presence.status)

    def _refuse(self, device_id: str, error: RefusedError) -> None:
        """It cannot take part: say so, and keep for ``status`` what was said."""
        self._held.note(device_id, ())
        self._rounds.apply(schedule.DeviceDeparted(device_id))
        if self._reporter.may_answer(device_id, error):
            # What it got when it subscribed may be an older run's; this one it can trust.
            self._rounds.announce()
        self._sightings.stands(device_id, "refused")
        if self._reporter.refused(device_id, error) and len(self._refused) < _REFUSED_MAX:
            self._refused.add(device_id)
            self._ledger.devices.note_refusal(device_id, error)

    def _tell_twins(self, device_id: str, message: Presence | Heartbeat) -> None:
        if self._registry.has_twin(device_id, message):
            self._reporter.refused(device_id, RefusedError("device-id", _TWINS.format(device_id)))

    def _register(self, device_id: str, class_counts: tuple[int, ...]) -> None:
        asked = self._rounds.server.expected.class_counts
        if asked and self._class_counts.get(device_id) != class_counts:
            self._ledger.devices.register(device_id, class_counts)
            self._class_counts[device_id] = class_counts

    def on_heartbeat(self, device_id: str, heartbeat: Heartbeat) -> None:
        """A device lives and tells its counters; RefusedError: it cannot be one of its."""
        self._registry.check_heartbeat(device_id, heartbeat)
        self.on_sign(device_id)
        known = self._registry.fits(device_id)
        if known:
            self._sightings.beat(device_id, heartbeat)
            self._receipts.on_heartbeat(device_id, heartbeat)
            self._tell_twins(device_id, heartbeat)
        if known and heartbeat.round_id <= self._rounds.state.round_id:
            usage = usage_of(heartbeat)
            self._usage.note(device_id, heartbeat.round_id, usage, time.monotonic())
            if heartbeat.log:
                self._reporter.device_log(device_id, heartbeat.round_id, heartbeat.log)

    def on_sign(self, device_id: str) -> None:
        """The device lives, whatever was said of it; one that is not known is asked who it is."""
        now = time.monotonic()
        self._sightings.heard(device_id)
        if self._registry.heard(device_id, now):
            self._sightings.stands(device_id, "online")
            self._appear(device_id)
        elif not self._registry.fits(device_id):
            self.on_unknown()

    def on_ignored(self, event: Ignored) -> None:
        """What came of a device broke a rule of the wire."""
        error = RefusedError(event.rule, event.detail)
        self._reporter.refused(event.device_id, error)
        if event.rule == "session":
            self.on_unknown()
        elif event.rule in _OF_ITSELF and self._reporter.may_answer(event.device_id, error):
            self._rounds.announce()  # the device itself is to know

    def on_unknown(self) -> None:
        """Ask a device that was heard, and has not presented itself, to do so."""
        if self._roll_call.heard_unknown(len(self._registry.live), time.monotonic()):
            self._rounds.announce()

    def _appear(self, device_id: str) -> None:
        if device_id not in self._rounds.state.live:
            self._reporter.online(device_id, len(self._registry.live))
        self._rounds.apply(schedule.DeviceAppeared(device_id))

    def _depart(self, device_id: str, reason: str) -> None:
        known = device_id in self._rounds.state.live
        self._sightings.stands(device_id, reason)
        self._held.note(device_id, ())
        self._rounds.apply(schedule.DeviceDeparted(device_id))
        if known:
            self._reporter.offline(device_id, reason, len(self._registry.live))
