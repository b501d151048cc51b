"""Runs the sweep in processes of its own, so that a crash ends one case and not the others."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from protofleet.export.formats import FORMATS
from protofleet.export.sweep.cases import SweepCase
from protofleet.export.sweep.collect import all_cases
from protofleet.export.sweep.prove import SweepRow, prove

_TIMEOUT_S = 900.0
_ENDING_S = 5.0
# A process grows with every program that it captures.
_CASES_PER_PROCESS = 25


def run(cases: Sequence[SweepCase]) -> Iterator[SweepRow]:
    """Prove cases one after the other."""
    left = list(cases)
    while left:
        yield from _in_one_process(left)


def _in_one_process(left: list[SweepCase]) -> Iterator[SweepRow]:
    """Take cases off the list until one crashes, or there have been enough."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        for _ in range(min(_CASES_PER_PROCESS, len(left))):
            case = left.pop(0)
            ours.send(case.name)
            row = _received(case, ours)
            if isinstance(row, str):
                yield SweepRow(name=case.name, group=case.group, proofs=dict.fromkeys(FORMATS, row))
                break
            yield row
    finally:
        ours.close()
        process.join(_ENDING_S)
        process.kill()


def _received(case: SweepCase, connection: Connection) -> SweepRow | str:
    """The case's row, or what became of its process."""
    try:
        if not connection.poll(_TIMEOUT_S):
            return f"no result after {_TIMEOUT_S:.0f} s"
        row: SweepRow = connection.recv()
    except (EOFError, ConnectionError):
        return f"the process that exported '{case.name}' ended: PyTorch or a runtime crashed"
    return row


def _work(connection: Connection) -> None:
    cases = {case.name: case for case in all_cases()}
    try:
        while True:
            connection.send(prove(cases[connection.recv()]))
    except EOFError:
        return
