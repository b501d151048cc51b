"""Fuzzes the decoders of bytes from outside, guided by coverage (docs/fuzzing.md).

Each runs in a process of its own, one after the other; a table at the end says what it cost.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_PATH = (str(ROOT / "tests"), str(ROOT / "tests" / "support"))
sys.path[:0] = _PATH
from fuzz.target import CRASHES, write_corpus  # noqa: E402 - the same
from fuzz.targets import TARGETS  # noqa: E402 - only from here on is it found

_HERE = Path(__file__).resolve().parent
_RSS_MB, _TIMEOUT_S = 2048, 20
_MAX_KEPT_BYTES, _MAX_CORPUS_BYTES = 2048, 6144
"""Of one input, and of a decoder's inputs, that are committed: the corpus is to stay small."""


class FuzzRow(NamedTuple):
    """What fuzzing one decoder has shown."""

    name: str
    inputs: int
    branches: int
    crashes: int
    largest_bytes: int
    slowest_ms: float


def main() -> int:
    """Fuzz, print the table; 1 if there was a crash."""
    options = _options()
    names = options.only or list(TARGETS)
    rows = []
    for name in names:
        rows.append(_fuzz(name, options.out / name, options.seconds))
        print(_line(rows[-1]), flush=True)
        if options.keep:
            _keep(name, options.out / name)
    print("\n" + "\n".join(_table(rows)))
    crashes = sum(row.crashes for row in rows)
    print(f"\n{sum(row.inputs for row in rows):,} inputs, {crashes} crashes")
    return 1 if crashes else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="per decoder (default: 60)")
    parser.add_argument(
        "--only", nargs="+", choices=TARGETS, metavar="NAME", help=", ".join(TARGETS)
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument(
        "--keep", action="store_true", help="add the smallest inputs found to tests/fuzz/corpus"
    )
    return parser.parse_args()


def _fuzz(name: str, folder: Path, seconds: int) -> FuzzRow:
    target = TARGETS[name]
    for place in ("found", "examples"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for crash in folder.glob("crash-*"):
        crash.unlink()
    for data in target.examples + target.kept():
        (folder / "examples" / _digest(data)).write_bytes(data)
    found = _run(
        name,
        folder,
        f"-max_total_time={seconds}",
        f"-max_len={target.max_len}",
        f"-rss_limit_mb={_RSS_MB}",
        f"-timeout={_TIMEOUT_S}",
        "-print_final_stats=1",
        f"-artifact_prefix={folder}/crash-",
        *(str(place) for place in _folders(folder)),
    )
    (folder / "log.txt").write_text(found)
    crashes = len(list(folder.glob("crash-*")))
    if crashes:
        _report(name, folder, found)
    inputs = _number(r"(?:stat::number_of_executed_units: *|^#)(\d+)", found)
    if not inputs:
        raise SystemExit(f"{name}: did not run:\n{found[-2000:]}")
    measured = _measure(name, folder)
    return FuzzRow(
        name=name,
        inputs=inputs,
        branches=_number(r"cov: (\d+)", found),
        crashes=crashes,
        largest_bytes=measured["largest_bytes"],
        slowest_ms=measured["slowest_ms"],
    )


def _folders(folder: Path) -> list[Path]:
    """Corpora: what is found goes into the first."""
    return [folder / "found", folder / "examples"]


def _run(name: str, folder: Path, *options: str) -> str:
    """What the worker said; libFuzzer's exit status only repeats it."""
    worker = [sys.executable, str(_HERE / "worker.py"), name, str(folder)]
    # libFuzzer starts itself once more to merge: it needs a file that can be executed.
    starter = folder / "worker"
    starter.write_text(f'#!/bin/sh\nexec {shlex.join(worker)} "$@"\n')
    starter.chmod(0o755)
    done = subprocess.run(
        [*worker, *options],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode(errors="replace")


def _environment() -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(_PATH)}


def _report(name: str, folder: Path, log: str) -> None:
    lines = log.splitlines()
    told = next((k for k, text in enumerate(lines) if "Uncaught Python exception" in text), 0)
    print(f"\n{name} crashed; the end of {folder / 'log.txt'}:")
    print("\n".join(lines[told : told + 40] if told else lines[-40:]))
    for crash in sorted(folder.glob("crash-*")):
        print(f"\nto keep it as a regression test:\n  cp {crash} {CRASHES / name}/")


def _measure(name: str, folder: Path) -> dict[str, float]:
    """Memory and time of the kept inputs, without the fuzzer."""
    done = subprocess.run(
        [sys.executable, str(_HERE / "measure.py"), name, str(folder)],
        env=_environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _keep(name: str, folder: Path) -> None:
    """The inputs that the coverage needs, the shortest first, into the committed corpus."""
    merged = folder / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    places = map(str, (merged, *_folders(folder)))
    _run(name, folder, "-merge=1", f"-max_len={_MAX_KEPT_BYTES}", *places)
    inputs = sorted(
        {path.read_bytes() for path in merged.iterdir()}, key=lambda one: (len(one), one)
    )
    known, size = {*TARGETS[name].examples, b""}, 0
    kept = []
    for data in inputs:
        size += len(data)
        if data not in known and len(data) <= _MAX_KEPT_BYTES and size <= _MAX_CORPUS_BYTES:
            kept.append(data)
    write_corpus(name, kept)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text, re.MULTILINE)
    return int(found[-1]) if found else 0


def _line(row: FuzzRow) -> str:
    return (
        f"{row.name:22}{row.inputs:12,} inputs {row.branches:6} branches {row.crashes:3} crashes"
        f"{row.largest_bytes / 1e6:10.2f} MB {row.slowest_ms:10.1f} ms"
    )


def _table(rows: list[FuzzRow]) -> list[str]:
    return [
        "| decoder | inputs | branches | crashes | largest memory | longest time |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{row.name}` | {row.inputs:,} | {row.branches} | {row.crashes} "
            f"| {row.largest_bytes / 1e6:.2f} MB | {row.slowest_ms:.1f} ms |"
            for row in rows
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
