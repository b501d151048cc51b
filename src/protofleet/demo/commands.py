"""The demonstration's steps as commands of ``protofleet``, run as child processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from protofleet.demo.methods import Network
from protofleet.demo.recipes import DemoData
from protofleet.errors import ProtofleetError
from protofleet.firmware_sim import die_with_parent
from protofleet.threads import thread_variables

_CENTRAL = "central"


def invocation(*arguments: str) -> list[str]:
    """The command line that runs ``protofleet`` with this interpreter."""
    return [sys.executable, "-m", "protofleet", *arguments]


def shown(arguments: Sequence[str]) -> str:
    """The same as a person would type it."""
    return shlex.join(["protofleet", *arguments])


def pretrain_arguments(prepared: DemoData, network: Network, folder: Path, seed: int) -> list[str]:
    """Central training into ``folder``, or its resumption."""
    out, model = folder / _CENTRAL, prepared.models[network]
    arguments = ["pretrain", "--model", model.name, *_set_options(model.settings)]
    arguments += [*prepared.pretrain, "--data", str(prepared.central), "--seed", str(seed)]
    return [*arguments, "--out", str(out), *(["--resume"] if out.exists() else [])]


def export_arguments(
    prepared: DemoData,
    network: Network,
    folder: Path,
    strategies: Sequence[str],
    *,
    formats: str | None = None,
) -> list[str]:
    """Export of what the central training has left in ``folder``; in every format by default.

    The bundle names the first of the strategies, and has the programs of all.
    """
    model, preprocessing = prepared.models[network], folder / "preprocessing.json"
    preprocessing.write_bytes(msgspec.json.format(msgspec.json.encode(prepared.preprocessing)))
    return [
        *("export", model.name, *_set_options(model.settings)),
        *("--checkpoint", str(folder / _CENTRAL / "model.safetensors")),
        *(word for name in strategies for word in ("--strategy", name)),
        *("--classes", ",".join(prepared.classes)),
        *("--preprocessing", str(preprocessing), "--out", str(folder / "bundle.pfb")),
        *(() if formats is None else ("--formats", formats)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of ``protofleet``.

    Attributes:
        arguments: behind ``protofleet``.
        log: where its output goes; None: to this terminal.
    """

    arguments: list[str]
    log: Path | None = None


def run_steps(steps: Sequence[Step], console: Console) -> None:
    """Show steps, and run them to their ends, all at the same time.

    They share the processor: numerical libraries of several processes that each have a thread for
    every core wait for each other most of the time.

    Raises:
        ProtofleetError: one failed; the message says where its own stands.
    """
    for step in steps:
        beside = "" if step.log is None else f"   (beside it, output in {step.log})"
        console.print(f"$ {shown(step.arguments)}{beside}", style="dim", soft_wrap=True)
    threads = thread_variables(max(1, (os.cpu_count() or 1) // max(1, len(steps))))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        more = ["--quiet"] if console.quiet else []
        processes += [_started(step, more, {**threads, **os.environ}) for step in steps]
        statuses = [process.wait() for process in processes]
    except BaseException:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        raise
    for step, status in zip(steps, statuses, strict=True):
        if status:
            place = "above" if step.log is None else f"in '{step.log}'"
            raise ProtofleetError(
                f"'{shown(step.arguments[:1])}' failed; its message stands {place}"
            )


def _started(step: Step, more: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = die_with_parent.command(invocation(*step.arguments, *more))
    if step.log is None:
        return subprocess.Popen(command, env=env)
    with step.log.open("ab") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def _set_options(settings: dict[str, Any]) -> list[str]:
    options: list[str] = []
    for key, value in settings.items():
        options += ["--set", f"{key}={json.dumps(value)}"]
    return options
