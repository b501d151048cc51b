"""A federation of hundreds of rounds: whether memory and files of its processes grow with them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from protofleet.benchmarks._rows import Row
from protofleet.benchmarks.rounds import (
    HONEST,
    Process,
    start_command,
    start_device,
    write_federation,
)
from protofleet.edge.learning.meter import resident_bytes
from protofleet.errors import UnavailableError
from protofleet.firmware_sim.broker import local_broker
from protofleet.firmware_sim.processes import stop

_FLOATS = 25_000
_ROUNDS, _FIRST_LOOK = 500, 50
_QUICK_ROUNDS, _QUICK_FIRST_LOOK = 30, 10
_SILENT_S = 120.0
_WATCH_S = 0.02
_CLOSED = b'"event":"round_closed"'
_Sample = dict[str, float]


def run(*, quick: bool) -> Iterator[list[Row]]:
    """A row each for the coordinator and for one device, early on and at the end.

    Raises:
        UnavailableError: Mosquitto is not installed, or the federation stood still.
    """
    yield _rows(*((_QUICK_ROUNDS, _QUICK_FIRST_LOOK) if quick else (_ROUNDS, _FIRST_LOOK)))


def _rows(rounds: int, first_look: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name, local_broker("mosquitto") as url:
        folder = Path(name)
        # One round more, so that everybody is still there when the last look is taken.
        everyone = f"[cohort]\nminimum = {len(HONEST)}\n"
        write_federation(folder, url, _FLOATS, f"rounds = {rounds + 1}\n{everyone}")
        log = folder / "coordinator.log"
        run_it = ("coordinator", "run", str(folder / "federation.toml"), "--json")
        processes = [start_command(log, *run_it)]
        try:
            processes += [start_device(folder, url, one) for one in HONEST]
            watched = {
                "coordinator": (processes[0], folder / "run"),
                "device": (processes[1], folder / HONEST[0]),
            }
            early = _look_after(first_look, log, watched)
            late = _look_after(rounds, log, watched)
        finally:
            stop(processes)
    return [
        Row(
            bench="soak",
            case=f"{who}, {len(HONEST)} devices, {_FLOATS:,} floats",
            ratio=round(late[who]["memory_mb"] / early[who]["memory_mb"], 3),
            details={
                f"{name}_at_{number}": value
                for number, found in ((first_look, early), (rounds, late))
                for name, value in found[who].items()
            },
        )
        for who in watched
    ]


def _look_after(
    rounds: int, log: Path, watched: dict[str, tuple[Process, Path]]
) -> dict[str, _Sample]:
    """What the processes hold once so many rounds are closed."""
    seen, since = 0, time.monotonic()
    while (closed := log.read_bytes().count(_CLOSED)) < rounds:
        if closed > seen:
            seen, since = closed, time.monotonic()
        ended = any(process.poll() is not None for process, _ in watched.values())
        if ended or time.monotonic() - since > _SILENT_S:
            raise UnavailableError(
                f"soak: stands still after {closed} of {rounds} rounds: {log.read_text()[-600:]}"
            )
        time.sleep(_WATCH_S)
    return {who: _sample(*one) for who, one in watched.items()}


def _sample(process: Process, folder: Path) -> _Sample:
    sizes = list(_file_sizes(folder))
    return {
        "memory_mb": round((resident_bytes(process.pid) or 0) / 1e6, 1),
        "files": len(sizes),
        "files_mb": round(sum(sizes) / 1e6, 3),
    }


def _file_sizes(folder: Path) -> Iterator[int]:
    for one in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the federation goes on: files are replaced meanwhile
            if one.is_file():
                yield one.stat().st_size
