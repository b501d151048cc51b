"""What a coordinator reports while it runs, one record per event.

``protofleet coordinator run --json`` prints each as one line of JSON with ``event`` and ``time_s``
(Unix seconds); ``docs/coordinator.md`` lists them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from protofleet.federation.records import RoundRecord, Scores
from protofleet.printable import printable


class Report(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events."""


class Started(Report, frozen=True, kw_only=True, tag="started"):
    """The coordinator is ready; ``round_id`` is the next or the resumed round.

    ``sequence`` is the bundle's: devices that have had one with a larger number stay away.
    """

    federation: str
    strategy: str
    rounds: int
    round_id: int
    seed: int
    resumed: bool
    bundle: str
    sequence: int
    run_dir: str


class BrokerConnected(Report, frozen=True, kw_only=True, tag="connected"):
    """The broker is there."""

    protocol: str


class BrokerDisconnected(Report, frozen=True, kw_only=True, tag="disconnected"):
    """The broker is gone; the link tries again by itself."""

    reason: str


class BrokerHinders(Report, frozen=True, kw_only=True, tag="hindered"):
    """The broker is there, and does not let something pass: cause and remedy."""

    reason: str


class AnotherCoordinator(Report, frozen=True, kw_only=True, tag="another_coordinator"):
    """Another process announces rounds of this federation: end one of the two."""

    federation: str


class LeaseAwaited(Report, frozen=True, kw_only=True, tag="lease_awaited"):
    """Another coordinator has the lease of this federation.

    ``alive``: it was heard now, and its end is waited for; else this one takes over unless the
    other is heard within ``silent_s``.
    """

    epoch: int
    alive: bool
    silent_s: float


class LeaseLost(Report, frozen=True, kw_only=True, tag="lease_lost"):
    """Another coordinator has taken over while this one was cut off, or by its operator's wish."""

    epoch: int
    by_epoch: int


class EndsSoon(Report, frozen=True, kw_only=True, tag="ends_soon"):
    """Something ends by the calendar within thirty days, or is ``over``: certificate or grant."""

    what: str
    until_s: float
    over: bool
    remedy: str


class CertificateRenewed(Report, frozen=True, kw_only=True, tag="certificate_renewed"):
    """The coordinator's certificate was made anew, with the federation key."""

    until_s: float


class Withheld(Report, frozen=True, kw_only=True, tag="withheld"):
    """So many events of one ``kind`` were not reported in the last ``seconds``."""

    kind: str
    count: int
    seconds: float


class DeviceOnline(Report, frozen=True, kw_only=True, tag="device_online"):
    """A device is present, for the first time or again."""

    device_id: str
    live: int


class DeviceOffline(Report, frozen=True, kw_only=True, tag="device_offline"):
    """A device is absent: ``offline`` (link lost), ``left``, ``silent`` or ``unregistered``."""

    device_id: str
    reason: str
    live: int


class DeviceHeld(Report, frozen=True, kw_only=True, tag="device_held"):
    """A device is there, and its owner's ``conditions`` forbid that it takes part for now."""

    device_id: str
    conditions: tuple[str, ...]
    live: int


class DeviceRefused(Report, frozen=True, kw_only=True, tag="device_refused"):
    """A device cannot take part, or something it sent was discarded."""

    device_id: str
    rule: str
    reason: str


class Waiting(Report, frozen=True, kw_only=True, tag="waiting"):
    """A round cannot open before more devices are there; told again at growing intervals."""

    round_id: int
    live: int
    needed: int
    waited_s: float


class RoundOpened(Report, frozen=True, kw_only=True, tag="round_opened"):
    """A round has begun, or goes on after a restart; ``final``: it is the final fit.

    ``size``: with so many updates it closes, where more are invited than are needed.
    """

    round_id: int
    final: bool
    cohort: tuple[str, ...]
    delivered: int
    resumed: bool
    deadline_s: float
    size: int


class RoundExtended(Report, frozen=True, kw_only=True, tag="round_extended"):
    """The deadline passed below the quorum; the same round goes on."""

    round_id: int
    attempt: int
    delivered: int
    needed: int
    missing: tuple[str, ...]
    added: tuple[str, ...]


class UpdateReceived(Report, frozen=True, kw_only=True, tag="update_received"):
    """An update was checked and stored.

    ``round_id``: of its task; ``counted_in``: the round in which it counts, later if it was late.
    ``delivered`` of ``cohort``: updates of that round by now, and how many there may be; of a
    buffered schedule, how many its buffer holds.
    """

    round_id: int
    device_id: str
    bytes: int
    num_examples: int
    loss: float | None
    delivered: int
    cohort: int
    counted_in: int
    transfer_id: str = ""


class UpdateRejected(Report, frozen=True, kw_only=True, tag="update_rejected"):
    """An update was late, invalid or unwanted."""

    round_id: int
    device_id: str
    rule: str
    reason: str
    transfer_id: str = ""


