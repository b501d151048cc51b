"""Who was heard when: written by the coordinator, read on by others."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from protofleet.coordinator.devices.registry import Device
from protofleet.coordinator.devices.sightings import SIGHTINGS, Sightings, SightingsReader
from protofleet.wire.messages import Heartbeat


def _device(name, **changes):
    return Device(device_id=name, fits=True, live=True, bundle="ab" * 32, **changes)


def _beat(name, phase="train", up=7):
    return Heartbeat(
        device_id=name,
        boot_id="b",
        round_id=3,
        phase=phase,
        bytes_up=up,
        bytes_down=8,
        peak_rss_bytes=9,
    )


@pytest.fixture
def sightings(tmp_path):
    made = Sightings(tmp_path)
    yield made
    made.close()


def test_a_reader_gets_what_has_changed_since_it_last_looked(tmp_path, sightings):
    reader = SightingsReader(tmp_path)
    sightings.stands("anna", "online", _device("anna"))
    sightings.stands("berta", "held", _device("berta", held=("charging",)))
    sightings.flush(0.0)
    assert reader.read()
    assert reader.known["berta"].conditions == ("charging",)
    assert not reader.read()
    sightings.beat("anna", _beat("anna"))
    sightings.flush(100.0)
    assert reader.read()
    anna = reader.known["anna"]
    assert (anna.state, anna.phase, anna.round_id, anna.usage.bytes_up) == ("online", "train", 3, 7)


def test_a_burst_is_written_once_a_second_at_most(tmp_path, sightings):
    reader = SightingsReader(tmp_path)
    sightings.stands("anna", "online", _device("anna"))
    sightings.flush(0.0)
    reader.read()
    sightings.beat("anna", _beat("anna"))
    sightings.flush(0.5)
    assert not reader.read()


def test_what_a_reader_holds_up_is_written_later_and_a_wrong_statement_is_an_error(
    tmp_path, sightings
):
    sightings.stands("anna", "online", _device("anna"))
    with closing(sqlite3.connect(tmp_path / SIGHTINGS)) as other:
        other.execute("BEGIN EXCLUSIVE")
        sightings.flush(0.0)
    sightings.flush(100.0)
    reader = SightingsReader(tmp_path)
    assert reader.read()
    assert reader.known["anna"].state == "online"
    with closing(sqlite3.connect(tmp_path / SIGHTINGS)) as other:
        other.execute("ALTER TABLE devices DROP COLUMN bundle")
    sightings.stands("berta", "online", _device("berta"))
    with pytest.raises(sqlite3.OperationalError, match="no column named bundle"):
        sightings.flush(200.0)
    sightings._changed.clear()


def test_names_that_never_presented_themselves_are_not_kept(tmp_path, sightings):
    sightings.heard("ghost")
    sightings.stands("ghost", "offline")
    sightings.flush(0.0)
    reader = SightingsReader(tmp_path)
    assert not reader.read()


def test_a_new_process_begins_with_none_and_a_reader_follows(tmp_path, sightings):
    reader = SightingsReader(tmp_path)
    sightings.stands("anna", "online", _device("anna"))
    sightings.close()
    assert reader.read()
    again = Sightings(tmp_path)
    again.stands("berta", "online", _device("berta"))
    again.close()
    assert reader.read()
    assert list(reader.known) == ["berta"]


def test_a_disk_that_takes_no_writes_holds_nothing_up(tmp_path):
    (tmp_path / SIGHTINGS).mkdir()
    sightings = Sightings(tmp_path)
    sightings.stands("anna", "online", _device("anna"))
    sightings.flush(0.0)
    sightings.close()
