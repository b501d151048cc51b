"""Whether a device may take part now: its owner's policy, watched beside the training.

A thread of its own asks the platform, because its programs may take seconds to answer. The policy's
file is read again when it changes; one that cannot be read leaves the policy before in force.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protofleet.edge.owner.conditions import PlatformReader, local_minute
from protofleet.edge.owner.data_use import DataUse
from protofleet.edge.owner.policy import (
    ASKABLE,
    NO_TRANSFER,
    POLICY_FILE,
    Moment,
    Platform,
    Policy,
    Unmet,
    read_policy,
    unmet_conditions,
    untold,
)
from protofleet.edge.state.counters import ByteCounters
from protofleet.edge.state.store import Store, stored_identity
from protofleet.errors import InputError, RefusedError

_log = logging.getLogger(__name__)

CHECK_S = 20.0
"""Between two looks, as long as a coordinator waits for a member that is gone."""
DATA_FILE = "data_use.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """Where the owner's policy stands.

    Attributes:
        path: of the file, which need not be there.
        over: keys that the command line says in its place.
    """

    path: Path
    over: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Policy:
        """The policy in force; InputError: it cannot be one."""
        return read_policy(self.path, self.over)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLook:
    """What one look has found.

    Attributes:
        policy: in force.
        platform: what was told.
        moment: the device's own figures.
    """

    policy: Policy = field(default_factory=Policy)
    platform: Platform = field(default_factory=Platform)
    moment: Moment = field(default_factory=Moment)

    @property
    def unmet(self) -> tuple[Unmet, ...]:
        """What forbids that the device takes part; empty: it may."""
        return unmet_conditions(self.policy, self.platform, self.moment)

    @property
    def untold(self) -> tuple[str, ...]:
        """Conditions that are asked for and not told."""
        return untold(self.policy, self.platform)


class Participation:
    """What holds a device now, and whether that is news to its agent.

    One that has no policy; ``news`` is for the agent's thread alone.

    Attributes:
        storage: that the disk takes no writes, which no policy asks for.
    """

    def __init__(self) -> None:
        self.storage: Unmet | None = None
        self._unmet: tuple[Unmet, ...] = ()
        self._known: tuple[str, ...] = ()

    def start(self, wake: Callable[[], None]) -> None:
        """Watch from now on; ``wake`` is called where there may be news."""

    def close(self) -> None:
        """Watch no longer."""

    def expect(self, round_bytes: int) -> None:
        """A round more takes about so many bytes."""

    def news(self) -> bool:
        """Whether other conditions hold the device than when this was asked last."""
        before, self._known = self._known, self.held
        return self._known != before

    @property
    def held(self) -> tuple[str, ...]:
        """The words of the conditions that hold the device; none: it may take part."""
        return tuple(one.condition for one in self._now)

    @property
    def reason(self) -> str:
        """For people; empty: nothing holds it."""
        return "; ".join(one.reason for one in self._now)

    @property
    def may_transfer(self) -> bool:
        """Whether a round's payload may come and its update go."""
        return NO_TRANSFER.isdisjoint(self.held)

    @property
    def refusal(self) -> RefusedError | None:
        """What a task is refused with; None: it may be taken."""
        return RefusedError("policy", f"held: {self.reason}") if self._now else None

    @property
    def _now(self) -> tuple[Unmet, ...]:
        return self._unmet if self.storage is None else (*self._unmet, self.storage)


