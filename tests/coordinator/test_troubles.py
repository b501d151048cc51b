"""What is wrong on devices that take part, as the run's readers are told of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from fake_endpoint import CONNECTED

from protofleet.coordinator import events
from protofleet.coordinator.ledger.device_rows import DeviceRows
from protofleet.coordinator.results import troubles_of

_TOLD = (events.DeviceTrouble, "device_id", "what")


def _kept(fed):
    with closing(sqlite3.connect(fed.plan.config.run_dir / "ledger.sqlite")) as db:
        return DeviceRows(db).troubles()


def test_a_device_whose_training_diverges_is_told_of_until_it_does_not(open_federation):
    fed = open_federation(rounds=3)
    both = [fed.online("a"), fed.online("b")]
    fed.play(CONNECTED, *both, fed.refuses("a", "diverged"), fed.delivers("b"))
    assert fed.told(*_TOLD) == [
        ("a", "training ended in NaN or infinity in the last round, on 1 device: a")
    ]
    assert _kept(fed) == {"diverged": ("a",)}
    (told,) = troubles_of(fed.plan.config.run_dir)
    assert told.what == "training ended in NaN or infinity in the last round, on 1 device: a"
    assert "learning rate" in told.remedy

    # Another process of the coordinator knows it, and tells it no more.
    fed.play(CONNECTED, *both, fed.refuses("a", "diverged"), fed.delivers("b", 2))
    assert len(fed.told(*_TOLD)) == 1
    fed.play(
        *(CONNECTED, *both, fed.delivers("a", 3), fed.delivers("b", 3)),
        *(fed.gone("a"), fed.gone("b")),
    )
    assert _kept(fed) == {}
    assert troubles_of(fed.plan.config.run_dir) == ()


@pytest.mark.parametrize("doubts", [("scale",), ("scale", "colour")])
def test_a_device_that_doubts_the_scale_of_its_data_takes_part_and_is_told_of(
    open_federation, doubts
):
    fed = open_federation(rounds=1)
    fed.play(CONNECTED, fed.online("a", doubts=doubts), fed.online("a", doubts=doubts))
    assert fed.told(*_TOLD) == [
        ("a", "the training examples are far from the bundle's scale, on 1 device: a")
    ]
    (told,) = troubles_of(fed.plan.config.run_dir)
    assert "units" in told.remedy
    fed.play(CONNECTED, fed.online("a"))
    assert _kept(fed) == {}


def test_words_that_nobody_knows_are_no_trouble(open_federation):
    fed = open_federation(rounds=1)
    fed.play(CONNECTED, fed.online("a", doubts=("colour",)))
    assert fed.told(*_TOLD) == []
    assert _kept(fed) == {}
