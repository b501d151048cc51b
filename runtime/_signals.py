"""Keeps Python signal handlers out of callbacks from native code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGALRM")


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Run the Python handlers of signals that arrive in the block after it.

    A handler that raises (Ctrl-C) inside a callback from ONNX Runtime would end the process with
    ``terminate called``. Only the main thread runs handlers; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    kept = {}
    try:
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if callable(handler):
                kept[number] = handler
                signal.signal(number, note)
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        for number in arrived:
            kept[signal.Signals(number)](number, None)
