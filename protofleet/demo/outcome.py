"""What a demonstration leaves: result.json, details.json, report.html and the final table."""

from __future__ import annotations

import platform
import shutil
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from protofleet.bundle import Bundle
from protofleet.edge.store import read_personal
from protofleet.federation.records import DeviceRecord, Metrics, RunRecord, load_record
from protofleet.report import (
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
_KINDS = {
    "personalisation": "each device's model on its own test part",
    "generalisation": "each device's model on everybody's test parts",
    "global": "the server's model on everybody's test parts",
}


def finish(title: str, folder: Path, console: Console, *, seconds: float) -> Path:
    """Write the results of a finished run into ``folder`` and print the table.

    Args:
        title: the data in words.
        folder: the demonstration's folder.
        console: where the table goes.
        seconds: wall time of this call.

    Returns:
        The report's path.
    """
    run_dir = folder / "coordinator"
    shutil.copyfile(run_dir / "result.json", folder / "result.json")
    result = load_record(folder / "result.json", RunRecord)
    bundle = Bundle.open(folder / "bundle.pfb", any_signer=True)
    packages = ("numpy", "onnxruntime", "torch")
    details = details_of_run(
        run_dir,
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
    _print(result, console)
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


def _print(result: RunRecord, console: Console) -> None:
    scores = Table(title="scores, mean ± std over devices", title_justify="left")
    for heading in ("", "macro-F1", "accuracy", "what it is"):
        scores.add_column(heading)
    for kind, meaning in _KINDS.items():
        metrics = getattr(result.scores, "global_" if kind == "global" else kind)
        if metrics is not None:
            scores.add_row(kind, *_score_cells(metrics, over_devices=kind != "global"), meaning)
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
    console.print(devices)
    console.print(scores)


def _score_cells(metrics: Metrics, *, over_devices: bool) -> tuple[str, ...]:
    return tuple(
        f"{one.mean:.4f} ± {one.std:.4f}" if over_devices else f"{one.mean:.4f}"
        for one in (metrics["macro_f1"], metrics["accuracy"])
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
