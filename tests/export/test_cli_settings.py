"""What the command line says and reads about models and their settings."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from protofleet.cli._settings import parse_pairs
from protofleet.cli.export import export
from protofleet.cli.pretrain import pretrain
from protofleet.errors import InputError
from protofleet.export.models import MODELS
from protofleet.export.objectives import OBJECTIVES


@pytest.mark.parametrize("command", [export, pretrain], ids=["export", "pretrain"])
def test_the_help_names_every_model(command) -> None:
    words = CliRunner().invoke(command, ["--help"]).stdout.replace(",", " ").split()
    assert set(MODELS) <= set(words)


def test_the_help_of_export_names_every_objective() -> None:
    words = CliRunner().invoke(export, ["--help"]).stdout
    for mark in ",[]|\n":
        words = words.replace(mark, " ")
    assert set(OBJECTIVES) <= set(words.split())


def test_values_are_json_or_text() -> None:
    pairs = ("width=64", "hidden=[8, 4]", 'optimiser={"kind": "sgd"}', "fidelity=code", "name=a=b")
    assert parse_pairs(pairs) == {
        "width": 64,
        "hidden": [8, 4],
        "optimiser": {"kind": "sgd"},
        "fidelity": "code",
        "name": "a=b",
    }


@pytest.mark.parametrize("pair", ["width", "=3", ""])
def test_a_pair_without_key_or_value_is_refused(pair: str) -> None:
    with pytest.raises(InputError, match="expected KEY=VALUE"):
        parse_pairs((pair,))
