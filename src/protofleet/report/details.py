"""``details.json``: what the report shows beyond ``result.json``, as typed records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.coordinator.ledger.queries import read_identity
from protofleet.coordinator.results import refresh
from protofleet.errors import InputError, MissingDataError
from protofleet.federation.records import (
    DeviceDetails,
    FleetDetails,
    RunRecord,
    load_record,
    save_record,
)
from protofleet.report.device_scores import RoundScore, device_scores
from protofleet.tensors import kind_of

MAX_SAMPLES = 2000
MAX_PROTOTYPES = 2000
_MOST_CONFUSIONS = 500
_OF_DEVICES = ("personalisation", "generalisation")


class Confusion(msgspec.Struct, frozen=True, kw_only=True):
    """One device's confusion counts: rows true, columns predicted class."""

    device_id: str
    counts: tuple[tuple[int, ...], ...]


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """One device's samples in milliseconds, at most ``MAX_SAMPLES`` of each."""

    device_id: str
    train_step_ms: tuple[float, ...] = ()
    infer_ms: tuple[float, ...] = ()


class Prototypes(msgspec.Struct, frozen=True, kw_only=True):
    """Prototypes of one layer.

    Attributes:
        layer: its name in the model.
        values: ``(n, d)``.
        groups: ``n`` labels, whose prototype it is: ``global``, a device's id, a class.
    """

    layer: str
    values: tuple[tuple[float, ...], ...]
    groups: tuple[str, ...]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``details.json``.

    Attributes:
        title: heading of the page.
        data: name of the data set.
        classes: names of classes, targets or labels; of classes in the order of the confusion
            counts.
        bundle: digest of the bundle.
        provenance: versions, settings, machine: what a reader needs to repeat the run.
        confusions: of the devices, at most 500.
        scores: own scores by round, of each device that told them.
        backends: who ran the bundle's programs, by device; empty: none has told.
        latencies: of the devices.
        prototypes: by layer; empty where the strategy has none.
        wall_s: of the whole run; None: the sum of the rounds is shown.
    """

    title: str
    data: str
    classes: tuple[str, ...] = ()
    bundle: str = ""
    provenance: dict[str, str] = {}
    confusions: tuple[Confusion, ...] = ()
    scores: dict[str, tuple[RoundScore, ...]] = {}
    backends: dict[str, str] = {}
    latencies: tuple[Latencies, ...] = ()
    prototypes: tuple[Prototypes, ...] = ()
    wall_s: float | None = None


def load_details(path: Path) -> Details:
    """Read ``details.json``.

    Raises:
        MissingDataError: there is no such file.
        InputError: a field is missing or of a wrong type.
    """
    return load_record(path, Details)


def details_of_folder(run_dir: Path) -> Details:
    """``details.json`` where there is one (a demonstration's), else what the coordinator left.

    Raises:
        MissingDataError: it is no run's folder, or no round of the run is committed yet.
        InputError: a field is missing or of a wrong type.
    """
    if (run_dir / "details.json").is_file():
        return load_details(run_dir / "details.json")
    refresh(run_dir)
    identity = read_identity(run_dir)
    if not (run_dir / "devices.json").is_file():
        begun = "no round of this run is committed yet" if identity else "this is no run's folder"
        raise MissingDataError(
            f"'{run_dir}': {begun}; expected the run_dir of a federation file, or the folder of a "
            "demonstration that has finished"
        )
    name = identity.get("federation", run_dir.resolve().name)
    return details_of_run(
        run_dir, title=f"Federation {name}", data="", bundle=identity.get("bundle", "")
    )


def save_details(details: Details, path: Path) -> None:
    """Write ``details.json`` whole or not at all."""
    save_record(details, path)


def to_prototypes(layer: str, parts: Mapping[str, NDArray[np.float32]]) -> Prototypes:
    """Prototypes of one layer from arrays ``(n_i, d)`` by group, thinned to the cap, 4 digits.

    Raises:
        InputError: the arrays are not of one width.
    """
    if len({value.shape[1:] for value in parts.values()}) > 1:
        shapes = {name: value.shape for name, value in parts.items()}
        raise InputError(f"prototypes '{layer}': expected arrays of one width, got {shapes}")
    rows: list[tuple[float, ...]] = []
    groups: list[str] = []
    for name, value in parts.items():
        kept = value[: max(1, MAX_PROTOTYPES // len(parts))]
        rows += [tuple(float(f"{number:.4g}") for number in row) for row in kept.tolist()]
        groups += [name] * len(kept)
    return Prototypes(layer=layer, values=tuple(rows), groups=tuple(groups))


def details_of_run(run_dir: Path, *, title: str, data: str, **fields: Any) -> Details:
    """Details of a coordinator's run folder, from the ``devices.json`` that it leaves there.

    Args:
        run_dir: the folder.
        title: heading of the page.
        data: name of the data set.
        fields: further fields of ``Details`` (``bundle``, ``provenance``, ``prototypes``, …).

    Raises:
        MissingDataError: no ``devices.json``.
        InputError: a field of it is missing or of a wrong type.
    """
    record = load_record(run_dir / "devices.json", FleetDetails)
    found = {
        "classes": record.outputs,
        "latencies": tuple(_latencies(device) for device in record.devices),
        "confusions": _confusions(record),
        "scores": device_scores(run_dir, record.task),
        "backends": {one.id: one.backend for one in record.devices if one.backend},
    }
    return Details(title=title, data=data, **{**found, **fields})


def _latencies(device: DeviceDetails) -> Latencies:
    return Latencies(
        device_id=device.id,
        train_step_ms=_thinned(device.train_step_ms),
        infer_ms=_thinned(device.infer_ms),
    )


def _thinned(samples: Sequence[float]) -> tuple[float, ...]:
    """Every k-th sample, so that the whole run stays represented."""
    return tuple(samples[:: -(-len(samples) // MAX_SAMPLES) or 1])


def _confusions(fleet: FleetDetails) -> tuple[Confusion, ...]:
    """Of the devices that told theirs; none where the task has no classes."""
    if kind_of(fleet.task) != "classes":
        return ()
    found = (
        Confusion(
            device_id=one.id, counts=tuple(tuple(map(int, row)) for row in one.evaluation.own)
        )
        for one in fleet.devices
        if one.evaluation.own
    )
    return tuple(islice(found, _MOST_CONFUSIONS))


def missing_parts(result: RunRecord, details: Details) -> list[str]:
    """What a page of this run cannot show, each with what would have made it."""
    scores = result.scores
    parts = {
        "personalisation: no device has a test part (x_test, y_test)": scores.personalisation,
        "generalisation: only devices with --pooled measure it": scores.generalisation,
        "global: [evaluation] pooled in the federation file, for a strategy with a global model": (
            scores.global_
        ),
        "prototypes: only of a demonstration with FedAli": details.prototypes,
        "data, machine and versions: no coordinator knows those of its devices": details.data,
    }
    missing = [text for text, found in parts.items() if not found]
    if result.switched_off:
        told = f"{result.switched_off}: switched off by [privacy] of the federation file"
        if result.switched_off.startswith("scores"):
            missing = [text for text in missing if not text.startswith(_OF_DEVICES)]
        missing.append(told)
    return missing
