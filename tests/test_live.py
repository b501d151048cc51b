"""The fleet on a terminal: who does what, folded where there are many, and never wider than it."""

from __future__ import annotations

import io

import pytest
from msgspec import structs
from rich.console import Console

from protofleet.hub.dashboard.records import CurrentRound, DeviceView, RunSnapshot
from protofleet.live import activity, fleet_table
from protofleet.wire.mqtt.usage import NO_USAGE

_NOW = 1000.0


def _device(name, phase="idle", state="online", **more):
    used = structs.replace(NO_USAGE, bytes_up=1500)
    return DeviceView(
        device_id=name, phase=phase, state=state, phase_since_s=_NOW - 75, usage=used, **more
    )


def _run(*devices, delivered=()):
    names = tuple(one.device_id for one in devices)
    current = CurrentRound(
        round_id=3, phase="open", final=False, size=4, attempt=0, opened_s=_NOW - 90,
        deadline_s=_NOW + 30, cohort=names, delivered=frozenset(delivered),
    )  # fmt: skip
    return RunSnapshot(
        key="a", name="a", folder="a", read_s=_NOW, operation="running", rounds=10,
        current=current, devices={one.device_id: one for one in devices},
    )  # fmt: skip


def _lines(run, width=100, rows=10):
    console = Console(file=io.StringIO(), width=width, height=40, force_terminal=False)
    console.print(fleet_table(run, width=width, rows=rows, now_s=_NOW))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


_FLEET = (
    _device("a", "train", score=0.8125),
    _device("b", "send"),
    _device("c"),
    _device("d", state="held", conditions=("battery",), since_s=_NOW - 10),
    _device("e", state="refused", rule="bundle"),
    _device("f", "idle"),
)


def test_each_device_says_where_it_is_in_the_round():
    run = _run(*_FLEET, delivered=["c"])
    doing = [activity(run, device) for device in _FLEET]
    assert doing == ["train", "send", "done", "held", "refused", "invited"]
    lines = _lines(run)
    assert lines[0].startswith("round 3/10")
    assert lines[0].endswith("1 of 4 updates, 1:30, 30 s left")
    for part in ("1 trains", "1 done", "1 held"):
        assert part in lines[1]
    assert lines[3].split() == ["a", "trains", "1:15", "1.5", "kB", "0", "B", "0.8125"]
    assert "held: battery" in lines[6]
    assert "refused: bundle" in lines[7]


@pytest.mark.parametrize("phase", ["open", "committed"])
def test_who_trains_for_an_earlier_round_does_not_wait(phase):
    """In a buffered schedule rounds come and go while a slow device is busy with its task."""
    fleet = (_device("a", "train"), _device("b", "idle"), _device("c", "idle"))
    run = _run(*fleet, delivered=["c"])
    run = structs.replace(
        run, current=structs.replace(run.current, phase=phase, cohort=("c",), late=("a", "b"))
    )
    doing = [activity(run, device) for device in fleet]
    assert doing == ["train", "invited", "done" if phase == "open" else "waiting"]
    assert [line.split()[0] for line in _lines(run, rows=2)[3:]] == ["a", "b"]


def test_many_devices_fold_into_counts_and_those_that_are_waited_for_longest():
    slow = DeviceView(device_id="slow", state="online", phase="train", phase_since_s=1.0)
    fleet = [_device(f"d{index:03}", "train") for index in range(500)]
    lines = _lines(_run(*fleet, slow), rows=3)
    assert "501 trains" in lines[1]
    assert "3 slowest of 501" in lines[1]
    assert len(lines) == 6
    assert lines[3].startswith("slow ")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_wider_than_the_terminal(width):
    named = _device("a-device-with-a-very-long-name-indeed", "train", score=0.5)
    lines = _lines(_run(*_FLEET, named), width=width)
    assert max(map(len, lines)) <= width
    assert sum("trains" in line for line in lines[3:]) == 2


def test_what_a_device_says_is_text():
    evil = _device("x", state="held", conditions=("\x1b[red]x",))
    lines = _lines(_run(evil))
    assert "\x1b" not in "".join(lines)
    assert "[red]" in "".join(lines)
