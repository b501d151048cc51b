"""Rounds of four device processes that return their parameters untrained, over Mosquitto.

What is left is the road: offer, transfer down, aggregation, transfer up, receipts, disk. With keys,
signatures and sealing come on top.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.benchmarks._keys import enrol_here
from protofleet.benchmarks._rows import Row
from protofleet.benchmarks._synthetic_bundle import synthetic_data, write_synthetic_bundle
from protofleet.bundle.keys import save_public_key
from protofleet.edge.learning.meter import high_water_bytes
from protofleet.errors import UnavailableError
from protofleet.firmware_sim.broker import local_broker
from protofleet.firmware_sim.processes import spawn, stop
from protofleet.threads import thread_variables

FEDERATION = "bench"
HONEST = tuple(f"device-{number}" for number in range(4))
_SIZES = (1_450_000, 1_000)
_FIRST = 1  # the first round waits for devices and warms everything up
_LIMIT_S = 300
KEYS = 'keys = "keys"\n'
_PROTOFLEET = [sys.executable, "-m", "protofleet"]
Process = subprocess.Popen[bytes]


def run(*, quick: bool) -> Iterator[list[Row]]:
    """Two rows per model size, without keys and with them.

    Raises:
        UnavailableError: Mosquitto is not installed, or the federation did not finish.
    """
    rounds = 4 if quick else 11
    return (_rows(floats, rounds) for floats in _SIZES)


def _rows(floats: int, rounds: int) -> list[Row]:
    plain = _row(floats, rounds, keyed=False)
    keyed = _row(floats, rounds, keyed=True)
    if plain.ours_ms is None or keyed.ours_ms is None:
        return [plain, keyed]
    against = msgspec.structs.replace(
        keyed,
        baseline="without keys",
        baseline_ms=plain.ours_ms,
        ratio=round(keyed.ours_ms / plain.ours_ms, 3),
    )
    return [plain, against]


def _row(floats: int, rounds: int, *, keyed: bool) -> Row:
    with tempfile.TemporaryDirectory() as name, local_broker("mosquitto") as url:
        folder = Path(name)
        coordinator_rss = _federate(folder, url, (floats, rounds), keyed=keyed)
        found = json.loads((folder / "run" / "result.json").read_text())
    measured = found["rounds"][_FIRST:]
    seconds = [one["seconds"] for one in measured]
    raw = 4 * floats * len(HONEST)
    return Row(
        bench="rounds",
        case=f"{len(HONEST)} devices, {floats:,} floats, a round{', keys' if keyed else ''}",
        ours_ms=round(statistics.median(seconds) * 1e3, 1),
        details={
            "slowest_ms": round(max(seconds) * 1e3, 1),
            "bytes_up": _median(measured, "bytes_up"),
            "bytes_down": _median(measured, "bytes_down"),
            "rounds": len(seconds),
            "socket_up_to_raw": _ratio(measured, "bytes_up", raw),
            "socket_down_to_raw": _ratio(measured, "bytes_down", raw),
            "device_rss_mb": round(max(d["peak_rss_bytes"] for d in found["devices"]) / 1e6, 1),
            "coordinator_rss_mb": round(coordinator_rss / 1e6, 1),
        },
    )


def _ratio(rounds: list[dict[str, Any]], direction: str, raw: int) -> float:
    return round(_median(rounds, direction) / raw, 4)


def _median(rounds: list[dict[str, Any]], direction: str) -> float:
    moved: list[int] = [one[direction] for one in rounds]
    return statistics.median(moved)


def _federate(folder: Path, url: str, size: tuple[int, int], *, keyed: bool) -> int:
    """Run a federation to its end; the coordinator's peak resident memory in bytes."""
    floats, rounds = size
    if keyed:
        enrol_here(folder / "keys", FEDERATION, {name: folder / name for name in HONEST}, url)
    more = f"[cohort]\nminimum = {len(HONEST)}\n"
    write_federation(folder, url, floats, f"rounds = {rounds}\n{KEYS if keyed else ''}{more}")
    file = str(folder / "federation.toml")
    processes = [start_command(folder / "coordinator.log", "coordinator", "run", file)]
    try:
        processes += [start_device(folder, url, name) for name in HONEST]
        return _watch(processes[0], folder)
    finally:
        stop(processes)


def write_federation(folder: Path, url: str, floats: int, settings: str) -> None:
    """Bundle, its key, a device's data and the federation file, which ``settings`` end."""
    key = Ed25519PrivateKey.generate()
    write_synthetic_bundle(folder / "model.pfb", floats, key)
    save_public_key(key.public_key().public_bytes_raw(), folder / "key.pem")
    synthetic_data().save(folder / "data.npz")
    trusted = key.public_key().public_bytes_raw().hex()
    (folder / "federation.toml").write_text(
        f'federation = "{FEDERATION}"\nbroker = "{url}"\nbundle = "model.pfb"\nrun_dir = "run"\n'
        f'stop = {{patience = 0}}\ntrusted = ["{trusted}"]\n{settings}'
    )


def start_device(folder: Path, url: str, name: str) -> Process:
    """A device's process, its store and log in the folder."""
    options = {
        "--broker": url,
        "--federation": FEDERATION,
        "--bundle": folder / "model.pfb",
        "--data": folder / "data.npz",
        "--trust": folder / "key.pem",
        "--store": folder / name,
        "--id": name,
    }
    pairs = [str(part) for pair in options.items() for part in pair]
    return start_command(folder / f"{name}.log", "device", "join", *pairs)


def start_command(log: Path, *arguments: str) -> Process:
    """A command's process; what it says goes to ``log``."""
    environment = {**thread_variables(1), "PROTOFLEET_NUMBA": "0"}
    return spawn([*_PROTOFLEET, *arguments], out=log, log=log, env=environment)


def _watch(coordinator: Process, folder: Path) -> int:
    """Wait for the end; the largest resident memory seen, 0 where the system does not tell."""
    deadline = time.monotonic() + _LIMIT_S
    peak = 0
    while coordinator.poll() is None and time.monotonic() < deadline:
        peak = max(peak, high_water_bytes(coordinator.pid) or 0)
        time.sleep(0.05)
    if coordinator.poll() != 0:
        words = (folder / "coordinator.log").read_text()[-800:]
        raise UnavailableError(f"federation: did not finish in {_LIMIT_S} s: {words}")
    return peak
