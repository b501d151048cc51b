"""What threads need: bounds on the pools of numerical libraries, and records known beforehand."""

from __future__ import annotations

from contextlib import suppress

import msgspec

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_PACKAGE = __name__.partition(".")[0] + "."


def thread_variables(threads: int) -> dict[str, str]:
    """Environment of a process whose pools have at most ``threads`` threads each.

    They are read once, when a library is loaded.
    """
    return dict.fromkeys(_VARIABLES, str(threads))


def prepare_records() -> None:
    """Let msgspec know every record of this package that is loaded, before threads decode any.

    It learns a record's types when it first decodes one, and shows others what it has learnt before
    it is complete: two threads that decode the same record for the first time end the process with
    a segmentation fault (seen with msgspec 0.22).
    """
    found: list[type[msgspec.Struct]] = [msgspec.Struct]
    for record in found:
        found += record.__subclasses__()
        if record.__module__.startswith(_PACKAGE):
            with suppress(TypeError, NameError):  # that one cannot be decoded at all
                msgspec.json.Decoder(record)
