"""What a bundle lacks for a strategy is known before a coordinator waits for devices."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from protofleet.errors import InputError
from protofleet.federation.plan import make_plan
from protofleet.federation.settings import StrategySettings
from protofleet.federation.suitability import build_for, why_not
from protofleet.strategies import DESCRIPTIONS


def _config(tiny, name):
    return msgspec.structs.replace(tiny.plan.config, strategy=StrategySettings(name=name))


@pytest.mark.parametrize(
    ("name", "lack"),
    [
        ("moon", r"needs a training program 'moon', .*--strategy moon --head NAME --out"),
        (
            "fedper",
            "does not say which parameters are its head.* --strategy fedper --head NAME --out",
        ),
        ("fedhp", "--strategy fedavg --strategy fedhp --head NAME --head-kind prototypes --out"),
        ("fedali", "--align 'MODULE=PROTOTYPES'"),
        ("fedsub", "--strategy fedavg --strategy fedsub --out NEW.pfb"),
        ("cdfl", "expected images"),
    ],
)
def test_a_plan_for_a_bundle_that_lacks_something_says_how_to_export_it(tiny, name, lack):
    with pytest.raises(InputError, match=lack):
        make_plan(_config(tiny, name))


def test_a_program_of_features_is_asked_for_by_those_that_use_it(tiny):
    manifest, model = tiny.plan.bundle.manifest, tiny.plan.model
    programs = {name: one for name, one in manifest.programs.items() if name != "features"}
    trained = msgspec.structs.replace(programs["train"], objective="moon")
    bare = msgspec.structs.replace(manifest, programs={**programs, "train": trained})
    with pytest.raises(InputError, match="needs a program 'features', bundle 'tiny' has infer"):
        build_for(bare, model, "moon", {})


def test_every_strategy_is_answered_for(tiny):
    reasons = why_not(tiny.plan.bundle)
    assert list(reasons) == sorted(DESCRIPTIONS)
    assert reasons["fedavg"] == reasons["scaffold"] == ""
    assert reasons["cdfl"].startswith("expected images")
    assert all(reasons[name] for name in ("cdfl", "fedali", "fedhp", "fedper", "fedsub", "moon"))


def test_what_no_export_can_find_is_not_asked_for_again(tiny):
    """The bundle tells what the model has instead; the advice is another method."""
    manifest = msgspec.structs.replace(tiny.plan.bundle.manifest, no_layers="LSTM 'rnn'")
    model = dataclasses.replace(tiny.plan.model, no_layers=manifest.no_layers)
    with pytest.raises(
        InputError, match=r"got LSTM 'rnn'; with the model as it is take ditto"
    ) as told:
        build_for(manifest, model, "fedsub", {})
    assert "protofleet export" not in str(told.value)
