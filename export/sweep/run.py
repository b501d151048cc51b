"""Runs the sweep: each case in a process of its own, so that no failure ends the others."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from protofleet.export.formats import FORMATS
from protofleet.export.sweep.cases import Case
from protofleet.export.sweep.collect import all_cases
from protofleet.export.sweep.prove import Row, prove

_TIMEOUT_S = 900.0
_ENDING_S = 5.0


def run(cases: Sequence[Case]) -> Iterator[Row]:
    """Prove cases one after the other."""
    context = multiprocessing.get_context("forkserver")
    # PyTorch is imported once, not by every process.
    context.set_forkserver_preload([__name__])
    for case in cases:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_send_row, args=(case.name, sending), daemon=True)
        process.start()
        sending.close()
        row = _received(case, receiving)
        process.join(_ENDING_S)
        process.kill()
        receiving.close()
        yield row


def _received(case: Case, receiving: Connection) -> Row:
    message = f"no result after {_TIMEOUT_S:.0f} s"
    try:
        if receiving.poll(_TIMEOUT_S):
            row: Row = receiving.recv()
            return row
    except EOFError:
        message = "its process ended: PyTorch or a runtime crashed"
    return Row(name=case.name, group=case.group, proofs=dict.fromkeys(FORMATS, message))


def _send_row(name: str, sending: Connection) -> None:
    (case,) = (case for case in all_cases() if case.name == name)
    sending.send(prove(case))
