"""A process that dies at a write: what is on the disk afterwards is what a kill may leave."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


def die_at_write(fatal: int) -> None:
    """From here on this process is killed before its ``fatal``-th fsync, rename or removal."""
    calls = itertools.count(1)

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    os.fsync = deadly(os.fsync)
    Path.replace = deadly(Path.replace)
    Path.unlink = deadly(Path.unlink)
