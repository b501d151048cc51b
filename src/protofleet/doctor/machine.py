"""This machine: its clock, disks, memory, runtimes and compiled kernels."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import protofleet
from protofleet.doctor.observations import Check, Observation, ok, problem, warning
from protofleet.doctor.subjects import Machine
from protofleet.units import byte_text, clock_text, duration_text

_LITTLE_BYTES, _NO_BYTES = 1 << 30, 64 << 20
"""Of a disk: a roll-out keeps two bundles and leaves 64 MiB (``edge/upgrade.py``)."""
_LITTLE_MEMORY, _NO_MEMORY = 512 << 20, 128 << 20
"""Free memory: HART's training takes some 200 MB (docs/benchmarks.md)."""
_PROBE_BYTES = 1 << 20
_LEEWAY_S = 300.0
"""Clocks of two machines may differ by so much without any harm."""
_OPEN_S = 60.0
_MEMINFO = Path("/proc/meminfo")
_CLOCK_REMEDY = (
    "set the clock: sudo timedatectl set-ntp true; a board without a battery needs a network for it"
)
_DAY_S = 86_400.0
_UNSYNCHRONISED, _TIMEX_BYTES = 5, 512
"""Linux's TIME_ERROR, and room for its ``struct timex``, whose zeros ask for the state alone."""


def behind(witness: str, moment_s: float, now_s: float | None = None) -> Iterator[Observation]:
    """That this clock is behind something that happened already.

    Args:
        witness: what happened.
        moment_s: when, Unix seconds by the clock of whoever noted it.
        now_s: by this machine's clock; None: ask it.
    """
    now_s = time.time() if now_s is None else now_s
    if now_s < moment_s - _LEEWAY_S:
        late, then = _span_text(moment_s - now_s), clock_text(moment_s)
        yield problem(
            f"this clock says {clock_text(now_s)}, {late} before {witness} ({then})",
            f"{_CLOCK_REMEDY}; if this clock is right, that of whoever noted it is ahead",
        )


def beside(other: str, moment_s: float, now_s: float | None = None) -> Iterator[Observation]:
    """How far this clock is from another that was read just now.

    Args:
        other: whose it is.
        moment_s: what it said, Unix seconds.
        now_s: what this one said then; None: ask it.
    """
    now_s = time.time() if now_s is None else now_s
    apart = now_s - moment_s
    if abs(apart) <= _LEEWAY_S:
        yield ok(f"this clock is within {max(1, math.ceil(abs(apart)))} s of {other}")
        return
    yield problem(
        f"this clock says {clock_text(now_s)}, {_span_text(abs(apart))} "
        f"{'ahead of' if apart > 0 else 'behind'} {other} ({clock_text(moment_s)})",
        f"{_CLOCK_REMEDY}; if this clock is right, {other} is wrong",
    )


def _span_text(seconds: float) -> str:
    return f"{seconds / _DAY_S:,.0f} days" if seconds > 2 * _DAY_S else duration_text(seconds)


def _clock(_: Machine) -> Iterator[Observation]:
    """Against when this package was installed: a board without a battery wakes up in 1970."""
    installed = Path(protofleet.__file__).stat().st_mtime
    told = list(behind("this package was installed", installed))
    text = f"this clock says {clock_text(time.time())}, which is possible{_kept_text()}"
    yield from told or [ok(text)]


