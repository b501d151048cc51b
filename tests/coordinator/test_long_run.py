"""What a round costs the coordinator stays what it was at first, however long the run is."""

from __future__ import annotations

import os
import pathlib
import sys
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_endpoint import CONNECTED

_DEVICES = ("a", "b", "c")


@dataclass(frozen=True)
class _Cost:
    """What a process has paid so far: bytes that it has written, processor seconds, memory."""

    written: int
    cpu_s: float
    memory: int

    @classmethod
    def now(cls) -> _Cost:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return cls(int(fields["wchar"]), time.process_time(), _traced())


def _traced() -> int:
    """Bytes, without the table of interned names, which doubles at some number of them."""
    taken = tracemalloc.take_snapshot().filter_traces(
        (tracemalloc.Filter(inclusive=False, filename_pattern=pathlib.__file__),)
    )
    return sum(one.size for one in taken.statistics("filename"))


def costs_at(fed, marks):
    """The process's costs after each of these rounds of one run of the federation."""
    found = {}

    def play_round(round_id):
        def step():
            if round_id - 1 in marks:
                found[round_id - 1] = _Cost.now()
            if round_id > fed.plan.config.rounds:
                return
            for kept in (fed.events, fed.endpoint.sent, fed.endpoint.receipts):
                kept.clear()
            for kept in (fed.endpoint.expected, fed.endpoint.cancelled, fed.endpoint.published):
                kept.clear()
            fed.endpoint._settled.clear()
            for name in _DEVICES:
                fed.endpoint.steps.append(fed.beat(name, round_id, bytes_up=1000 * round_id))
                fed.endpoint.steps.extend(fed.delivers(name, round_id))
            fed.endpoint.steps.append(play_round(round_id + 1))

        return step

    tracemalloc.start()
    try:
        fed.play(CONNECTED, [fed.online(name) for name in _DEVICES], play_round(1))
    finally:
        tracemalloc.stop()
    return found


def per_round(costs, first, last):
    """Bytes written, processor ms and bytes of memory that a round has cost between two marks."""
    a, b, rounds = costs[first], costs[last], last - first
    return (
        (b.written - a.written) / rounds,
        1000 * (b.cpu_s - a.cpu_s) / rounds,
        (b.memory - a.memory) / rounds,
    )


@pytest.mark.slow(seconds=12)
def test_a_round_writes_and_keeps_no_more_late_in_a_run_than_early(open_federation):
    """Trees of the ledger have another level at some point, and then grow no more."""
    costs = costs_at(open_federation(minimum=3, rounds=500), (200, 250, 450, 500))
    early, late = per_round(costs, 200, 250), per_round(costs, 450, 500)
    assert late[0] < 1.1 * early[0]
    assert per_round(costs, 250, 450)[2] < 2000


@pytest.mark.skipif("PROTOFLEET_ROUNDS" not in os.environ, reason="a measurement of minutes")
def test_measured(open_federation, capsys):
    """``PROTOFLEET_ROUNDS=5100 pytest tests/coordinator/test_long_run.py -k measured``."""
    rounds = int(os.environ["PROTOFLEET_ROUNDS"])
    marks = [k for k in (10, 500, 5000) if k + 50 <= rounds]
    costs = costs_at(
        open_federation(minimum=3, rounds=rounds), {k + more for k in marks for more in (0, 50)}
    )
    for first in marks:
        written, cpu_ms, _ = per_round(costs, first, first + 50)
        told = f"round {first}: {written / 1e3:.0f} kB written, {cpu_ms:.1f} ms of processor"
        with capsys.disabled():
            sys.stdout.write(f"\n{told}, {costs[first].memory / 1e6:.2f} MB held")
