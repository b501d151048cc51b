"""Ctrl-C and SIGTERM: a command ends with a line that says how to go on, and with 130 or 143."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import click


class _Stopped(BaseException):
    """A signal asked the process to end; raised wherever the main thread is."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def on_interrupt(advice: str) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM end the process with 130 or 143.

    What the block has open is closed first; a second signal ends the process at once.

    Args:
        advice: how to go on, or what is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Stopped as stopped:
        click.echo(f"\nprotofleet: stopped by {stopped}; {advice}", err=True)
        sys.exit(128 + stopped.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    for repeated in (signal.SIGINT, signal.SIGTERM):
        signal.signal(repeated, signal.SIG_DFL)
    raise _Stopped(number)