def _kept_text() -> str:
    """What Linux says of its own clock; it is asked, and no server."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "adjtimex"):
        return ""
    state = library.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        return ""
    return (
        "; nothing synchronises it" if state == _UNSYNCHRONISED else "; the system synchronises it"
    )


def nearest_folder(path: Path) -> Path:
    """``path``, or the nearest folder above it that is there."""
    path = path.absolute()
    return next(one for one in (path, *path.parents) if one.is_dir())


def _disk(machine: Machine) -> Iterator[Observation]:
    for folder in dict.fromkeys(map(nearest_folder, machine.folders or (Path.cwd(),))):
        yield from disk(folder)


def disk(folder: Path) -> Iterator[Observation]:
    """Free space, and whether a write gets to the disk: 1 MiB, written, synced and removed."""
    remedy = "make room, or choose another folder"
    free = shutil.disk_usage(folder).free
    try:
        took_s = _write(folder)
    except OSError as error:
        yield problem(
            f"'{folder}': takes no writes: {error.strerror}; {byte_text(free)} free", remedy
        )
        return
    text = f"'{folder}': {byte_text(free)} free, 1 MiB written and synced in {took_s * 1e3:.0f} ms"
    if free < _NO_BYTES:
        yield problem(text, remedy)
    elif free < _LITTLE_BYTES:
        yield warning(text, remedy)
    else:
        yield ok(text)
    if os.statvfs(folder).f_favail == 0 and os.statvfs(folder).f_files:
        yield problem(f"'{folder}': the disk has no room for another file's name", remedy)


def _write(folder: Path) -> float:
    """Seconds that it took; the file has no name in the folder that could stay behind."""
    started = time.monotonic()
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        written = 0
        while written < _PROBE_BYTES:
            written += file.write(bytes(_PROBE_BYTES - written))
        os.fsync(file.fileno())
    return time.monotonic() - started


def _memory(_: Machine) -> Iterator[Observation]:
    known = _meminfo()
    free, total = known.get("MemAvailable"), known.get("MemTotal")
    if free is None or total is None:
        yield ok("this system does not tell how much is free")
        return
    text = f"{byte_text(free)} of {byte_text(total)} free"
    remedy = "end other programs, or choose a smaller model or batch"
    if free < _NO_MEMORY:
        yield problem(text, remedy)
    elif free < _LITTLE_MEMORY:
        yield warning(text, remedy)
    else:
        yield ok(text)


def _meminfo() -> Mapping[str, int]:
    """Linux's figures in bytes; empty elsewhere."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if rest.endswith(" kB"):
                found[name] = int(rest.removesuffix(" kB")) * 1024
    return found


def _runtimes(_: Machine) -> Iterator[Observation]:
    from protofleet.runtime import PACKAGES  # noqa: PLC0415 - NumPy, only where needed

    there = [name for name, (module, _) in PACKAGES.items() if importlib.util.find_spec(module)]
    for name in there:
        yield _opened(name, PACKAGES[name][1])
    if not there:
        remedy = "; or ".join(text for _, text in PACKAGES.values())
        yield problem("neither ONNX Runtime nor LiteRT is installed", remedy)


def _opened(name: str, remedy: str) -> Observation:
    """In a process of its own: code for another processor ends it with a signal."""
    command = [sys.executable, "-m", "protofleet.doctor.tiny_program", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_OPEN_S, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return problem(f"{name}: a program of one sum has not ended within {_OPEN_S:g} s", remedy)
    if done.returncode == 0:
        return ok(f"{name} {done.stdout.strip()}: runs a program")
    said = (done.stderr.strip().splitlines() or ["no reason was told"])[-1]
    ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else said[:300]
    return problem(f"{name}: does not run a program of one sum: {ended}", f"install anew: {remedy}")


def _kernels(_: Machine) -> Iterator[Observation]:
    from protofleet.kernels import cache_state  # noqa: PLC0415 - as above

    state = cache_state()
    if state.problem:
        yield warning(state.problem, "docs/kernels.md says what runs then, and how fast")
    elif state.missing:
        yield warning(
            f"{state.missing} of {state.total} are not compiled yet, and the first round waits "
            f"for them; cache '{state.folder}'",
            "protofleet kernels warm",
        )
    else:
        yield ok(f"all {state.total} are compiled; cache '{state.folder}'")


CHECKS = (
    Check("clock", _clock),
    Check("disk", _disk),
    Check("memory", _memory),
    Check("runtimes", _runtimes),
    Check("kernels", _kernels),
)