class WatchedParticipation(Participation):
    """Looks at the platform every ``CHECK_S`` seconds.

    Args:
        source: of the policy.
        reader: of the platform.
        data: of the day and the month.
        total_bytes: what the device has ever sent and received.

    Raises:
        InputError: the policy cannot be one.
    """

    def __init__(
        self,
        source: PolicySource,
        reader: PlatformReader,
        data: DataUse,
        total_bytes: Callable[[], int],
    ) -> None:
        super().__init__()
        self._source, self._reader = source, reader
        self._data, self._total_bytes = data, total_bytes
        self._policy, self._policy_stamp = source.read(), _stamp(source.path)
        self._round_bytes, self._last = 0, PolicyLook()
        self._untold: tuple[str, ...] = ()
        self._look_now, self._closed = threading.Event(), False
        self.look()

    def start(self, wake: Callable[[], None]) -> None:
        """Watch from now on; ``wake`` is called where there may be news."""
        threading.Thread(target=self._watch, args=(wake,), name="policy", daemon=True).start()

    def close(self) -> None:
        """Watch no longer; a program that is being asked is not waited for."""
        self._closed = True
        self._look_now.set()

    def expect(self, round_bytes: int) -> None:
        """A round more takes about so many bytes; what follows from it counts at once."""
        self._round_bytes, last = round_bytes, self._last
        self._unmet = replace(last, moment=replace(last.moment, round_bytes=round_bytes)).unmet

    def look(self) -> PolicyLook:
        """Find out what holds the device now."""
        self._read_again()
        now = time.localtime()
        day, month = self._data.used(self._total_bytes(), now)
        found = PolicyLook(
            policy=self._policy,
            platform=self._reader.read(self._policy.asked),
            moment=Moment(
                minute=local_minute(now),
                day_bytes=day,
                month_bytes=month,
                round_bytes=self._round_bytes,
            ),
        )
        if found.untold != self._untold:
            self._untold = found.untold
            self._tell_untold()
        self._last, self._unmet = found, found.unmet
        return found

    def _watch(self, wake: Callable[[], None]) -> None:
        while not self._closed:
            before = self.held
            try:
                self.look()
            except Exception:  # noqa: BLE001 - the device stays as it was, and looks again
                if not self._closed:
                    _log.exception("the policy could not be checked")
            if self.held != before:
                wake()
            self._look_now.wait(CHECK_S)

    def _read_again(self) -> None:
        stamp = _stamp(self._source.path)
        if stamp == self._policy_stamp:
            return
        self._policy_stamp = stamp
        try:
            self._policy = self._source.read()
        except InputError as error:
            _log.warning("%s; the policy before stays in force", error)
        else:
            _log.info("policy '%s' was read again", self._source.path)

    def _tell_untold(self) -> None:
        if self._untold:
            then = "allowed" if self._policy.unknown == "allow" else "forbidden"
            _log.warning(
                "the platform does not tell %s: taken for %s (key 'unknown' of the policy)",
                ", ".join(self._untold),
                then,
            )


def watch_policy(
    store: Store, path: Path | None, conditions: Mapping[str, Any]
) -> WatchedParticipation:
    """What the owner of the device in ``store`` asks for; arguments as in ``join.JoinOptions``.

    Raises:
        InputError: the policy cannot be one, or there is no such file.
    """
    return WatchedParticipation(
        _source(store.folder, path, conditions),
        PlatformReader(),
        DataUse(store.folder / DATA_FILE),
        lambda: sum(store.counters.totals),
    )


def look_at_policy(folder: Path, path: Path | None, conditions: Mapping[str, Any]) -> PolicyLook:
    """What the platform tells of every condition now; the store may be in use.

    Raises:
        InputError: no device's store is there, the policy cannot be one, or there is no such file.
    """
    if stored_identity(folder) is None:
        raise InputError(f"device store '{folder}': there is none; join a federation first")
    policy, now = _source(folder, path, conditions).read(), time.localtime()
    counters = ByteCounters(folder / "counters.bin")
    day, month = DataUse(folder / DATA_FILE, keeps=False).used(sum(counters.totals), now)
    counters.close()
    return PolicyLook(
        policy=policy,
        platform=PlatformReader().read(ASKABLE),
        moment=Moment(minute=local_minute(now), day_bytes=day, month_bytes=month),
    )


def _source(folder: Path, path: Path | None, conditions: Mapping[str, Any]) -> PolicySource:
    if path is not None and not path.is_file():
        raise InputError(f"policy '{path}': no such file")
    return PolicySource(path=path or folder / POLICY_FILE, over=conditions)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
