"""A fleet beside training alone, on the devices that nobody else may look into."""

from __future__ import annotations

import pytest
from tiny_bundle import tiny_bundle

from protofleet.api.results import read_results

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=12)]

_ROUNDS = 3
_STRATEGY = """
[strategy]
name = "{0}"
settings = {{epochs = 3, optimiser = {{kind = "adam", lr = 0.05}}}}

[round]
quorum = 1.0

[liveness]
grace_s = 600.0
"""
"""A round waits for a killed device, however slow its next start is: all have as many rounds."""


def _run(federation, name, *, baseline):
    federation.write(rounds=_ROUNDS, extra=_STRATEGY.format(name))
    if baseline:
        text = federation.file.read_text()
        asked = text.replace("[evaluation]\n", '[evaluation]\nbaseline = "local"\n')
        federation.file.write_text(asked)
    coordinator = federation.start_coordinator()
    devices = {one: federation.start_device(one) for one in federation.devices}
    coordinator.wait_for(lambda e: e["event"] == "round_closed" and e["round_id"] == 1)
    devices["device0"].kill()  # perhaps between its two trainings
    devices["device0"] = federation.start_device("device0")
    assert coordinator.finish() == 0, coordinator.log
    assert [one.finish() for one in devices.values()] == [0] * len(devices)
    return read_results(federation.run_dir)


def test_each_owner_is_told_what_training_alone_would_have_brought(make_federation, tmp_path, key):
    """What comes of it is the bits of a run of ``local``; and the others' rounds are as ever."""
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    found = _run(make_federation("both", bundle, 3), "ditto", baseline=True)
    plain = _run(make_federation("plain", bundle, 3), "ditto", baseline=False)
    local = _run(make_federation("alone", bundle, 3), "local", baseline=False)
    ends = {one.id: one.end for one in local.outcome.owners}
    assert {one.id: one.alone for one in found.outcome.owners} == ends
    assert {one.id: one.end for one in found.outcome.owners} == {
        one.id: one.end for one in plain.outcome.owners
    }
    assert "than alone (" in str(found)
    assert plain.outcome.beside_alone is None
    alone, by_itself = (
        found.rounds[-1].scores.more["alone"],
        local.rounds[-1].scores.personalisation,
    )
    assert alone.items() <= by_itself.items()
    assert "accuracy" in alone
