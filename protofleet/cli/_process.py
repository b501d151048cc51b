"""What a device's command does before NumPy is loaded."""

from __future__ import annotations

import logging
import os
import sys

from protofleet.threads import thread_variables


def start_process(threads: int, *, level: int = logging.INFO) -> None:
    """Bound all thread pools, and send the log from ``level`` on to stderr."""
    for variable, value in thread_variables(threads).items():
        os.environ.setdefault(variable, value)
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", stream=sys.stderr)
