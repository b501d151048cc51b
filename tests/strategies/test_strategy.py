"""A method is a class: what it says of itself, and what it is built from."""

import pkgutil
from dataclasses import replace
from typing import Annotated

import pytest
from toy_model import SGD

from protofleet.errors import InputError
from protofleet.strategies import STRATEGIES, methods
from protofleet.strategies.bounds import Bounds
from protofleet.strategies.methods.fedavg import FedAvg, FedAvgSettings
from protofleet.strategies.methods.fedavg_c import FedAvgC
from protofleet.strategies.shared_model import SharedTraining


class OwnSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    share: Annotated[float, Bounds(0, 1)] = 0.5


class Own(FedAvg):
    description = replace(FedAvg.description, name="own")
    settings: OwnSettings


def test_the_annotation_says_which_settings_it_is_built_from(model):
    assert Own.settings_type() is OwnSettings
    assert FedAvgC.settings_type() is FedAvgSettings
    assert Own.build({**SGD, "share": 0.25}, model).settings.share == 0.25
    for wrong in ({"shares": 0.25}, {"share": 2}):
        with pytest.raises(InputError, match=r"strategy 'own'.*share"):
            Own.build(wrong, model)


def test_each_file_of_the_folder_is_the_strategy_of_its_name():
    assert sorted(STRATEGIES) == sorted(one.name for one in pkgutil.iter_modules(methods.__path__))
    for name, one in STRATEGIES.items():
        assert one.__module__.startswith(f"{methods.__name__}.{name}")
        assert one.description.name == name
        assert one.__doc__
