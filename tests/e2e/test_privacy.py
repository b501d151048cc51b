"""Differential privacy in a live federation: noise that survives a crash, and what is told."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from threaded import CrashError, Device, Federation
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.cli.report import report
from protofleet.coordinator import events
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.datasets import DeviceData
from protofleet.edge.join import JoinOptions, JoinSettings
from protofleet.edge.learning.training import LocalData
from protofleet.federation.accounting import epsilon_of
from protofleet.federation.records import FleetDetails, RunRecord, Sends, load_record
from protofleet.federation.settings import (
    AdaptiveClip,
    CohortSettings,
    FederationConfig,
    PrivacySettings,
)
from protofleet.strategies.privacy import CLIP
from protofleet.wire.mqtt.broker_access import BrokerAccess

pytestmark = pytest.mark.mosquitto

_PRIVACY = PrivacySettings(
    noise_multiplier=1.0, clip=AdaptiveClip(initial=0.5), devices=3, delta=0.01
)


def _data(seed):
    x, y = tiny_data(seed, 24)
    x_test, y_test = tiny_data(1000 + seed, 9)
    classes = ("class0", "class1", "class2")
    own = DeviceData(x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=classes)
    return LocalData(own=own)


_DATA = {name: _data(seed) for seed, name in enumerate(("anna", "berta", "carla"))}


@pytest.fixture
def config(tmp_path, mosquitto_url, key):
    return FederationConfig(
        federation="home",
        broker=BrokerAccess(url=mosquitto_url),
        bundle=tiny_bundle(tmp_path / "tiny.pfb", key),
        run_dir=tmp_path / "run",
        rounds=3,
        cohort=CohortSettings(minimum=3),
        privacy=_PRIVACY,
    )


@pytest.fixture
def dying(monkeypatch):
    """The coordinator dies between the noise and the commit of round 2; what it had made."""
    made, commit = [], Ledger.commit_round

    def commit_or_die(self, state, *args, **kwargs):
        seed = self.noise.folder / f"{state.round_id:06d}"
        assert seed.stat().st_mode & 0o777 == 0o600
        made.append((state.round_id, {name: v.tobytes() for name, v in state.tensors.items()}))
        if [round_id for round_id, _ in made] == [1, 2]:
            raise CrashError
        commit(self, state, *args, **kwargs)
        assert not seed.exists()

    monkeypatch.setattr(Ledger, "commit_round", commit_or_die)
    return made


def _closed(federation):
    return [one for one in federation.reports if isinstance(one, events.RoundClosed)]


@pytest.mark.slow(seconds=4)
def test_a_private_federation_survives_a_kill_and_tells_what_it_spent(config, dying):
    with Federation(config, _DATA) as federation:
        with pytest.raises(CrashError):
            federation.coordinator.finish(60)
        federation.start_coordinator()
        federation.finish()
    assert [round_id for round_id, _ in dying] == [1, 2, 2, 3]
    assert dying[1][1] == dying[2][1]
    assert len({tensors["params/w"] for _, tensors in dying}) == 3
    # Three different norms would ask too much: noise at both ends of the range goes back and forth.
    clips = [np.float64(0.5).tobytes()] + [dying[round_][1][CLIP] for round_ in (0, 2, 3)]
    assert all(before != after for before, after in pairwise(clips))

    run = load_record(config.run_dir / "result.json", RunRecord)
    spent = [one.privacy.epsilon for one in run.rounds]
    assert spent == [epsilon_of(1.0, rounds, 0.01) for rounds in (1, 2, 3)]
    assert run.privacy.participations == 3
    assert not run.privacy.repeatable
    assert f"ε = {spent[2]:.3g} at δ = 0.01" in _closed(federation)[-1].text

    assert run.switched_off == "scores, losses and costs, and numbers of examples"
    assert [one.scores.personalisation for one in run.rounds] == [None] * 3
    fleet = load_record(config.run_dir / "devices.json", FleetDetails)
    assert {(one.num_examples, one.evaluation.own, one.infer_ms) for one in fleet.devices} == {
        (1, None, ())
    }
    made = CliRunner().invoke(report, [str(config.run_dir)])
    assert "switched off by [privacy]" in made.stderr
    page = (config.run_dir / "report.html").read_text()
    assert f"ε = {spent[2]:.3g} at δ = 0.01 per device" in page
    assert "scores, losses and costs, and numbers of examples" in page


@pytest.mark.slow(seconds=3)
def test_a_device_whose_owner_keeps_scores_and_counts_never_sends_them(config):
    """The coordinator asks for both; what the other devices say is there."""
    config = msgspec.structs.replace(config, rounds=1, privacy=PrivacySettings())
    with Federation(config, {name: _DATA[name] for name in ("berta", "carla")}) as federation:
        options = JoinOptions(
            broker=config.broker,
            federation=config.federation,
            bundle=config.bundle,
            store=federation.store("anna"),
            device_id="anna",
            settings=JoinSettings(sends=Sends(scores=False, counts=False)),
        )
        federation.devices["anna"] = Device(options, _DATA["anna"])
        federation.finish()
    fleet = load_record(config.run_dir / "devices.json", FleetDetails)
    anna, berta, _ = fleet.devices
    assert (anna.num_examples, anna.evaluation.own, anna.phases_s) == (1, None, {})
    assert (berta.num_examples, berta.evaluation.own is None) == (24, False)
    run = json.loads((config.run_dir / "result.json").read_text())
    assert run["rounds"][0]["privacy"] is None


@pytest.mark.slow(seconds=8)
def test_secretly_drawn_cohorts_run_to_the_end_and_some_have_nobody(config):
    """Each round spends the same, however many were drawn, and a round without any is noise."""
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    privacy = msgspec.structs.replace(
        _PRIVACY, sampling="secret", devices=1, epsilon_budget=20.0, delta=0.01
    )
    cohort = CohortSettings(size=0.25, minimum=3)
    config = msgspec.structs.replace(config, rounds=12, privacy=privacy, cohort=cohort)
    with Federation(config, _DATA) as federation:
        federation.finish()
    opened = [one for one in federation.reports if isinstance(one, events.RoundOpened)]
    closed = _closed(federation)
    assert [one.participants for one in closed] == [len(one.cohort) for one in opened]
    assert len({len(one.cohort) for one in opened}) > 1
    spent = [one.privacy.epsilon for one in closed]
    assert spent == sorted(spent)
    assert 0 < spent[-1] < epsilon_of(1.0, 12, 0.01)
