"""The demonstration's steps as commands of ``protofleet``, run as child processes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from protofleet.demo.recipes import DemoData
from protofleet.errors import ProtofleetError
from protofleet.firmware_sim import die_with_parent

_CENTRAL = "central"


def invocation(*arguments: str) -> list[str]:
    """The command line that runs ``protofleet`` with this interpreter."""
    return [sys.executable, "-m", "protofleet", *arguments]


def shown(arguments: Sequence[str]) -> str:
    """The same as a person would type it."""
    return shlex.join(["protofleet", *arguments])


def pretrain_arguments(prepared: DemoData, folder: Path, seed: int) -> list[str]:
    """Central training, or its resumption."""
    out = folder / _CENTRAL
    arguments = ["pretrain", "--model", prepared.model, *_set_options(prepared.model_settings)]
    arguments += [*prepared.pretrain, "--data", str(prepared.central), "--seed", str(seed)]
    return [*arguments, "--out", str(out), *(["--resume"] if out.exists() else [])]


def export_arguments(prepared: DemoData, folder: Path, strategy: str) -> list[str]:
    """Export of what the central training left."""
    preprocessing = folder / "preprocessing.json"
    preprocessing.write_bytes(msgspec.json.format(msgspec.json.encode(prepared.preprocessing)))
    return [
        *("export", prepared.model, *_set_options(prepared.model_settings)),
        *("--checkpoint", str(folder / _CENTRAL / "model.safetensors")),
        *("--strategy", strategy, "--classes", ",".join(prepared.classes)),
        *("--preprocessing", str(preprocessing), "--out", str(folder / "bundle.pfb")),
    ]


def run_step(arguments: Sequence[str]) -> None:
    """Run a step to its end, its output on this terminal.

    Raises:
        ProtofleetError: it failed; its own message stands above.
    """
    process = subprocess.Popen(die_with_parent.command(invocation(*arguments)))
    try:
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if status:
        raise ProtofleetError(f"'{shown(arguments[:1])}' failed; its message stands above")


def _set_options(settings: dict[str, Any]) -> list[str]:
    options: list[str] = []
    for key, value in settings.items():
        options += ["--set", f"{key}={json.dumps(value)}"]
    return options
