"""``protofleet pretrain``: central training before the export."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from protofleet.cli._files import read_training_data
from protofleet.cli._outputs import check_writable_folder
from protofleet.cli._recordings import are_recordings, read_recorded
from protofleet.cli._settings import MODEL_HELP, SET_HELP, parse_pairs
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._store import (
    columns_option,
    labels_option,
    mapping_option,
    rate_option,
    time_option,
)
from protofleet.cli._task import OutputOptions, output_options, resolve_task
from protofleet.cli._verbosity import say, verbosity
from protofleet.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from protofleet.export.pretraining.training import TrainProgress, TrainResult
    from protofleet.tensors import TaskName


_OF_TABLES = ("rate_hz", "time", "columns", "labels", "mapping")


@click.command()
@click.option("--model", "spec", required=True, help=MODEL_HELP)
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help=SET_HELP)
@click.option(
    "--objective",
    type=click.Choice(["supervised", "mae"]),
    default="supervised",
    show_default=True,
    help="mae: masked autoencoder, needs no y; for HART.",
)
@output_options
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    multiple=True,
    help="npz with x, y, and classes (or targets) if they have names; or recordings: a table such "
    "as FILE.csv, a folder or a zip of tables; may be repeated.",
)
@click.option(
    "--preprocessing",
    type=click.Path(path_type=Path),
    help="Of recordings: JSON with rate_hz, window, hop, channels, mean, std (docs/bundle.md).",
)
@rate_option
@time_option
@columns_option
@labels_option
@mapping_option
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@click.option("--init", type=click.Path(path_type=Path), help="Start from this checkpoint.")
@click.option(
    "--epochs", type=click.IntRange(1), default=100, show_default=True, help="Most passes."
)
@click.option(
    "--patience",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Stop after so many passes without a better validation loss; 0: make all.",
)
@click.option(
    "--lr", type=float, help="Learning rate of Adam; default: tries some, for a few steps each."
)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--validation", type=float, default=0.1, show_default=True, help="Share held out.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--allow-probabilities",
    is_flag=True,
    help="Take a model that ends with Softmax or Sigmoid, though it hardly learns so.",
)
@click.option("--resume", is_flag=True, help="Go on after the last finished epoch of --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def pretrain(
    *,
    spec: str,
    pairs: tuple[str, ...],
    objective: Literal["supervised", "mae"],
    given: OutputOptions,
    data: tuple[Path, ...],
    preprocessing: Path | None,
    out: Path,
    init: Path | None,
    allow_probabilities: bool,
    resume: bool,
    as_json: bool,
    patience: int,
    **options: Any,
) -> None:
    """Train a model centrally.

    Its best state, model.safetensors, is what export reads.
    """
    import torch

    from protofleet.api import central
    from protofleet.export.pretraining import training
    from protofleet.tensors import kind_of

    if (out / training.STATE_FILE).exists() and not resume:
        raise InputError(f"'{out}' holds a run: go on with --resume, or choose another --out")
    check_writable_folder(out, "--out")
    task, loss = resolve_task(given, {})
    table = {name: options.pop(name) for name in _OF_TABLES}
    said = {"preprocessing": preprocessing, "classes": given.classes, "targets": given.targets}
    supervised = objective == "supervised"
    arrays, names, digest = _read(data, task, supervised=supervised, **said, **table)
    settings = _with_sizes(spec, parse_pairs(pairs), arrays["x"], len(names))
    torch.manual_seed(options["seed"])
    model = _model(spec, settings, init)
    known = {"model": spec, "data": digest, "init": init.name if init else ""}
    known |= {"settings": json.dumps(settings, sort_keys=True)}
    known |= {"input_shape": json.dumps(arrays["x"].shape[1:])}
    kind = kind_of(task)
    advice = "to go on: the same command with --resume"
    with on_interrupt(advice), _progress(quiet=as_json or verbosity() < 0) as on_progress:
        result = central.pretrain(
            model,
            arrays["x"],
            arrays.get("y"),
            folder=out,
            task=task,
            loss=loss,
            classes=names if kind == "classes" else (),
            targets=names if kind == "targets" else (),
            patience=patience or None,
            **options,
            provenance={**known, kind: json.dumps(names)},
            resume=resume,
            allow_probabilities=allow_probabilities,
            on_progress=on_progress,
            tell=say,
        )
    part = "validation" if options["validation"] else "training"
    _report(result, part, as_json=as_json)


def _read(
    data: Sequence[Path], task: TaskName, *, supervised: bool, **said: Any
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...], str]:
    """The arrays, the names of classes or targets, and what is to be known of the data."""
    if not are_recordings(data):
        _refuse_for_arrays(data[0], **said)
        arrays, names = read_training_data(data[0], supervised=supervised, task=task)
        return arrays, names, _digest(data[0])
    if task != "classification" or said.pop("targets") is not None:
        raise InputError(f"data '{data[0]}': recordings have classes; save other data as an .npz")
    arrays, names = read_recorded(data, supervised=supervised, **said)
    return arrays, names, _digest_of(arrays)


def _model(spec: str, settings: dict[str, Any], init: Path | None) -> nn.Module:
    """The model, with the values of ``init``."""
    from protofleet.export.checks import check_tensors
    from protofleet.export.models import build_model

    model = build_model(spec, **settings)
    check_tensors(model)
    if init is not None:
        _initialise(model, init)
    return model


def _initialise(model: nn.Module, init: Path) -> None:
    from protofleet.export.pretraining.checkpoints import fill, load_checkpoint

    tensors, _ = load_checkpoint(init)
    _, unused = fill(model, tensors)
    if len(unused) == len(tensors):
        raise InputError(f"checkpoint '{init}': none of its tensors fits the model")
    if unused:
        click.echo(f"not used from {init.name}: {', '.join(unused)}", err=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"{path.name} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _digest_of(arrays: dict[str, NDArray[Any]]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(arrays[name].tobytes())
    return f"{len(arrays['x'])} recorded examples sha256:{found.hexdigest()}"


def _refuse_for_arrays(path: Path, **given: Any) -> None:
    """Raise InputError for an option that says something of recordings."""
    for name, value in given.items():
        if value not in (None, ()):
            option = name.removesuffix("_hz")
            raise InputError(f"data '{path}': --{option} is for recordings, leave it out")


def _with_sizes(spec: str, settings: dict[str, Any], x: NDArray[Any], count: int) -> dict[str, Any]:
    """Settings with those that the data say, where the model has them."""
    from protofleet.export.catalogue import sizes_of
    from protofleet.export.models import has_setting

    counted = {"classes": count} if count and has_setting(spec, "classes") else {}
    words = x.max() + 1 if x.size and has_setting(spec, "vocabulary") else None
    sizes = sizes_of(spec, x.shape[1:], tokens=None if words is None else int(words))
    return {**sizes, **counted, **settings}


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[TrainProgress], None]]:
    """A bar on a terminal, a line per epoch elsewhere; both on stderr, silent when quiet."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _bar() as on_step:
            yield on_step
    else:
        yield _print_epoch


