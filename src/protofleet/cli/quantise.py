"""``protofleet bundle quantise``: smaller and faster variants of a bundle's model, if as good."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._export_options import SequenceOptions, sequence_options
from protofleet.cli._outputs import check_writable_bundle
from protofleet.errors import InputError, MissingDataError, ProvisionError

if TYPE_CHECKING:
    import numpy as np
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from numpy.typing import NDArray

    from protofleet.bundle import Bundle
    from protofleet.bundle.manifest import Precision
    from protofleet.edge import LocalData
    from protofleet.export.quantise import Measured
    from protofleet.tensors import Model

_PATH = click.Path(path_type=Path)
_PRECISIONS = ("float16", "int8")


def _to_precisions(
    _context: click.Context, parameter: click.Parameter, text: str
) -> tuple[Precision, ...]:
    """``int8,float16`` as names."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in _PRECISIONS:
            raise click.BadParameter(
                f"expected {' or '.join(_PRECISIONS)}, got '{name}'", param=parameter
            )
    return names  # type: ignore[return-value]  # checked above


_ONLY_ONNX = (
    "note: the bundle has no TFLite programs, so the variants are for ONNX Runtime only; export "
    "the bundle again with this version to have them for LiteRT too"
)


@click.command()
@click.argument("bundle", type=_PATH)
@click.option(
    "--data",
    required=True,
    help="FILE.npz, or uci-har:N with --data-root: calibrates on its train part, scores on its "
    "test part.",
)
@click.option(
    "--data-root",
    type=_PATH,
    envvar="PROTOFLEET_DATA",
    show_envvar=True,
    help="Folder of the published data sets.",
)
@click.option("--out", type=_PATH, required=True, help="*.pfb for one file, else a folder.")
@click.option("--params", type=_PATH, help="Other parameters (safetensors) than the bundle's.")
@click.option("--store", type=_PATH, help="A device's folder: its personal model.")
@click.option(
    "--precision",
    "precisions",
    default=",".join(_PRECISIONS),
    show_default=True,
    callback=_to_precisions,
    help="Which variants.",
)
@click.option(
    "--allow-loss",
    type=click.FloatRange(0.0),
    default=1.0,
    show_default=True,
    metavar="POINTS",
    help="Of macro-F1 against float32, out of 100.",
)
@click.option(
    "--calibration",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Windows that show how large activations become.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Draws those windows.")
@click.option("--key", type=_PATH, help="Signing key (PEM); default: this user's own.")
@click.option(
    "--trust",
    "trust_files",
    type=_PATH,
    multiple=True,
    help="Public key (PEM) whose bundles to accept, beside --key's and those of 'bundle trust'.",
)
@sequence_options
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def quantise(
    *,
    bundle: Path,
    data: str,
    data_root: Path | None,
    out: Path,
    params: Path | None,
    store: Path | None,
    precisions: tuple[Precision, ...],
    allow_loss: float,
    calibration: int,
    seed: int,
    key: Path | None,
    trust_files: tuple[Path, ...],
    numbers: SequenceOptions,
    as_json: bool,
) -> None:
    """Write a bundle with variants of BUNDLE's model that are smaller, and as good.

    float16 halves the file; int8 quarters it and computes with 8 bits. Every variant is scored on
    the test part in each runtime; if one loses more macro-F1 than allowed, nothing is written.
    """
    check_writable_bundle(out)
    from protofleet.bundle import Bundle, keys, write_bundle
    from protofleet.edge import load_local_data
    from protofleet.export.quantise import check_loss, doubts, measure
    from protofleet.export.quantise import quantise as make

    _check_paths(bundle, out, params, store)
    signing = keys.load_signing_key(key) if key else keys.load_or_create_signing_key()
    opened = Bundle.open(bundle, trusted=_trusted(signing, trust_files))
    _check_task(opened)
    local = load_local_data(data, opened.manifest.preprocessing, data_root=data_root)
    _check_data(local, opened)
    windows, scored = _drawn(local, calibration, seed), len(local.own.y_test)
    draft = make(opened, _values(opened, params, store), windows, precisions)
    rows = measure(draft, local.own.x_test, local.own.y_test)
    _print_rows(rows, as_json=as_json)
    counted = f"scored on {scored} test examples, calibrated on {len(windows)} windows"
    click.echo(counted, err=as_json)
    if "litert" not in draft.float_bytes:
        click.echo(_ONLY_ONNX, err=as_json)
    found = doubts(
        scored=scored, allowed_points=allow_loss, windows=len(windows), asked=calibration
    )
    for doubt in found:
        click.echo(f"warning: {doubt}", err=True)
    check_loss(rows, allow_loss)
    digest = write_bundle(out, numbers.over(draft.manifest), draft.files, signing)
    if not as_json:
        click.echo(f"{out}: digest {digest[:16]}")


def _check_paths(bundle: Path, out: Path, params: Path | None, store: Path | None) -> None:
    if params is not None and store is not None:
        raise InputError("values: expected --params or --store, got both")
    if out.resolve() == bundle.resolve():
        raise InputError(f"--out '{out}': expected another path than the bundle's")


def _trusted(signing: Ed25519PrivateKey, files: tuple[Path, ...]) -> set[bytes]:
    """Whose bundles are taken: those of the files, of this user's trust folder, and our own."""
    from protofleet.bundle import keys

    own = signing.public_key().public_bytes_raw()
    return {*map(keys.load_public_key, files), *keys.trusted_keys(), own}


def _check_data(local: LocalData, opened: Bundle) -> None:
    from protofleet.edge.learning.training import check_data

    check_data(local, opened.manifest)
    for part in ("train", "test"):
        if not len(getattr(local.own, f"y_{part}")):
            raise InputError(f"data: expected examples in the {part} part, got none")


def _drawn(local: LocalData, number: int, seed: int) -> NDArray[np.float32]:
    """Some windows of the train part, all if there are no more."""
    import numpy as np

    x = local.own.x_train
    chosen = np.random.default_rng(seed).permutation(len(x))[:number]
    return np.ascontiguousarray(x[chosen])


def _values(opened: Bundle, params: Path | None, store: Path | None) -> Model:
    """The bundle's own values, those of a file, or those of a device."""
    if params is not None:
        return _from_file(opened.model(), params)
    return opened.model() if store is None else _from_store(opened, store)


def _from_file(model: Model, path: Path) -> Model:
    """All parameters from a safetensors file, and the state as far as it is there too."""
    from protofleet.errors import RefusedError
    from protofleet.export.pickled import refuse_pickled
    from protofleet.tensors import blobs

    if not path.is_file():
        raise MissingDataError(f"parameters '{path}': no such file")
    refuse_pickled(path, "parameters")
    data = path.read_bytes()
    try:
        tensors, _ = blobs.decode(data, max_bytes=len(data))
        blobs.check_finite(tensors)
    except RefusedError as error:
        raise InputError(f"parameters '{path}': {error}") from error
    surplus = tensors.keys() - {*model.params, *model.buffers}
    missing = model.params.keys() - tensors.keys()
    if surplus or missing:
        name = min(surplus or missing)
        raise InputError(
            f"parameters '{path}': tensor '{name}' is "
            f"{'not in' if surplus else 'in'} the bundle, but {'' if surplus else 'not '}in the "
            "file"
        )
    for values in (model.params, model.buffers):
        for name in values.keys() & tensors.keys():
            _fill(path, name, values[name], tensors[name])
    return model


def _fill(path: Path, name: str, into: NDArray[np.float32], value: NDArray[Any]) -> None:
    if value.shape != into.shape or value.dtype != into.dtype:
        raise InputError(
            f"parameters '{path}': tensor '{name}': expected {into.shape} float32, got "
            f"{value.shape} {value.dtype}"
        )
    into[...] = value


def _check_task(opened: Bundle) -> None:
    manifest = opened.manifest
    if manifest.task != "classification":
        raise InputError(
            f"bundle '{manifest.name}': quantise compares classes and macro-F1, and its task is "
            f"{manifest.task}; use its float32 programs"
        )


def _from_store(opened: Bundle, store: Path) -> Model:
    """The personal model of a device."""
    from protofleet import strategies
    from protofleet.edge.state.store import read_personal

    personal, state = read_personal(store)
    if personal.binding.bundle != opened.digest:
        raise ProvisionError(f"device store '{store}': belongs to another bundle than this one")
    strategy = strategies.build(personal.strategy, personal.settings, opened.model())
    if strategy.client_score(state) is not None:
        raise InputError(
            f"device store '{store}': strategy '{personal.strategy}' classifies by features, not "
            "by the model's own head, which is what would be quantised"
        )
    own = strategy.client_model(state)
    return dataclasses.replace(opened.model(), params=own.params, buffers=own.buffers)


def _print_rows(rows: Sequence[Measured], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=SIMPLE,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="ratio: to float32 in the same runtime; F1: macro; same: share that gets "
        "float32's class",
    )
    for name in ("variant", "runtime"):
        table.add_column(name)
    for name in ("kB", "ratio", "p50 ms", "ratio", "F1", "points", "same"):
        table.add_column(name, justify="right")
    reference = {row.backend: row for row in rows if row.precision == "float32"}
    for row in rows:
        base = reference[row.backend]
        table.add_row(
            row.precision,
            row.backend,
            f"{row.file_bytes / 1000:,.0f}",
            f"{row.file_bytes / base.file_bytes:.2f}",
            f"{row.p50_ms:.3f}",
            f"{row.p50_ms / base.p50_ms:.2f}",
            f"{row.macro_f1:.4f}",
            f"{100 * (row.macro_f1 - base.macro_f1):+.2f}",
            f"{row.agreement:.1%}",
        )
    Console().print(table)
