"""Runs a measuring process and reads what it says, line by line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import msgspec

from protofleet.threads import thread_variables


def run_process(
    module: str, request: msgspec.Struct, *, threads: int, hear: Callable[[dict[str, Any]], None]
) -> str:
    """Start ``module`` of this package with ``request``; returns why it ended early, or nothing.

    Args:
        module: its name.
        request: its one argument, as JSON.
        threads: bound of its thread pools.
        hear: takes each line that it writes, as soon as it comes.
    """
    command = [sys.executable, "-m", f"protofleet.benchmarks.{module}"]
    environment = {**os.environ, **thread_variables(threads)}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*command, msgspec.json.encode(request).decode()],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                if line.startswith("{"):  # a runtime's own words may come between
                    hear(json.loads(line))
        except BaseException:
            process.kill()
            raise
        status = process.wait()
        errors.seek(0)
        return "" if status == 0 else _ended(status, errors.read())


def _ended(status: int, errors: str) -> str:
    """An exit status and the last words."""
    how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
    if status == -signal.SIGKILL:
        how += " (the system kills what takes too much memory)"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1].removeprefix("protofleet.errors.") if lines else "no message"
    return f"{how}: {last}"
