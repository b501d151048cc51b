"""``protofleet export``: a model becomes a signed bundle, or a message says why not."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._export_options import (
    ExampleOptions,
    MethodOptions,
    SequenceOptions,
    example_options,
    method_options,
    sequence_options,
)
from protofleet.cli._files import checked_preprocessing, read_preprocessing
from protofleet.cli._operators import FLAG, WithOperators
from protofleet.cli._outputs import check_writable_bundle
from protofleet.cli._settings import SET_HELP, parse_pairs
from protofleet.cli._task import OutputOptions, output_names, output_options, resolve_task
from protofleet.cli._verbosity import progress_console, say, verbosity
from protofleet.errors import InputError, RefusedError
from protofleet.export.catalogue import MODELS, model_names, sizes_of

if TYPE_CHECKING:
    from torch import nn

    from protofleet.bundle.manifest import Preprocessing
    from protofleet.export.build import ExportReport
    from protofleet.export.formats import Format

_PATH = click.Path(path_type=Path)


def _formats(value: str) -> tuple[str, ...]:
    """Formats by name, comma-separated."""
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if unknown := [name for name in names if name not in _FORMATS]:
        raise click.BadParameter(f"expected {' or '.join(_FORMATS)}, got '{unknown[0]}'")
    return names


_FORMATS = ("onnx", "tflite")


@click.command(cls=WithOperators)
@click.argument("model")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help=SET_HELP)
@method_options
@click.option("--out", type=_PATH, required=True, help="*.pfb for one file, else a folder.")
@click.option("--checkpoint", type=_PATH, help="Trained tensors (safetensors), from pretrain.")
@output_options
@example_options
@click.option(
    "--formats",
    type=_formats,
    metavar="FORMATS",
    help="onnx,tflite or one of them; default: both, or the one in which the model can be written.",
)
@click.option("--key", type=_PATH, help="Signing key (PEM); default: this user's own.")
@click.option(
    "--allow-probabilities",
    is_flag=True,
    help="Take a model that ends with Softmax or Sigmoid, though it hardly learns so.",
)
@sequence_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    FLAG,
    is_flag=True,
    expose_value=False,
    help="List the operators that are proved to work, without MODEL; with --out FILE prove them "
    "anew and write the table, with --only PATTERN some of them.",
)
def export(
    *,
    model: str,
    pairs: tuple[str, ...],
    methods: MethodOptions,
    out: Path,
    checkpoint: Path | None,
    given: OutputOptions,
    example: ExampleOptions,
    formats: tuple[Format, ...] | None,
    key: Path | None,
    allow_probabilities: bool,
    numbers: SequenceOptions,
    as_json: bool,
) -> None:
    """Compile MODEL and write a signed bundle.

    MODEL is {models}, or package.module:function. The training programs are those that the
    strategies need. Every program is compared with PyTorch in ONNX Runtime first:
    loss, outputs, every gradient.
    """
    from protofleet.api import central

    check_writable_bundle(out)
    metadata = _metadata(checkpoint)
    prepared = _preprocessing(model, example, metadata)
    task, loss = resolve_task(given, metadata)
    classes, targets = output_names(given, metadata, task)
    sizes = _sizes(model, prepared.input_shape, example.tokens, len(classes or targets or ()))
    built = _model(model, parse_pairs(pairs), checkpoint, sizes)
    wishes = methods.wishes()
    if checkpoint is None:
        _tell_untrained(model)
    started = time.perf_counter()
    report = central.export_model(
        built,
        out,
        preprocessing=prepared,
        strategy=methods.strategies,
        settings=methods.settings,
        task=task,
        loss=loss,
        classes=classes,
        targets=targets,
        tokens=example.tokens,
        head=wishes.head,
        head_kind=wishes.head_kind,
        align=wishes.align,
        train=wishes.train,
        objectives=methods.objectives,
        formats=formats,
        key=key,
        sequence=numbers.sequence or 0,
        replaces_up_to=numbers.replaces_up_to or 0,
        provenance={"model": model, **({"checkpoint": checkpoint.name} if checkpoint else {})},
        allow_probabilities=allow_probabilities,
        tell=say,
    )
    _tell(report, time.perf_counter() - started, as_json=as_json)


export.help = (export.help or "").format(models=model_names())


def _metadata(checkpoint: Path | None) -> dict[str, str]:
    from protofleet.export.pretraining.checkpoints import load_checkpoint

    return {} if checkpoint is None else load_checkpoint(checkpoint)[1]


def _sizes(spec: str, shape: tuple[int, ...], tokens: int | None, outputs: int) -> dict[str, Any]:
    """Settings of the model that examples and outputs say."""
    from protofleet.export.models import has_setting

    counted = {"classes": outputs} if outputs and has_setting(spec, "classes") else {}
    return {**sizes_of(spec, shape, tokens=tokens), **counted}


def _model(
    spec: str, settings: dict[str, Any], checkpoint: Path | None, sizes: dict[str, Any]
) -> nn.Module:
    from protofleet.export.checks import check_tensors
    from protofleet.export.models import build_model
    from protofleet.export.pretraining.checkpoints import load_model

    if checkpoint is None:
        model = build_model(spec, **{**sizes, **settings})
    else:
        model, _ = load_model(checkpoint, spec, settings, sizes)
    check_tensors(model)
    return model


def _tell_untrained(spec: str) -> None:
    from protofleet.export.models import MODELS

    whose = "random" if spec in MODELS else f"those that '{spec}' gave its model"
    click.echo(
        f"note: no --checkpoint, so the initial values are {whose}; protofleet pretrain makes "
        "trained ones",
        err=True,
    )


def _preprocessing(model: str, example: ExampleOptions, metadata: dict[str, str]) -> Preprocessing:
    from protofleet.bundle.manifest import Preprocessing

    if example.preprocessing is not None:
        return read_preprocessing(example.preprocessing)
    shape = example.input_shape
    if shape is None and "input_shape" in metadata:
        shape = ",".join(map(str, json.loads(metadata["input_shape"])))
    if shape is None:
        if model not in MODELS:
            raise InputError(
                f"model '{model}': its input shape is not known, give --input-shape, e.g. 128,6"
            )
        return Preprocessing(input_shape=MODELS[model].input_shape)
    try:
        sizes = tuple(int(part) for part in shape.split(","))
        return checked_preprocessing(Preprocessing(input_shape=sizes))
    except (ValueError, RefusedError) as error:
        raise InputError(f"--input-shape: expected sizes like 128,6, got '{shape}'") from error


def _tell(report: ExportReport, seconds: float, *, as_json: bool) -> None:
    if as_json:
        fields = dataclasses.asdict(report) | {"path": str(report.path), "seconds": seconds}
        click.echo(json.dumps(fields, indent=2))
        return
    from rich.table import Table

    runners = list(report.parity[0].by_runner)
    errors = [f"error in {runner}" for runner in runners]
    table = Table("program", "ONNX bytes", "tensors", *errors, "largest in tensor")
    for record in report.parity:
        table.add_row(
            record.program,
            f"{record.program_bytes:,}",
            str(record.tensors),
            *(f"{record.by_runner[runner]:.1e}" for runner in runners),
            record.worst_tensor,
        )
    progress_console().print(table)
    for name, reason in report.left_out.items():
        click.echo(f"left out, format {name}: {reason}", err=True)
    for note in report.notes:
        click.echo(note)
    for record in report.parity:
        if record.gradient_noise and verbosity() >= 0:
            click.echo(
                f"{record.program}: gradients were proved in double precision; in single precision "
                f"they are uncertain to {record.gradient_noise:.0e}, as PyTorch's own "
                "(docs/export-internals.md, Parity)"
            )
    click.echo(
        f"{report.path}: {report.params:,} parameters, {report.state:,} other values, "
        f"{seconds:.1f} s, digest {report.digest[:16]}"
    )
