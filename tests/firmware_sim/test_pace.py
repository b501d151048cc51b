"""When bytes have passed a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.errors import InputError
from protofleet.firmware_sim.pace import PACKET_BYTES, Rate, Trace, TracePace, read_trace


def test_bytes_follow_each_other_at_a_rate():
    pace = Rate(1000.0)
    assert [pace.passed_s(500, now) for now in (10.0, 10.0, 20.0)] == [10.5, 11.0, 20.5]


def test_packets_pass_when_the_trace_says_and_it_begins_again():
    """Two packets at 10 ms, one at 40 ms, from 100 s on; unused room is gone."""
    pace = TracePace(Trace((10, 10, 40)), 100.0)
    passed = [pace.passed_s(PACKET_BYTES, now) for now in (100.0, 100.0, 100.0, 100.0, 100.085)]
    assert passed == pytest.approx([100.01, 100.01, 100.04, 100.05, 100.09])
    assert pace.passed_s(1, 101.0) == pytest.approx(101.01)


def test_small_messages_share_a_packet():
    pace = TracePace(Trace((5, 100)), 0.0)
    assert [pace.passed_s(700, 0.0) for _ in range(3)] == [0.005, 0.005, 0.1]


@given(
    times=st.lists(st.integers(0, 300), min_size=1, max_size=20).map(sorted),
    sends=st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 0.5)), min_size=1, max_size=20),
)
def test_a_link_never_passes_more_than_its_trace_has(times, sends):
    trace = Trace((*times, times[-1] + 1))
    pace, now, before, total = TracePace(trace, 0.0), 0.0, 0.0, 0
    for size, rest in sends:
        passed = pace.passed_s(size, now)
        total += size
        assert passed >= max(now, before)
        assert total <= trace.packets_by(passed + 1e-6) * PACKET_BYTES
        now, before = now + rest, passed


def test_a_file_is_read(tmp_path):
    file = tmp_path / "train.trace"
    file.write_text("0\n5\n5\n20\n")
    assert read_trace(file) == Trace((0, 5, 5, 20))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no length; expected lines with the milliseconds"),
        ("0\n0\n", "no length"),
        ("1\n\n3\n", r"line 2: expected a whole number of milliseconds, got ''"),
        ("1\n2.5\n", r"line 2: expected a whole number of milliseconds, got '2.5'"),
        ("5\n-3\n", "line 2: expected a whole"),
        ("5\n3\n", "line 2: 3 ms comes after 5 ms"),
        ("\xff\n", "line 1"),
        ("9" * 30, "line 1"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path, text, words):
    file = tmp_path / "bad.trace"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        read_trace(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"trace .*none\.trace: No such file"):
        read_trace(tmp_path / "none.trace")
