"""What a device's command does before NumPy is loaded."""

from __future__ import annotations

import os

from protofleet.cli._verbosity import start_logging
from protofleet.threads import thread_variables


def start_process(threads: int, *, quiet: bool = False) -> None:
    """Bound all thread pools, and start the log.

    Args:
        threads: for programs.
        quiet: only warnings unless more is asked for.
    """
    for variable, value in thread_variables(threads).items():
        os.environ.setdefault(variable, value)
    start_logging(quiet=quiet)
