"""What decides that a method beside the run need not be trained again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.demo import DemoSettings
from protofleet.demo.comparison import make_job
from protofleet.demo.recipes import DemoData, DemoModel
from protofleet.wire.mqtt.broker_access import BrokerAccess

_SETTINGS = DemoSettings(
    data="digits",
    data_root=None,
    strategy="fedali",
    devices=1,
    rounds=2,
    seed=3,
    broker=None,
    sensors="playback",
)
_DATA = DemoData(
    title="t",
    devices=(),
    own={"device-01": Path("data/device-01.npz")},
    pooled=Path("data/pooled.npz"),
    central=Path("data/central.npz"),
    pretrain=(),
    models={
        "aligned": DemoModel(name="vit_digits", settings={}),
        "plain": DemoModel(name="vit_digits", settings={"prototypes": []}),
    },
    classes=("a", "b"),
    preprocessing=Preprocessing(input_shape=(1, 8, 8)),
    strategy_settings={"epochs": 3},
)


def _job(strategy="fedavg", **changes):
    settings = msgspec.structs.replace(_SETTINGS, **changes)
    return make_job(strategy, settings, _DATA, Path("comparison/bundle.pfb"))


def test_a_demonstration_that_goes_on_with_another_broker_keeps_what_was_trained_without_one():
    key = _job().data.key
    assert _job(broker=BrokerAccess(url="mqtt://elsewhere:1884")).data.key == key
    assert _job(seed=4).data.key != key
    assert _job(sensors="published").data.key != key


@pytest.mark.parametrize(("strategy", "settings"), [("local", {"prototypes": []}), ("fedali", {})])
def test_a_method_has_the_run_s_data_seed_rounds_and_settings_and_its_own_network(
    strategy, settings
):
    job = _job(strategy)
    assert (job.seed, job.rounds, job.experiment.seeds) == (3, 2, (3,))
    assert job.experiment.training == {"epochs": 3}
    assert job.experiment.model_of(job.method).settings == settings
    assert job.data.clients["device-01"].own == Path("data/device-01.npz").resolve()
    assert job.data.pooled == Path("data/pooled.npz").resolve()
    assert job.folder == Path(f"comparison/methods/{strategy}/seed-3").resolve()