def _print_epoch(progress: TrainProgress) -> None:
    if progress.validation_loss is not None:
        click.echo(_line(progress), err=True)


def _line(progress: TrainProgress) -> str:
    line = f"epoch {progress.epoch}/{progress.epochs}  loss {progress.loss:.4f}"
    if progress.validation_loss is not None:
        line += f"  validation {progress.validation_loss:.4f}"
    return line if progress.accuracy is None else f"{line}  accuracy {progress.accuracy:.1%}"


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[TrainProgress], None]]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        row = bar.add_task("training")

        def on_step(progress: TrainProgress) -> None:
            done = (progress.epoch - 1) * progress.steps + progress.step
            total = progress.epochs * progress.steps
            bar.update(row, description=_line(progress), completed=done, total=total)

        yield on_step


def _report(result: TrainResult, part: str, *, as_json: bool) -> None:
    if as_json:
        record = {
            "checkpoint": str(result.checkpoint),
            "best_epoch": result.best_epoch,
            "best_loss": result.best_loss,
            "accuracy": result.accuracy,
            "epochs": result.epochs,
            "improving": result.improving,
        }
        click.echo(json.dumps(record))
        return
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.1%}"
    click.echo(
        f"{result.checkpoint}: best epoch {result.best_epoch} of {result.epochs}, "
        f"{part} loss {result.best_loss:.4f}{accuracy}"
    )
    if result.improving:
        click.echo(
            f"it was still getting better: the same command with --resume --epochs "
            f"{2 * result.epochs} goes on",
            err=True,
        )
