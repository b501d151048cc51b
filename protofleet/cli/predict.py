"""``protofleet device predict``: what the personal model says of examples or of a sensor."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from protofleet.cli._process import start_process
from protofleet.cli._store import model_options, opened_model
from protofleet.errors import InputError

if TYPE_CHECKING:
    from protofleet.edge import PersonalModel, Predictions
    from protofleet.edge.examples import ByteStream, Examples

_PATH = click.Path(path_type=Path)


@click.command()
@model_options
@click.option(
    "--data",
    required=True,
    metavar="SOURCE",
    help="FILE.npz, FILE.csv, uci-har:N with --data-root, or - for a CSV on standard input.",
)
@click.option("--data-root", type=_PATH, help="Folder of the published data sets.")
@click.option(
    "--raw", is_flag=True, help="Examples are readings as they come: normalise them as the bundle."
)
@click.option(
    "--rate",
    "rate_hz",
    type=click.FloatRange(0, min_open=True),
    metavar="HZ",
    help="Of sensor samples; default: from their times, else the bundle's.",
)
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
    threads: int,
    backend: Any,
    data: str,
    data_root: Path | None,
    raw: bool,
    rate_hz: float | None,
    batch_size: int,
    summary: bool,
    latency: bool,
    as_json: bool,
) -> None:
    """Predict with the personal model: a class and its probability for each example.

    SOURCE holds examples, preprocessed as the data that the device trains on, or with --raw as they
    come; or a CSV of sensor samples with the bundle's channels as columns, which is cut into
    windows. With labels, accuracy and macro-F1 follow. A federation may be running meanwhile; a
    sensor on standard input gets each new round's model (docs/device.md).
    """
    start_process(threads, quiet=True)
    from protofleet.edge.examples import load_examples, read_csv
    from protofleet.edge.personal import doubt_of

    model = opened_model(store, bundle, trust_files, backend=backend, threads=threads)
    manifest = model.model.bundle.manifest
    if data == "-":
        stream = cast("ByteStream", sys.stdin.buffer)
        blocks = read_csv(stream, "standard input", manifest, rate_hz=rate_hz)
    else:
        blocks = load_examples(data, manifest, data_root=data_root, rate_hz=rate_hz)
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
    """What is kept of all examples: their labels, and one to time the model with."""

    def __init__(self) -> None:
        self.count = 0
        self._pairs: list[tuple[Any, Any]] = []
        self._last: tuple[Any, bool] | None = None

    def add(self, block: Examples, predicted: Predictions, *, raw: bool) -> None:
        self.count += len(predicted)
        self._pairs.append((predicted.indices, block.y))
        if len(block.x):
            self._last = block.x[-1:], raw

    def figures(self, model: PersonalModel, *, latency: bool) -> dict[str, Any]:
        """Scores where there are labels, and latencies where they are asked for."""
        import msgspec
        import numpy as np

        from protofleet.edge.personal import score_predictions

        predicted, y = (np.concatenate(parts) for parts in zip(*self._pairs, strict=True))
        scores = score_predictions(predicted, y)
        found: dict[str, Any] = {"examples": self.count}
        if scores.examples:
            found |= {"labelled": scores.examples, "accuracy": scores.accuracy}
            found |= {"macro_f1": scores.macro_f1}
        if latency and self._last is not None:
            x, raw = self._last
            found["infer_ms"] = msgspec.to_builtins(model.latency(x, raw=raw))
        return found


def _rows(
    block: Examples, predicted: Predictions, first: int
) -> Iterator[tuple[int, float | None, str, float, str | None]]:
    """Number, time, class, probability and label of each example."""
    for k, index in enumerate(predicted.indices.tolist()):
        start_s = None if block.start_s is None else float(block.start_s[k])
        label = int(block.y[k])
        yield (
            first + k,
            start_s,
            predicted.classes[index],
            float(predicted.probabilities[k, index]),
            predicted.classes[label] if label >= 0 else None,
        )


class _JsonPrinter:
    """One JSON object per line, as ``device join --json``."""

    def __init__(self, model: PersonalModel, *, summary: bool) -> None:
        self._model, self._summary = model, summary
        self.model()

    def model(self) -> None:
        """Say whose predictions follow."""
        manifest = self._model.model.bundle.manifest
        figures = {"bundle": self._model.model.bundle.digest, "classes": list(manifest.classes)}
        about = {"strategy": self._model.model.strategy, "backend": self._model.backend}
        self._print("model", {"round_id": self._model.round_id, **about, **figures})

    def examples(self, block: Examples, predicted: Predictions, first: int) -> None:
        """A line for each example."""
        if self._summary:
            return
        rows = _rows(block, predicted, first)
        for row, shares in zip(rows, predicted.probabilities.tolist(), strict=True):
            names = ("example", "start_s", "class", "probability", "label")
            named = zip(names, row, strict=True)
            known = {name: value for name, value in named if value is not None}
            self._print("prediction", {**known, "probabilities": shares})

    def end(self, figures: dict[str, Any]) -> None:
        """The scores."""
        self._print("scores", figures)

    def _print(self, event: str, figures: dict[str, Any]) -> None:
        click.echo(json.dumps({"event": event, **figures}))


class _TextPrinter:
    """A table that grows."""

    def __init__(self, model: PersonalModel, *, summary: bool) -> None:
        self._model, self._summary = model, summary
        self._width = max(5, *(len(name) for name in model.classes))
        self._headed = False
        self.model()

    def model(self) -> None:
        """Say whose predictions follow."""
        opened = self._model.model
        name = f"bundle '{opened.bundle.manifest.name}'"
        if opened.strategy:
            made = f"federation '{opened.federation}', strategy {opened.strategy}"
            click.echo(f"model of round {opened.round_id}: {made}, {name}")
        else:
            click.echo(f"{name}, its own values")

    def examples(self, block: Examples, predicted: Predictions, first: int) -> None:
        """A line for each example."""
        if self._summary:
            return
        if not self._headed:
            self._headed = True
            where = "example" if block.start_s is None else "start_s"
            click.echo(f"{where:>12}  {'class':<{self._width}}  probability  label")
        for number, start_s, name, probability, label in _rows(block, predicted, first):
            where = f"{number:>12}" if start_s is None else f"{start_s:>12.2f}"
            line = f"{where}  {name:<{self._width}}  {probability:>11.4f}  {label or ''}"
            click.echo(line.rstrip())

    def end(self, figures: dict[str, Any]) -> None:
        """The scores."""
        if "accuracy" in figures and not math.isnan(figures["accuracy"]):
            click.echo(
                f"macro-F1 {figures['macro_f1']:.4f}, accuracy {figures['accuracy']:.4f} on "
                f"{figures['labelled']} labelled examples of {figures['examples']}"
            )
        else:
            click.echo(f"{figures['examples']} examples, none with a label")
        if "infer_ms" in figures:
            texts = (f"{name} {value:.2f}" for name, value in figures["infer_ms"].items())
            click.echo(f"one window, ms: {'  '.join(texts)}")
