"""What a TOML block of the documentation may be: a file that people write, or a part of one."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.mapping import read_mapping
from protofleet.edge.data.unbundled import manifest_for
from protofleet.edge.owner.policy import read_policy
from protofleet.errors import ProtofleetError
from protofleet.experiments.claim_registry import load_claims
from protofleet.experiments.config import load_experiment
from protofleet.federation.outcomes.calibration import is_auto, ladder_of, with_rate
from protofleet.federation.plan import PUBLISHED
from protofleet.federation.settings import load_config
from protofleet.firmware_sim.profile import load_fleet
from protofleet.strategies import DESCRIPTIONS, STRATEGIES, aggregation

_BROKER = "mqtt://127.0.0.1:1883"
_FEDERATION = {
    "federation": "home",
    "broker": _BROKER,
    "bundle": "bundle.pfb",
    "run_dir": "run",
    "rounds": 1,
}
_FLEET = {
    "federation": "home",
    "broker": _BROKER,
    "bundle": "bundle.pfb",
    "folder": "fleet",
    "devices": [{"id": "pi-1", "data": "mine.npz"}],
}
_EXPERIMENT = {
    "title": "one",
    "paper": "fedala",
    "table": "Table 2",
    "data": [{"name": "mnist"}],
    "partition": {"kind": "natural"},
    "split": {"kind": "random"},
    "model": {"name": "cnn"},
    "rounds": 1,
    "seeds": [1],
    "score": {"metric": "macro_f1", "sections": ["personalisation"]},
    "methods": [{"label": "FedAvg", "strategy": "fedavg"}],
}


def refusals(text: str, folder: Path) -> list[str]:
    """Why no reader takes this block; empty: one does.

    Args:
        text: TOML; where it is a part of a file, the rest is filled in.
        folder: for the files that the readers read.
    """
    block = tomllib.loads(text)
    reasons = []
    for read in (_federation, _fleet, _experiment, _policy, _mapping, _claims, _strategy, _package):
        try:
            read(block, folder)
        except (ProtofleetError, msgspec.ValidationError) as error:
            reasons.append(str(error))
        else:
            return []
    return reasons


def _written(block: Mapping[str, Any], rest: Mapping[str, Any], folder: Path) -> Path:
    path = folder / "block.toml"
    path.write_text(tomli_w.dumps({**rest, **block}))
    return path


def _federation(block: Mapping[str, Any], folder: Path) -> None:
    config = load_config(_written(block, _FEDERATION, folder))
    aggregation.build(config.aggregation.kind, config.aggregation.settings)
    if config.strategy.settings:
        _strategy(config.strategy.settings, folder)


def _fleet(block: Mapping[str, Any], folder: Path) -> None:
    load_fleet(_written(block, _FLEET, folder))


def _experiment(block: Mapping[str, Any], folder: Path) -> None:
    experiment = load_experiment(_written(block, _EXPERIMENT, folder))
    aggregation.build(experiment.aggregation.kind, experiment.aggregation.settings)


def _policy(block: Mapping[str, Any], folder: Path) -> None:
    read_policy(_written(block, {}, folder), {})


def _mapping(block: Mapping[str, Any], folder: Path) -> None:
    inputs = Preprocessing(input_shape=(20, 3), channels=("acc_x", "acc_y", "acc_z"))
    read_mapping(
        _written(block, {}, folder),
        manifest_for(inputs, ("still", "walk", "lying", "sitting", "walking")),
    )


def _claims(block: Mapping[str, Any], folder: Path) -> None:
    registered = folder / "claims"
    registered.mkdir(exist_ok=True)
    _written(block, {}, registered)
    load_claims(registered)


def _strategy(block: Mapping[str, Any], _folder: Path) -> None:
    """Some strategy's record takes the settings, with any learning rate that devices may find."""
    if block.get("optimiser") == PUBLISHED:
        block = {**block, "optimiser": DESCRIPTIONS["fedala"].published}
    if is_auto(block):
        block = with_rate(block, ladder_of(block)[1][0])
    records = {one.settings_type() for one in STRATEGIES.values()}
    if not any(_fits(block, record) for record in records):
        raise msgspec.ValidationError(f"no strategy takes {dict(block)}")


def _fits(block: Mapping[str, Any], record: type) -> bool:
    try:
        msgspec.convert(dict(block), record)
    except (msgspec.ValidationError, ProtofleetError):
        return False
    return True


def _package(block: Mapping[str, Any], _folder: Path) -> None:
    """A ``pyproject.toml`` of a package with strategies."""
    points = block.get("project", {}).get("entry-points", {})
    if set(block) != {"project"} or set(points) != {"protofleet.strategies"}:
        raise msgspec.ValidationError(f"no package with strategies: {dict(block)}")
