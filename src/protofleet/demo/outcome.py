"""What a demonstration leaves: result.json, details.json, report.html and the final table."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from protofleet.bundle import Bundle
from protofleet.edge.state.store import read_personal
from protofleet.federation.outcomes.outcome import beside_alone
from protofleet.federation.records import DeviceRecord, RunRecord, Scores, save_record
from protofleet.report import (
    ComparedMethod,
    ComparedRecord,
    Prototypes,
    details_of_run,
    save_details,
    to_prototypes,
    write_report,
)
from protofleet.strategies.common import BUFFERS
from protofleet.tensors import blobs

_GLOBAL = ".global_prototypes"
_LOCAL = ".local_prototypes"
_SHOWN_LAYERS = 2
"""Those nearest the head: few prototypes, and the most of what tells classes apart."""
_MAX_BYTES = 2**30
_UNTRAINED = "by chance"
"""In the place of a score that tells nobody anything."""
_KINDS = ("personalisation", "generalisation", "global")


def with_comparison(
    run: RunRecord,
    compared: tuple[ComparedMethod, ...],
    columns: Mapping[str, str],
    *,
    untrained_head: bool,
) -> ComparedRecord:
    """The run's record with the methods beside it, and what its scores are in this data's words.

    Its outcome tells also who would do better alone.
    """
    outcome = run.outcome
    alone = next((one.outcome for one in compared if one.strategy == "local"), None)
    if outcome is not None and alone is not None and run.strategy != "local":
        outcome = beside_alone(outcome, alone)
    fields = {**msgspec.structs.asdict(run), "outcome": outcome}
    return ComparedRecord(
        **fields, comparison=compared, columns=dict(columns), untrained_head=untrained_head
    )


def finish(
    title: str,
    folder: Path,
    result: ComparedRecord,
    console: Console,
    *,
    seconds: float,
) -> Path:
    """Write the results of a finished run into ``folder`` and print the tables.

    Args:
        title: the data in words.
        folder: the demonstration's folder.
        result: what came out.
        console: where the tables go.
        seconds: wall time of this call.

    Returns:
        The report's path.
    """
    save_record(result, folder / "result.json")
    bundle = Bundle.open(folder / "bundle.pfb", any_signer=True)
    packages = ("numpy", "onnxruntime", "torch")
    details = details_of_run(
        folder / "coordinator",
        title=f"{result.strategy} on {title}",
        data=title,
        bundle=bundle.digest,
        provenance={
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            **{package: version(package) for package in packages},
        },
        prototypes=_prototypes(folder, _first_process(folder, result)),
        wall_s=seconds,
    )
    save_details(details, folder / "details.json")
    report = write_report(folder)
    console.print(_devices_table(result))
    _print_scores(result, console)
    return report


def _first_process(folder: Path, result: RunRecord) -> str:
    """A device whose store can be read here: not that of a browser."""
    return next(one.id for one in result.devices if (folder / "devices" / one.id).is_dir())


def _prototypes(folder: Path, device_id: str) -> tuple[Prototypes, ...]:
    """Global prototypes and one device's local ones, of the last layers; none without ALP."""
    blob = (folder / "coordinator" / "global.safetensors").read_bytes()
    tensors, _ = blobs.decode(blob, max_bytes=_MAX_BYTES)
    _, state = read_personal(folder / "devices" / device_id / "store")
    layers = [name.removesuffix(_GLOBAL) for name in tensors if name.endswith(_GLOBAL)]
    by_size = sorted(layers, key=lambda layer: len(tensors[layer + _GLOBAL]))
    return tuple(
        to_prototypes(
            layer,
            {
                "global": tensors[layer + _GLOBAL],
                device_id: state.tensors[f"{BUFFERS}{layer}{_LOCAL}"],
            },
        )
        for layer in by_size[:_SHOWN_LAYERS]
    )


def _devices_table(result: RunRecord) -> Table:
    devices = Table(title="what each device paid", title_justify="left")
    for heading in (
        "device",
        "train step ms\np50 / p95",
        "inference ms\np50 / p95",
        "MB up",
        "MB down",
        "peak MB",
    ):
        devices.add_column(heading, justify="left" if heading == "device" else "right")
    for device in result.devices:
        devices.add_row(*_device_cells(device))
    return devices


def _print_scores(result: ComparedRecord, console: Console) -> None:
    """A row for each method below one for what it started from, and how many owners gained."""
    table = Table(
        title=f"right answers in %, after {len(result.aggregated)} rounds", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    for heading in ("trained", *(result.columns.get(kind, kind) for kind in _KINDS)):
        table.add_column(heading)
    for name, method in result.starts().items():
        if result.untrained_head:
            table.add_row(name, "no labels", *(_UNTRAINED for _ in _KINDS))
        else:
            table.add_row(name, "central", *_score_cells(method.start))
    table.add_section()
    for method in result.comparison:
        where = "MQTT" if method.strategy == result.strategy else "no MQTT"
        table.add_row(method.label, where, *_score_cells(method.last))
    if not result.comparison:
        table.add_row(result.strategy, "MQTT", *_score_cells(result.last))
    console.print(table)
    for note in _notes(result):
        console.print(note, style="dim", soft_wrap=True)
    if result.outcome is not None:
        console.print(f"{result.strategy}, for its owners:")
        for line in result.outcome.lines():
            console.print(f"  {line}", soft_wrap=True)


def _notes(result: ComparedRecord) -> list[str]:
    notes = ["each device's own model on its owner's test part and on everybody's, means"]
    if result.comparison:
        notes.append(
            "no MQTT: by processes of this machine without a broker, which gives the same bits in "
            "the same runtime (ONNX Runtime); data, seed, rounds and settings are alike"
        )
    if result.untrained_head:
        notes.append(
            "start: the central training has seen no labels, so that its model names classes by "
            "chance"
        )
    notes.append("±: standard deviation over the devices; one seed on few data is no ranking")
    return notes


def _score_cells(scores: Scores) -> tuple[str, ...]:
    """Of the three kinds; a method without a model at the server has no global score."""
    found = [scores.sections.get(kind, {}).get("accuracy") for kind in _KINDS]
    return tuple(
        "-"
        if one is None
        else f"{100 * one.mean:.1f}" + (f" ± {100 * one.std:.1f}" if kind != "global" else "")
        for kind, one in zip(_KINDS, found, strict=True)
    )


def _device_cells(device: DeviceRecord) -> tuple[str, ...]:
    train, infer = device.train_step_ms, device.infer_ms
    return (
        device.id,
        f"{train.p50 or 0:.1f} / {train.p95 or 0:.1f}",
        f"{infer.p50 or 0:.2f} / {infer.p95 or 0:.2f}",
        f"{device.bytes_up / 1e6:.2f}",
        f"{device.bytes_down / 1e6:.2f}",
        f"{device.peak_rss_bytes / 1e6:.0f}" if device.peak_rss_bytes else "?",  # browsers
    )
