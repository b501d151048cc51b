"""The page of a real run: what each device has come to, and what its model started from."""

from __future__ import annotations

import pytest
from tiny_bundle import tiny_bundle

from protofleet.federation.records import RunRecord, load_record
from protofleet.report import details_of_folder, write_report

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=5)]


@pytest.fixture
def run_dir(make_federation, tmp_path, key):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    extra = '[strategy.settings]\noptimiser = {kind = "sgd", lr = 0.1}\n'
    federation.write(rounds=3, extra=extra)
    processes = [federation.start_coordinator(), *map(federation.start_device, federation.devices)]
    assert [one.finish() for one in processes] == [0, 0, 0]
    return federation.run_dir


def test_a_run_is_shown_from_before_its_first_round(run_dir):
    result = load_record(run_dir / "result.json", RunRecord)
    before = result.start.global_["accuracy"].mean
    assert 0 <= before <= 1
    assert before != result.rounds[-1].scores.global_["accuracy"].mean
    details = details_of_folder(run_dir)
    for device in result.devices:
        assert [one.round_id for one in details.scores[device.id]] == [1, 2, 3]
    last = [scores[-1].score for scores in details.scores.values()]
    assert sum(last) / len(last) == pytest.approx(result.last.personalisation["macro_f1"].mean)
    assert [one.device_id for one in details.confusions] == [one.id for one in result.devices]
    page = write_report(run_dir).read_text()
    assert page.count("<polyline") == len(result.devices)
    assert "before the first round" in page
