"""``protofleet device predict``: what the personal model says of examples or of a sensor."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from protofleet.cli._process import start_process
from protofleet.cli._store import (
    columns_option,
    labels_option,
    mapping_option,
    model_options,
    opened_model,
    rate_option,
    raw_option,
    table_mapping,
    time_option,
)
from protofleet.errors import InputError

if TYPE_CHECKING:
    from protofleet.edge import PersonalModel, Predictions
    from protofleet.edge.data.examples import ByteStream, Examples

_PATH = click.Path(path_type=Path)


@click.command()
@model_options
@click.option(
    "--data",
    required=True,
    metavar="SOURCE",
    help="FILE.npz, a recording (FILE.csv, a folder or a zip of tables), uci-har:N with "
    "--data-root, or - for a CSV on standard input.",
)
@click.option(
    "--data-root",
    type=_PATH,
    envvar="PROTOFLEET_DATA",
    show_envvar=True,
    help="Folder of the published data sets.",
)
@raw_option
@rate_option
@time_option
@columns_option
@labels_option
@mapping_option
@click.option(
    "--batch",
    "batch_size",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Examples computed together; ALP layers couple those of a batch.",
)
@click.option("--summary", is_flag=True, help="Scores only, no line for each example.")
@click.option("--latency", is_flag=True, help="Time 30 single windows, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines for programs.")
def predict(
    *,
    store: Path | None,
    bundle: Path | None,
    trust_files: tuple[Path, ...],
    use: Any,
    threads: int,
    backend: Any,
    data: str,
    data_root: Path | None,
    raw: bool,
    rate_hz: float | None,
    time: str | None,
    columns: tuple[str, ...] | None,
    labels: str | None,
    mapping: Path | None,
    batch_size: int,
    summary: bool,
    latency: bool,
    as_json: bool,
) -> None:
    """Predict with the personal model: a class and its probability for each example, or values.

    SOURCE holds examples, preprocessed as the data that the device trains on, or with --raw as they
    come; or a CSV of sensor samples with the bundle's channels as columns, which is cut into
    windows. With labels, scores follow. A federation may be running meanwhile; a
    sensor on standard input gets each new round's model (docs/predictions.md).
    """
    start_process(threads, quiet=True)
    from protofleet.edge.data.examples import load_examples, read_csv
    from protofleet.edge.personal import doubt_of

    model = opened_model(store, bundle, trust_files, use=use, backend=backend, threads=threads)
    manifest = model.model.bundle.manifest
    said = table_mapping(mapping, [data], manifest)
    if data == "-":
        if labels is not None:
            raise InputError("--labels: expected recordings in files, got standard input")
        stream = cast("ByteStream", sys.stdin.buffer)
        blocks = read_csv(
            stream,
            "standard input",
            manifest,
            rate_hz=rate_hz,
            time=time,
            columns=columns,
            mapping=said,
        )
    else:
        blocks = load_examples(
            data,
            manifest,
            data_root=data_root,
            rate_hz=rate_hz,
            time=time,
            columns=columns,
            labels=labels,
            mapping=said,
        )
    printer = (_JsonPrinter if as_json else _TextPrinter)(model, summary=summary)
    tally = _Tally()
    for block in blocks:
        if not (tally.count or raw) and (doubt := doubt_of(block, manifest.preprocessing)):
            click.echo(f"warning: {doubt}", err=True)
        if data == "-" and model.refresh():
            printer.model()
        predicted = model.predict(block.x, raw=raw and not block.normalised, batch_size=batch_size)
        printer.examples(block, predicted, tally.count)
        tally.add(block, predicted, raw=raw and not block.normalised)
    if not tally.count:
        raise InputError(f"data '{data}': expected examples to predict, got none")
    printer.end(tally.figures(model, latency=latency))


class _Tally:
    """What is kept of all examples: outputs and true values, and one to time the model with."""

    def __init__(self) -> None:
        self.count = 0
        self._found: list[tuple[Predictions, Any]] = []
        self._last: tuple[Any, bool] | None = None

    def add(self, block: Examples, predicted: Predictions, *, raw: bool) -> None:
        self.count += len(predicted)
        self._found.append((predicted, block.y))
        if len(block.x):
            self._last = block.x[-1:], raw

    def figures(self, model: PersonalModel, *, latency: bool) -> dict[str, Any]:
        """Scores where true values are known, and latencies where they are asked for."""
        import msgspec
        import numpy as np

        from protofleet.edge.predictions import Predictions, score_predictions

        first = self._found[0][0]
        outputs = np.concatenate([predicted.outputs for predicted, _ in self._found])
        joined = Predictions(task=first.task, names=first.names, outputs=outputs)
        scores = score_predictions(joined, np.concatenate([y for _, y in self._found]))
        found: dict[str, Any] = {"examples": self.count, "known": scores.examples}
        found |= {str(name): value for name, value in scores.scores.items()}
        if scores.each:
            found["each"] = scores.each
        if latency and self._last is not None:
            x, raw = self._last
            found["infer_ms"] = msgspec.to_builtins(model.latency(x, raw=raw))
        return found


def _where(block: Examples, row: int) -> float | None:
    """When a window began; None of examples that are none."""
    return None if block.start_s is None else float(block.start_s[row])


class _JsonPrinter:
    """One JSON object per line, as ``device join --json``."""

    def __init__(self, model: PersonalModel, *, summary: bool) -> None:
        self._model, self._summary = model, summary
        self.model()

    def model(self) -> None:
        """Say whose predictions follow."""
        opened = self._model.model
        manifest = opened.bundle.manifest
        about = {"strategy": opened.strategy, "backend": self._model.backend, "task": manifest.task}
        about |= {"served": opened.served, "reason": opened.reason}
        named = {"bundle": opened.bundle.digest, "outputs": list(manifest.outputs)}
        self._print("model", {"round_id": self._model.round_id, **about, **named})

    def examples(self, block: Examples, predicted: Predictions, first: int) -> None:
        """A line for each example."""
        if self._summary:
            return
        for k, row in enumerate(predicted.rows(block.y)):
            start_s = _where(block, k)
            place = {"example": first + k, **({} if start_s is None else {"start_s": start_s})}
            self._print("prediction", {**place, **row.figures})

    def end(self, figures: dict[str, Any]) -> None:
        """The scores."""
        self._print("scores", figures)

    def _print(self, event: str, figures: dict[str, Any]) -> None:
        click.echo(json.dumps({"event": event, **figures}))


class _TextPrinter:
    """A table that grows."""

    def __init__(self, model: PersonalModel, *, summary: bool) -> None:
        self._model, self._summary = model, summary
        self._widths: list[int] = []
        self.model()

    def model(self) -> None:
        """Say whose predictions follow."""
        opened = self._model.model
        name = f"bundle '{opened.bundle.manifest.name}'"
        if opened.served == "head" and not opened.round_id:
            click.echo(f"{name}, with a head trained on this device")
        elif opened.federation and opened.served != "bundle":
            made = f"federation '{opened.federation}', strategy {opened.strategy}"
            click.echo(f"model of round {opened.round_id}: {made}, {name}")
        else:
            click.echo(f"{name}, its own values")
        if opened.reason:
            click.echo(f"in use: {opened.reason}")

    def examples(self, block: Examples, predicted: Predictions, first: int) -> None:
        """A line for each example."""
        if self._summary:
            return
        if not self._widths:
            self._head(block, predicted)
        for k, row in enumerate(predicted.rows(block.y)):
            start_s = _where(block, k)
            self._line(f"{first + k}" if start_s is None else f"{start_s:.2f}", row.cells)

    def _head(self, block: Examples, predicted: Predictions) -> None:
        from protofleet.edge.predictions import columns

        heads = columns(predicted.task, predicted.names)
        first, *_ = [len(name) for name in sorted(predicted.names, key=len, reverse=True)]
        self._widths = [max(first, len(heads[0])), *(len(head) for head in heads[1:])]
        self._line("example" if block.start_s is None else "start_s", heads)

    def _line(self, place: str, cells: tuple[str, ...]) -> None:
        texts = (f"{cell:<{width}}" for cell, width in zip(cells, self._widths, strict=False))
        click.echo(f"{place:>12}  {'  '.join(texts)}".rstrip())

    def end(self, figures: dict[str, Any]) -> None:
        """The scores."""
        known = figures["known"]
        if known:
            found = _in_words(figures)
            click.echo(f"{found} on {known} labelled examples of {figures['examples']}")
        else:
            click.echo(f"{figures['examples']} examples, none with a label")
        for name, scores in figures.get("each", {}).items():
            click.echo(f"  {name}: {_in_words(scores)}")
        if "infer_ms" in figures:
            texts = (f"{name} {value:.2f}" for name, value in figures["infer_ms"].items())
            click.echo(f"one window, ms: {'  '.join(texts)}")


def _in_words(scores: Mapping[str, Any]) -> str:
    from protofleet.strategies.tasks import METRICS

    shown = (
        f"{metric.label} {metric.text(scores[name])}"
        for name, metric in METRICS.items()
        if name in scores
    )
    return ", ".join(shown) or "no score"