class ClaimLimited(Report, frozen=True, kw_only=True, tag="claim_limited"):
    """What a device stated counted in part.

    ``claim``: its number of examples (``num_examples``), or the norm of a ``difference`` that was
    clipped.
    """

    round_id: int
    device_id: str
    claim: str
    stated: float
    limit: float


class UpdatesLeftOut(Report, frozen=True, kw_only=True, tag="updates_left_out"):
    """The new state would have left no room for honest updates.

    ``devices``: whose updates it was made without; none: the round's were all ``dropped`` and the
    model stays as it was.
    """

    round_id: int
    devices: tuple[str, ...]
    dropped: bool
    reason: str


class TaskRefused(Report, frozen=True, kw_only=True, tag="task_refused"):
    """A device will not take part in the round; the transfer is its task's payload."""

    round_id: int
    device_id: str
    rule: str
    reason: str
    transfer_id: str = ""


class RoundClosed(
    RoundRecord, Report, frozen=True, kw_only=True, tag_field="event", tag="round_closed"
):
    """A round is committed. Bytes: what heartbeats have reported so far, or the blobs if more."""


class Operated(Report, frozen=True, kw_only=True):
    """Base of what the operator has ordered, at ``since_s`` (Unix seconds).

    ``round_id``: the round that is open, or would be the next.
    """

    round_id: int
    since_s: float


class Pausing(Operated, frozen=True, kw_only=True, tag="pausing"):
    """The open round ends by its rules; no other opens."""


class Paused(Operated, frozen=True, kw_only=True, tag="paused"):
    """No round is open, and none opens until the operator resumes."""


class Stopping(Operated, frozen=True, kw_only=True, tag="stopping"):
    """The process ends: after the open round, or at once."""


class Continued(Operated, frozen=True, kw_only=True, tag="continued"):
    """Rounds open again."""


class RoundsRaised(Report, frozen=True, kw_only=True, tag="rounds_raised"):
    """The operator has extended the run to so many rounds."""

    rounds: int


class BundleRollout(Report, frozen=True, kw_only=True, tag="bundle_rollout"):
    """The roll-out of a bundle stands elsewhere than before.

    ``state``: ``running``, ``waiting`` (for the operator, before ``stage``), ``paused``,
    ``complete`` or ``taken_back``; ``reason``: why, if nobody asked for it.
    """

    bundle: str
    state: str
    stage: str
    reason: str


class BundleDevice(Report, frozen=True, kw_only=True, tag="bundle_device"):
    """A device is further with a bundle, or has failed: the broken ``rule`` and the ``reason``."""

    bundle: str
    device_id: str
    state: str
    rule: str
    reason: str


class BundleSwitched(Report, frozen=True, kw_only=True, tag="bundle_switched"):
    """The run has another bundle from here on; its coordinator begins anew with it."""

    bundle: str
    former: str


class Stopped(Report, frozen=True, kw_only=True, tag="stopped"):
    """The process ends as it was told to; the next start goes on with ``round_id``.

    ``open``: that round has begun.
    """

    round_id: int
    open: bool
    result: str


class Failed(Report, frozen=True, kw_only=True, tag="failed"):
    """One of several federations of a process has ended; the others go on."""

    reason: str


class StorageFailed(Report, frozen=True, kw_only=True, tag="storage_failed"):
    """The run folder's disk takes no writes: nothing is admitted and no round opens until it does.

    Nothing that was acknowledged is lost.
    """

    reason: str


class StorageBack(Report, frozen=True, kw_only=True, tag="storage_back"):
    """The disk takes writes again; the run goes on from its ledger."""

    run_dir: str


class Finished(Report, frozen=True, kw_only=True, tag="finished"):
    """All rounds are committed and the results written; in ``idle`` of them no device trained."""

    rounds: int
    idle: int = 0
    scores: Scores
    result: str


class DeviceLog(Report, frozen=True, kw_only=True, tag="device_log"):
    """The last ``lines`` of a device's log, which it sends because the round has failed on it."""

    round_id: int
    device_id: str
    lines: tuple[str, ...]


_TROUBLE = (
    BrokerDisconnected,
    BrokerHinders,
    AnotherCoordinator,
    LeaseLost,
    EndsSoon,
    Withheld,
    DeviceRefused,
    RoundExtended,
    UpdateRejected,
    ClaimLimited,
    UpdatesLeftOut,
    TaskRefused,
)


def level_of(report: Report) -> int:
    """As the levels of ``logging``: an error stops a run, a warning is to be looked at."""
    if isinstance(report, Failed | StorageFailed):
        return logging.ERROR
    return logging.WARNING if isinstance(report, _TROUBLE) else logging.INFO


Sink = Callable[[Report], None]


def to_line(report: Report, time_s: float, federation: str = "") -> str:
    """One line of JSON, safe on a terminal; with the federation where a process has several."""
    fields = msgspec.to_builtins(report)
    named = {"federation": federation} if federation else {}
    head = {"event": fields.pop("event"), "time_s": time_s, **named}
    line = msgspec.json.encode(head | fields).decode()
    return printable(line)
