from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protofleet.errors import InputError
from protofleet.federation import settings as config
from protofleet.federation.settings import FederationConfig, StrategySettings, count_of, load_config

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "coordinator.md"
_MINIMAL = """
federation = "home"
broker = "mqtt://127.0.0.1"
bundle = "model.pfb"
run_dir = "runs/home"
rounds = 3
"""


def _write(folder: Path, extra: str = "") -> Path:
    path = folder / "federation.toml"
    path.write_text(_MINIMAL + extra)
    return path


def test_relative_paths_start_at_the_files_folder(tmp_path):
    found = load_config(_write(tmp_path, '[evaluation]\npooled = "pooled.npz"\n'))
    assert found.bundle == tmp_path / "model.pfb"
    assert found.run_dir == tmp_path / "runs" / "home"
    assert found.evaluation.pooled == tmp_path / "pooled.npz"


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ("round_s = 3\n", "unknown key `round_s`; known are federation, broker, bundle"),
        ("[cohort]\nminimun = 3\n", "`cohort`: unknown key `minimun`; known are size, min"),
        ("cohort = 3\n", "`cohort`: expected a table with the keys minimum, over_selection, "),
        ("[codec]\nup = 'int9'\n", "`codec`: `up`: expected one of .*int8.*, got 'int9'"),
        ("trusted = [1]\n", r"`trusted\[0\]`: expected text, got a whole number"),
        ("[round]\nquorum = 1.5\n", "quorum"),
        ("[round]\ndeadline_s = 0\n", "deadline_s"),
        ("[cohort]\nsize = 'some'\n", "`cohort.size`: expected one of all or a number, got 'some'"),
        ("[cohort]\nsize = nan\n", "size"),
        ("[cohort]\nsize = 2\nover_selection = 0.9\n", "`over_selection`: expected a factor of 1 "),
        ("[cohort]\nsize = 2\nover_selection = nan\n", "`over_selection`: expected a factor of 1 "),
        ("[cohort]\nover_selection = 1.3\n", "`over_selection`: expected a `size` other than"),
        ("[cohort]\nselection = 'least_recent'\n", "`selection`: expected a `size` other than"),
        ("[cohort]\nselection = 'oldest'\n", "`cohort.selection`: expected one of least_recent"),
        ("[stragglers]\nbudget_s = 0\n", "`budget_s`: expected seconds above 0"),
        ("[stragglers]\nleast_work = 1.5\n", "`least_work`: expected a share above 0"),
        ("[limits]\nuploads = true\n", "uploads"),
        ("seed = -1\n", "seed"),
    ],
)
def test_wrong_settings_are_refused_by_name(tmp_path, extra, named):
    with pytest.raises(InputError, match=named):
        load_config(_write(tmp_path, extra))


_ADAM = {"kind": "adam", "lr": 0.001, "beta1": 0.8}


@pytest.mark.parametrize(
    ("override", "optimiser"),
    [
        ({}, _ADAM),
        ({"lr": 0.5}, {"kind": "adam", "lr": 0.5, "beta1": 0.8}),
        ({"kind": "adam", "lr": 0.5}, {"kind": "adam", "lr": 0.5, "beta1": 0.8}),
        ({"kind": "sgd"}, {"kind": "sgd"}),
    ],
)
def test_settings_in_force_are_the_bundle_s_with_tables_merged_key_by_key(override, optimiser):
    """A table that names another kind has no use for the old one's keys."""
    mine = StrategySettings(settings={"optimiser": override, "beta": 0.3})
    bundles = {"epochs": 2, "beta": 0.2, "optimiser": _ADAM}
    expected = {"epochs": 2, "beta": 0.3, "optimiser": optimiser}
    assert mine.over("fedali", bundles) == expected
    assert bundles["optimiser"] == {"kind": "adam", "lr": 0.001, "beta1": 0.8}


def test_another_strategy_starts_from_its_own_defaults():
    mine = StrategySettings(name="fedavg", settings={"epochs": 1})
    assert mine.over("fedali", {"beta": 0.2}) == {"epochs": 1}
    assert mine.over("fedavg", {"batch_size": 8}) == {"epochs": 1, "batch_size": 8}


def test_a_missing_setting_is_named(tmp_path):
    path = tmp_path / "f.toml"
    path.write_text('federation = "home"\n')
    with pytest.raises(InputError, match="expected a key `broker`, got none"):
        load_config(path)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(InputError, match="nothing"):
        load_config(tmp_path / "nothing.toml")


def _sections() -> list[type[msgspec.Struct]]:
    return [
        kind
        for kind in vars(config).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__[0] != "_"
    ]


def test_every_setting_is_documented():
    """docs/coordinator.md has a row for every field of every section."""
    text = _DOCS.read_text()
    fields = [field.name for kind in _sections() for field in msgspec.structs.fields(kind)]
    assert FederationConfig in _sections()
    assert [name for name in fields if f"`{name}`" not in text] == []


def test_amounts_count_or_are_fractions_rounded_up():
    assert [count_of(0.5, 3), count_of(1.0, 4), count_of(0.7, 10)] == [2, 4, 7]
    assert [count_of(2, 8), count_of(9, 8), count_of(1, 0)] == [2, 8, 0]
