"""A whole federation on one machine: a coordinator, a fleet, and a watch over both."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from protofleet.errors import ProtofleetError, UnavailableError
from protofleet.firmware_sim.fleet import Fleet
from protofleet.firmware_sim.processes import EventFollower, spawn, stop
from protofleet.firmware_sim.profile import FleetFile
from protofleet.private_files import make_private_folder

_POLL_S = 0.1
_LAST_WORDS_S = 20.0

OnEvent = Callable[[dict[str, Any]], None]
"""Told of every event of the coordinator."""


def rehearse(  # noqa: PLR0913 - two of them named at the call
    federation: Path,
    fleet_file: FleetFile,
    run_dir: Path,
    on_event: OnEvent,
    *,
    env: Mapping[str, str] | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Run or resume a federation to its end; every process has ended when this returns or raises.

    Args:
        federation: its file, for ``protofleet coordinator run``.
        fleet_file: the devices.
        run_dir: the run folder that the federation file names; logs go there too.
        on_event: told of what the coordinator reports.
        env: additions to the coordinator's environment.
        check: called again and again; ends everything by raising what it finds wrong elsewhere.

    Raises:
        UnavailableError: no device is left.
        ProtofleetError: the coordinator ended early; its last message is quoted.
    """
    make_private_folder(run_dir, "run folder")
    events = run_dir / "output.jsonl"  # the coordinator itself writes events.jsonl
    reported = EventFollower(events, events.stat().st_size if events.exists() else 0)
    coordinator = spawn(
        [sys.executable, "-m", "protofleet", "coordinator", "run", str(federation), "--json"],
        out=events,
        log=run_dir / "log.txt",
        env=env,
    )
    try:
        with Fleet(fleet_file) as fleet:
            _watch(coordinator, fleet, reported, on_event, check)
    finally:
        stop([coordinator])


def _watch(
    coordinator: subprocess.Popen[bytes],
    fleet: Fleet,
    reported: EventFollower,
    on_event: OnEvent,
    check: Callable[[], None] | None,
) -> None:
    """Pass events on until the coordinator ends; then give the devices time to leave."""
    finished = False
    while True:
        over = coordinator.poll() is not None
        for event in reported.read():
            finished = finished or event["event"] == "finished"
            on_event(event)
        if over:
            break
        if check is not None:
            check()
        failed = [ended for ended in fleet.ended() if ended.status]
        if failed and not fleet.running():
            raise UnavailableError(
                f"no device is left: {failed[0].device_id}: {failed[0].last_words}"
            )
        time.sleep(_POLL_S)
    if not finished:
        log = reported.path.with_name("log.txt").read_text(errors="replace").splitlines()
        raise ProtofleetError(f"the coordinator ended early: {log[-1] if log else 'no message'}")
    deadline = time.monotonic() + _LAST_WORDS_S
    while fleet.running() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
