"""Do the tests catch faults? Mutants drawn at random, and the tests that fail on each.

Every mutant is one small fault in a copy of the committed tree. The tests of its module are run
first, then those of its part's folder, at last all that `make quick` has; it is caught by the first
that fails. One that lives is printed as a difference: either a test is missing, or the fault
changes nothing that anybody could see.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from alter import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]


class Part(NamedTuple):
    """Folders of the product, and the tests' folders that speak of them."""

    code: tuple[str, ...]
    tests: tuple[str, ...]


_EXPORT = ("capture", "classifier", "onnx", "parity", "quantise", "tflite")
PARTS = {
    "round": Part(
        ("src/protofleet/federation", "coordinator"),
        ("tests/federation", "tests/coordinator"),
    ),
    "wire": Part(("src/protofleet/wire", "src/protofleet/tensors"), ("tests/wire",)),
    "store": Part(("edge/state", "coordinator/ledger"), ("tests/edge", "tests/coordinator")),
    "kernels": Part(("kernels",), ("tests/kernels",)),
    "export": Part(tuple(f"export/{one}" for one in _EXPORT), ("tests/export",)),
}
_LIMIT_S = 900
"""A mutant that never ends is caught as well."""


class Outcome(NamedTuple):
    """The test that caught a mutant; None: it lives."""

    part: str
    path: str
    mutant: Mutant
    caught_by: str | None
    seconds: float


def main() -> int:
    """Draw, run, print; 1 where one lives."""
    options = _options()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="protofleet-mutants-") as folder:
        copy = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(copy), "HEAD")
        try:
            for part in options.only or PARTS:
                for path, mutant in drawn(copy, PARTS[part], options.count, options.seed):
                    outcomes.append(_outcome(copy, part, path, mutant))
                    print(_line(outcomes[-1]), flush=True)
        finally:
            _git("worktree", "remove", "--force", str(copy))
    alive = [one for one in outcomes if one.caught_by is None]
    print(f"\n{len(outcomes) - len(alive)} of {len(outcomes)} caught (seed {options.seed})")
    return 1 if alive else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=8, metavar="N", help="mutants of each part")
    parser.add_argument("--seed", type=int, default=0, help="others are drawn with another")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), help="these parts alone")
    return parser.parse_args()


def drawn(root: Path, part: Part, count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Draw as many mutants, files weighted by what can be altered in them."""
    found = [
        (str(path.relative_to(root)), mutant)
        for folder in part.code
        for path in sorted((root / folder).rglob("*.py"))
        for mutant in mutants(path.read_bytes())
    ]
    generator = random.Random(seed)  # noqa: S311 - seeded, so that a mutant comes back
    return generator.sample(found, min(count, len(found)))


def _outcome(copy: Path, part: str, path: str, mutant: Mutant) -> Outcome:
    file = copy / path
    source = file.read_bytes()
    began = time.monotonic()
    file.write_bytes(mutant.of(source))
    try:
        failed = (_first_failure(copy, tests) for tests in _stages(copy, part, path))
        caught_by = next((name for name in failed if name is not None), None)
    finally:
        file.write_bytes(source)
    return Outcome(part, path, mutant, caught_by, time.monotonic() - began)


def _stages(copy: Path, part: str, path: str) -> list[Sequence[str]]:
    """The tests of the module, of its folder, and all that ``make quick`` has."""
    module = Path(path).stem.lstrip("_")
    own = [str(one) for one in sorted((copy / "tests").rglob(f"test_{module}.py"))]
    quick = ("tests", "-m", "not slow and not full_size", "--ignore=tests/export")
    return [*([own] if own else []), PARTS[part].tests, quick]


def _first_failure(copy: Path, tests: Sequence[str]) -> str | None:
    options = ("-x", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile")
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "tests that did not end"
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if found is None:
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return found[1]


def _line(outcome: Outcome) -> str:
    place = f"{outcome.path}:{outcome.mutant.line}"
    said = f"caught by {outcome.caught_by}" if outcome.caught_by else "LIVES"
    line = f"{outcome.part:8} {place:60} {said} ({outcome.seconds:.0f} s)"
    if outcome.caught_by:
        return line
    source = (ROOT / outcome.path).read_bytes()
    before = source.decode().splitlines()[outcome.mutant.line - 1]
    after = outcome.mutant.of(source).decode().splitlines()[outcome.mutant.line - 1]
    return f"{line}\n  - {before.strip()}\n  + {after.strip()}"


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)  # noqa: S607 - the user's own


if __name__ == "__main__":
    sys.exit(main())
