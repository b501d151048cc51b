"""Shows that a Raspberry Pi can take part: a device under emulation joins a real federation.

Packaging and numbers only: emulation tells nothing about a board's speed or memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from compare import personal_distance, server_distance
from federation import FinishedRun, Material, Place, federate, prepare
from machine import KINDS, ROOT, Machine, open_machine, output, say

from protofleet.broker.folder import find_mosquitto
from protofleet.errors import ProtofleetError

_TOLERANCE = 1e-4
_MODULES = ("numpy", "cryptography", "onnxruntime", "ai_edge_litert", "numba", "protofleet.edge")


def main() -> int:
    """Make the machine, run both federations, print a summary; 1 if they differ."""
    options = _options()
    if find_mosquitto() is None:
        raise ProtofleetError("mosquitto: not found; sudo apt install mosquitto")
    folder = options.out.resolve()
    machine = open_machine(options.arch, options.release, folder / options.arch)
    material = prepare(folder / options.strategy, options.strategy, 3, options.rounds)
    name = material.smallest
    compiled = options.numba and machine.kind.extras is not None
    there = Place(
        python=machine.command(),
        environment={**machine.environment, "PROTOFLEET_NUMBA": str(int(compiled))},
        backend=options.backend,
    )
    kernels = "numba" if compiled else "numpy"
    case = (options.arch, options.strategy, options.backend or "auto", kernels)
    runs = folder / "runs" / "-".join(case)
    shutil.rmtree(runs, ignore_errors=True)
    say("the federation with all devices on this host")
    native = federate(material, runs / "native", {})
    say(f"the same federation with {name} on {options.arch}")
    emulated = federate(material, runs / "emulated", {name: there})
    return _summary(machine, material, (native, emulated), name)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/aarch64", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--arch", choices=KINDS, default="aarch64", help="64 bits (default), or 32 bits: armv7l"
    )
    parser.add_argument("--release", default="trixie", help="Debian's (default: trixie)")
    parser.add_argument("--strategy", choices=("fedavg", "fedali"), default="fedavg")
    parser.add_argument("--backend", choices=("onnx", "litert"), help="default: the device's own")
    parser.add_argument(
        "--numba", action=argparse.BooleanOptionalAction, default=True, help="or NumPy's kernels"
    )
    parser.add_argument("--rounds", type=int, default=2, help="default: 2")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "build/emulated",
        help="machines and models are kept here, and used again (default: build/emulated)",
    )
    return parser.parse_args()


def _summary(
    machine: Machine, material: Material, runs: tuple[FinishedRun, FinishedRun], name: str
) -> int:
    native, emulated = runs
    made = machine.made
    print(f"\nsystem     {made['system_s']:.0f} s, {made['system_mb']:.0f} MB")
    print(f"packages   {made['packages_s']:.0f} s, {made['packages_mb']:.0f} MB")
    print(f"imports, s {output(machine, _IMPORTS).strip()}")
    print(f"{'':34}{'native':>12}{'emulated':>12}")
    for label, values in _rows(native, emulated, name):
        print(f"{label:34}{values[0]:>12.4g}{values[1]:>12.4g}")
    worst = 0.0
    print("\ndistance of the two runs ÷ distance trained")
    for round_id in range(1, material.rounds + 1):
        apart = server_distance(emulated.folder, native.folder, material.bundle, round_id)
        print(f"server's model after round {round_id}: {apart:.1e}")
        worst = max(worst, apart)
    ours, other = (run.folder / f"store-{name}" for run in (emulated, native))
    apart = personal_distance(ours, other, material.bundle)
    print(f"{name}'s model: {apart:.1e}")
    print(f"log: {emulated.folder / name}.log")
    worst = max(worst, apart)
    if not worst <= _TOLERANCE:
        print(f"expected at most {_TOLERANCE}: the update differs from a native device's")
        return 1
    return 0


_IMPORTS = f"""
import importlib, importlib.util, time
for name in {_MODULES}:
    if importlib.util.find_spec(name):
        start = time.perf_counter()
        importlib.import_module(name)
        print(f"{{name}} {{time.perf_counter() - start:.1f}}", end="  ")
"""


def _rows(
    native: FinishedRun, emulated: FinishedRun, name: str
) -> list[tuple[str, tuple[float, ...]]]:
    both = (native.events[name], emulated.events[name])
    rows = [("process start to joined, s", tuple(_at(e, "joined") for e in both))]
    rows.append(("joined to left, s", tuple(_at(e, "left") - _at(e, "joined") for e in both)))
    for number, pair in enumerate(zip(*map(_trained, both), strict=True), 1):
        rows.append((f"round {number}: training, s", tuple(e["train_s"] for e in pair)))
        rows.append(
            (f"round {number}: step p50, ms", tuple(e["train_step_ms"]["p50"] for e in pair))
        )
        rows.append((f"round {number}: loss", tuple(e["loss"] for e in pair)))
        rows.append((f"round {number}: macro-F1", tuple(e["macro_f1"] for e in pair)))
    for section in ("personalisation", "global"):
        scores = [run.result["scores"][section]["macro_f1"]["mean"] for run in (native, emulated)]
        rows.append((f"all devices: {section}, macro-F1", tuple(scores)))
    return rows


def _at(events: Any, wanted: str) -> float:
    return next(float(e["after_s"]) for e in events if e["event"] == wanted)


def _trained(events: Any) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "trained"]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        sys.exit(main())
    except ProtofleetError as error:
        sys.exit(f"scripts/aarch64: {error}")
