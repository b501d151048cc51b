"""A figure that devices tell: refused beyond its bounds, merged as declared, and told to owners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protofleet.errors import RefusedError
from protofleet.wire.messages import Heartbeat, decode
from protofleet.wire.mqtt.usage import FIGURES, NO_USAGE, Shown, UsageFigure

_GOLDEN = json.loads((Path(__file__).parent / "golden" / "heartbeat.json").read_bytes())
_DOCS = Path(__file__).parents[2] / "docs"


_COUNTS = [one for one in FIGURES if one.whole]


@pytest.mark.parametrize("value", [-(2**44) - 1, 2**44 + 1, 2**70, -1e300, 1e300, "7", [1]])
@pytest.mark.parametrize("one", FIGURES, ids=lambda one: one.name)
def test_what_cannot_be_is_refused_by_its_name(one, value):
    beat = json.dumps({**_GOLDEN, one.name: value}).encode()
    with pytest.raises(RefusedError, match=one.name):
        decode(beat, Heartbeat)


@pytest.mark.parametrize("value", [-1, 1.5, None])
@pytest.mark.parametrize("one", _COUNTS, ids=lambda one: one.name)
def test_a_count_is_a_whole_number_from_zero(one, value):
    beat = json.dumps({**_GOLDEN, one.name: value}).encode()
    with pytest.raises(RefusedError, match=one.name):
        decode(beat, Heartbeat)


@pytest.mark.parametrize("round_id", [-1, 2**63, 2**70])
def test_a_round_that_is_no_count_is_refused(round_id):
    with pytest.raises(RefusedError, match="round_id"):
        decode(json.dumps({**_GOLDEN, "round_id": round_id}).encode(), Heartbeat)


@pytest.mark.parametrize(
    ("merge", "earlier", "later", "expected"),
    [
        ("counter", 5, 3, 5),
        ("largest", 5, 9, 9),
        ("last", 5, 3, 3),
        ("last", 5, None, 5),
        ("largest", None, 9, 9),
        ("counter", None, None, None),
    ],
)
def test_a_later_value_joins_an_earlier_one_as_declared(merge, earlier, later, expected):
    one = UsageFigure(name="any", shown=Shown("Any", "°C", merge), whole=False, optional=True)
    assert one.merged(earlier, later) == expected


def test_nothing_told_reads_as_nothing():
    assert [one.text(NO_USAGE) for one in FIGURES] == ["-"] * len(FIGURES)


@pytest.mark.parametrize("one", FIGURES, ids=lambda one: one.name)
def test_the_pages_say_that_it_leaves_the_device(one):
    """An owner is promised a whole list of it."""
    assert f"`{one.name}`" in (_DOCS / "protocol.md").read_text()
    told = (_DOCS / "privacy.md").read_text()
    (row,) = (line for line in told.splitlines() if line.startswith("| heartbeats:"))
    assert one.shown.label.lower() in row
