"""Bytes of the day and of the month, over restarts."""

from __future__ import annotations

import time

import pytest

from protofleet.edge.owner.data_use import DataUse


def _at(text):
    return time.strptime(text, "%Y-%m-%d %H:%M")


def test_a_day_and_a_month_begin_at_what_was_paid_before(tmp_path):
    path = tmp_path / "data_use.json"
    use = DataUse(path)
    assert use.used(1000, _at("2026-01-30 23:00")) == (0, 0)
    assert use.used(1500, _at("2026-01-30 23:59")) == (500, 500)
    assert DataUse(path).used(1600, _at("2026-01-31 00:01")) == (0, 600)
    assert DataUse(path).used(1700, _at("2026-01-31 12:00")) == (100, 700)
    assert DataUse(path).used(1750, _at("2026-02-01 00:00")) == (0, 0)


def test_a_clock_that_is_not_set_yet_begins_no_day(tmp_path):
    """A board without a battery starts in 1970, until its network has told the time."""
    path = tmp_path / "data_use.json"
    DataUse(path).used(1000, _at("2026-01-30 10:00"))
    assert DataUse(path).used(1400, _at("1970-01-01 00:01")) == (400, 400)
    assert DataUse(path).used(1500, _at("2026-01-30 12:00")) == (500, 500)
    assert DataUse(path).used(1600, _at("1970-01-01 00:01")) == (600, 600)
    assert DataUse(path).used(1700, _at("2026-01-31 12:00")) == (0, 700)


def test_the_file_is_written_when_a_day_begins_and_not_at_every_look(tmp_path):
    path = tmp_path / "data_use.json"
    use = DataUse(path)
    use.used(10, _at("2026-01-30 10:00"))
    path.unlink()
    use.used(20, _at("2026-01-30 11:00"))
    assert not path.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"day":"x","day_from":-1,"month":"","month_from":0}']
)
def test_a_damaged_file_begins_anew(tmp_path, text):
    path = tmp_path / "data_use.json"
    path.write_text(text)
    assert DataUse(path).used(70, _at("2026-01-30 10:00")) == (0, 0)


def test_a_total_that_fell_counts_from_where_it_is(tmp_path):
    """A store that began anew has counted less than its file says."""
    use = DataUse(tmp_path / "data_use.json")
    use.used(1000, _at("2026-01-30 10:00"))
    assert use.used(50, _at("2026-01-30 11:00")) == (0, 0)
    assert use.used(80, _at("2026-01-30 11:00")) == (30, 30)
