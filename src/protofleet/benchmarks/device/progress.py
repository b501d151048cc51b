"""Says what is being measured: a bar on a terminal, else a line for each step."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """What is told while measuring."""

    def at(self, text: str) -> None:
        """This is being measured now."""

    def done(self, text: str) -> None:
        """A step has ended."""


class _Lines:
    """For logs, and where rich is not installed: ended steps alone."""

    def __init__(self, total: int) -> None:
        self._total, self._ended = total, 0

    def at(self, text: str) -> None:
        pass

    def done(self, text: str) -> None:
        self._ended += 1
        sys.stderr.write(f"[{self._ended}/{self._total}] {text}\n")


class _Bar:
    def __init__(self, total: int) -> None:
        from rich.console import Console  # noqa: PLC0415 devices may lack it
        from rich.progress import (  # noqa: PLC0415 as above
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self.bar = Progress(
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=2,  # drawing takes processor time from what is measured
        )
        self._task = self.bar.add_task("", total=total)

    def at(self, text: str) -> None:
        self.bar.update(self._task, description=text)

    def done(self, text: str) -> None:
        self.bar.update(self._task, description=text, advance=1)


@contextmanager
def open_progress(total: int) -> Iterator[Progress]:
    """Tell on standard error about ``total`` steps."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield _Lines(total)
        return
    bar = _Bar(total)
    with bar.bar:
        yield bar
