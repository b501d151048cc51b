"""Puts a run's two files together into one self-contained page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jinja2

from protofleet import units
from protofleet.durable import replace_whole
from protofleet.federation.outcomes.trouble import troubles
from protofleet.federation.records import (
    Metrics,
    PrivacyRecord,
    RunRecord,
    Scores,
    Spread,
    load_record,
)
from protofleet.report import _figures
from protofleet.report._devices import device_table, shares
from protofleet.report.comparison import ComparedRecord
from protofleet.report.details import Details, Latencies, Prototypes, details_of_folder
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.tensors import TaskName

_FOLDER = Path(__file__).parent
_MAX_LAYERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure as the template needs it.

    Attributes:
        key: identifies it on the page.
        title, caption: text above and below.
        alt: what it shows, for those who cannot see it.
        uri: the image itself as a data URI.
    """

    key: str
    title: str
    caption: str
    alt: str
    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Headline:
    """One card: a kind of score with its figures, the task's first one and the others.

    ``before``: that first one before the first round; None: not measured.
    """

    name: str
    meaning: str
    first: _Figure
    others: tuple[_Figure, ...]
    before: _Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One score: its label, mean and spread as text; ``std`` is empty for a single model."""

    label: str
    mean: str
    std: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparedRow:
    """One row of the methods' table: who, trained where, a cell for each kind and score."""

    name: str
    trained: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Targets:
    """A table with a row for each target or label: its name and its scores."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


_LATENCIES: tuple[tuple[str, str, str, Callable[[Latencies], tuple[float, ...]]], ...] = (
    ("train-ms", "Training latency", "ms per training step", lambda d: d.train_step_ms),
    ("infer-ms", "Inference latency", "ms per inference", lambda d: d.infer_ms),
)
_MEANINGS = {
    "Personalisation": "Each device's own model, on that device's own test data.",
    "Generalisation": "Each device's own model, on the test data of all devices together.",
    "Global": "The coordinator's one model, on the test data of all devices together.",
}
KINDS: dict[str, Callable[[Scores], Metrics | None]] = {
    "Personalisation": lambda scores: scores.personalisation,
    "Generalisation": lambda scores: scores.generalisation,
    "Global": lambda scores: scores.global_,
}
_TASK_MEANINGS: dict[TaskName, str] = {
    "classification": "Macro-F1 is the mean over classes of the harmonic mean of precision and "
    "recall, so a rare class counts as much as a frequent one.",
    "segmentation": "Every step of every window counts. Macro-F1 is the mean over classes of the "
    "harmonic mean of precision and recall, so a rare class counts as much as a frequent one.",
    "regression": "RMSE and MAE are errors in the unit of the targets, R² is the share of their "
    "variance that the model explains; all are means over the targets.",
    "multilabel": "F1 is the harmonic mean of a label's precision and recall: macro-F1 is its mean "
    "over the labels, micro-F1 that of all labels' decisions together.",
}


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` from what a run left in its folder.

    Returns:
        The page's path.

    Raises:
        MissingDataError: nothing of a run is there.
        InputError: a field is missing or of a wrong type.
    """
    details = details_of_folder(run_dir)
    result = load_record(run_dir / "result.json", ComparedRecord)
    page = run_dir / "report.html"
    replace_whole(page, render(result, details).encode(), shared=True)
    return page


def template_environment() -> jinja2.Environment:
    """Where the pages' templates are; what they are given is text unless marked as safe."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        bytes=units.byte_text,
        ms=units.ms_text,
        duration=units.duration_text,
    )
    return environment


def render(result: ComparedRecord, details: Details) -> str:
    """The page."""
    script = (_FOLDER / "report.js").read_text(encoding="utf-8")
    return (
        template_environment()
        .get_template("report.html.jinja2")
        .render(
            result=result,
            details=details,
            headlines=_headlines(result.scores, _before(result)),
            further=[*_further(result.scores), *_last_round(result)],
            targets=_targets(result.scores),
            kinds=[result.columns.get(name.lower(), name) for name in KINDS],
            troubles=troubles(result.rounds, result.outcome, result.device_troubles),
            metrics=[METRICS[name].label for name in _compared_metrics(result)],
            compared=_compared_rows(result),
            meaning=_TASK_MEANINGS[result.scores.task],
            final_fit=any(item.final for item in result.rounds),
            facts=_facts(result, details),
            pictures=_pictures(result, details),
            table=device_table(result, details),
            first_shares=shares(details.confusions[0]) if details.confusions else [],
            css=(_FOLDER / "report.css").read_text(encoding="utf-8"),
            confusions=[one.counts for one in details.confusions],
            js=script,
            js_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=version("protofleet"),
        )
    )


def _before(result: ComparedRecord) -> Scores:
    """What the run's own method started from, as far as it was measured."""
    own = (one.start for one in result.comparison if one.strategy == result.strategy)
    return next(own, result.start)


def _headlines(scores: Scores, before: Scores | None = None) -> list[_Headline]:
    return [
        _headline(name, metrics, scores, pick(before or Scores()))
        for name, pick in KINDS.items()
        if (metrics := pick(scores)) is not None and TASKS[scores.task].headline in metrics
    ]


def _headline(
    name: str, metrics: Metrics, scores: Scores, before: Metrics | None = None
) -> _Headline:
    named = TASKS[scores.task].metrics
    first, *others = [
        _figure(metric, metrics[metric], is_spread=name != "Global")
        for metric in named
        if metric in metrics
    ]
    headline = TASKS[scores.task].headline
    found = (before or {}).get(headline)
    start = None if found is None else _figure(headline, found, is_spread=name != "Global")
    return _Headline(
        name=name, meaning=_MEANINGS[name], first=first, others=tuple(others), before=start
    )


def _figure(name: MetricName, found: Spread, *, is_spread: bool) -> _Figure:
    metric = METRICS[name]
    return _Figure(
        label=metric.label,
        mean=metric.page_text(found.mean),
        std=metric.page_text(found.std) if is_spread else "",
        unit="%" if metric.is_share else "",
    )


def _further(scores: Scores) -> list[tuple[str, str, str]]:
    """Rows of the table below the headlines: what, mean, standard deviation over the devices."""
    loss = scores.own_loss
    rows = [("Loss on own test data", f"{loss.mean:.4g}", f"{loss.std:.4g}")] if loss else []
    for name, metrics in sorted(scores.more.items()):
        for found in TASKS[scores.task].metrics:
            if found not in metrics:
                continue
            metric, spread = METRICS[found], metrics[found]
            unit = ", %" if metric.is_share else ""
            mean, std = metric.page_text(spread.mean), metric.page_text(spread.std)
            rows.append((f"{name}, {metric.label}{unit}", mean, std))
    return rows


def _compared_metrics(result: ComparedRecord) -> tuple[MetricName, ...]:
    """Two of the task's scores, that which owners understand first: more would not fit."""
    task = TASKS[result.scores.task]
    return tuple(sorted(task.metrics[:2], key=lambda name: name != task.selects))


def _compared_rows(result: ComparedRecord) -> list[_ComparedRow]:
    """What each network starts from, then what each method has come to."""
    before = [
        _ComparedRow(
            name=name,
            trained=f"{one.network}, trained centrally"
            + (" without labels, so that it names classes by chance" * result.untrained_head),
            cells=tuple("-" for _ in _compared_cells(one.start, result))
            if result.untrained_head
            else _compared_cells(one.start, result),
        )
        for name, one in result.starts().items()
    ]
    after = [
        _ComparedRow(
            name=method.label, trained=method.trained, cells=_compared_cells(method.last, result)
        )
        for method in result.comparison
    ]
    return [*before, *after]


def _compared_cells(scores: Scores, result: ComparedRecord) -> tuple[str, ...]:
    cells = []
    for kind, pick in KINDS.items():
        for name in _compared_metrics(result):
            found = (pick(scores) or {}).get(name)
            std = "" if found is None or kind == "Global" else METRICS[name].page_text(found.std)
            mean = units.NOTHING if found is None else METRICS[name].page_text(found.mean)
            cells.append(f"{mean} ± {std}" if std else mean)
    return tuple(cells)


def _last_round(result: RunRecord) -> list[tuple[str, str, str]]:
    """Rows of the same table: the headlines as they were scored last, where that says more."""
    last = result.last
    if last == result.scores:
        return []
    rows = []
    for one in _headlines(last):
        unit = f", {one.first.unit}" if one.first.unit else ""
        name = f"{one.name} as scored last, {one.first.label}{unit}"
        rows.append((name, one.first.mean, one.first.std))
    return rows


def _targets(scores: Scores) -> _Targets | None:
    """The table of targets or labels; None where the task has classes."""
    named = TASKS[scores.task].each
    if not scores.targets:
        return None
    return _Targets(
        columns=tuple(METRICS[name].title for name in named),
        rows=tuple(
            (
                target,
                tuple(
                    METRICS[name].page_text(values[name]) if name in values else units.NOTHING
                    for name in named
                ),
            )
            for target, values in scores.targets.items()
        ),
    )


def _facts(result: RunRecord, details: Details) -> dict[str, str]:
    rounds_s = sum(item.seconds for item in result.rounds)
    step_ms = units.median(device.train_step_ms.p50 for device in result.devices)
    infer_ms = units.median(device.infer_ms.p50 for device in result.devices)
    facts = {
        "Strategy": result.strategy,
        "Data": details.data,
        "Devices": str(len(result.devices)),
        "Rounds": str(len(result.aggregated)),
        "Seed": str(result.seed),
        "Wall time": units.duration_text(rounds_s if details.wall_s is None else details.wall_s),
        "Codec (up / down)": result.codec,
        "Differential privacy": _privacy(result.privacy),
        "Learning rate": result.calibration.text if result.calibration else "",
        "Early end": result.early_end.text if result.early_end else "",
        "Devices do not send": result.switched_off,
        "Cells": ", ".join(f"{one.id}: {one.devices} devices" for one in result.cells),
        "Bytes up": units.byte_text(sum(one.bytes_up for one in result.cells or result.devices)),
        "Bytes down": units.byte_text(
            sum(one.bytes_down for one in result.cells or result.devices)
        ),
        "Per device and round": _per_round(result),
        "Training step (median device)": f"{units.ms_text(step_ms)} ms",
        "Inference (median device)": f"{units.ms_text(infer_ms)} ms",
    }
    unknown = {f"{units.NOTHING} ms", ""}
    return {name: text for name, text in facts.items() if text not in unknown}


def _privacy(spent: PrivacyRecord | None) -> str:
    """What the run has spent; empty without noise."""
    if spent is None:
        return ""
    if spent.repeatable:
        return "none: the noise comes from privacy.noise_seed"
    return f"ε = {spent.epsilon:.3g} at δ = {spent.delta:.3g} per device"


def _per_round(result: RunRecord) -> str:
    """Bytes up and down of one device in one round; empty before the first round."""
    count = sum(item.participants for item in result.rounds)
    if not count:
        return ""
    up = units.byte_text(round(sum(item.bytes_up for item in result.rounds) / count))
    down = units.byte_text(round(sum(item.bytes_down for item in result.rounds) / count))
    return f"{up} up, {down} down"


def _pictures(result: ComparedRecord, details: Details) -> list[Picture]:
    return [
        *_score_pictures(result),
        *_ladder_pictures(result),
        *_compared_pictures(result),
        *_byte_pictures(result),
        *_latency_pictures(details),
        *_prototype_pictures(details),
    ]


def _score_pictures(result: RunRecord) -> list[Picture]:
    rounds = result.aggregated
    if not _figures.has_scores(rounds):
        return []
    last = rounds[-1].scores
    ends = [f"{h.name} {h.first.mean} {h.first.unit}".rstrip() for h in _headlines(last)]
    label = METRICS[TASKS[last.task].headline].label
    label = label[0].upper() + label[1:]
    return [
        Picture(
            key="scores",
            title="Scores by round",
            caption=f"{label}; the band is one standard deviation over the devices.",
            alt=f"Line plot of {label} over {len(rounds)} rounds. "
            f"Last round: {', '.join(ends) or 'not scored'}.",
            uri=data_uri(_figures.scores_by_round(rounds)),
        )
    ]


def _ladder_pictures(result: RunRecord) -> list[Picture]:
    chosen = result.calibration
    if chosen is None or not chosen.ratios:
        return []
    return [
        Picture(
            key="rates",
            title="Learning rates that were tried",
            caption="Loss on held-out examples after a local round, divided by the loss before; "
            "the red one is used.",
            alt=f"Line plot of {len(chosen.rates)} learning rates; {chosen.text}.",
            uri=data_uri(_figures.ladder(chosen)),
        )
    ]


def _compared_pictures(result: ComparedRecord) -> list[Picture]:
    methods = result.comparison
    found = []
    for kind, pick in KINDS.items():
        shown = _compared_metrics(result)[0]
        svg = _figures.compared_by_round(methods, pick, shown) if methods else None
        if svg is None:
            continue
        label = METRICS[shown].label
        ends = [
            f"{one.label} {METRICS[shown].page_text(metrics[shown].mean)}"
            for one in methods
            if (metrics := pick(one.last)) and shown in metrics
        ]
        found.append(
            Picture(
                key=f"compared-{kind.lower()}",
                title=f"{kind} of the methods",
                caption=f"{label[0].upper()}{label[1:]}; round 0 is before the first round.",
                alt=f"Line plot of {kind.lower()} for {len(ends)} methods by round. "
                f"Last round: {', '.join(ends)}.",
                uri=data_uri(svg),
            )
        )
    return found


def _byte_pictures(result: RunRecord) -> list[Picture]:
    up = sum(item.bytes_up for item in result.rounds)
    down = sum(item.bytes_down for item in result.rounds)
    total = f"{units.byte_text(up)} up and {units.byte_text(down)} down"
    by_round = Picture(
        key="bytes-round",
        title="Traffic by round",
        caption="Bytes between the cells and the root."
        if result.cells
        else "Bytes of all devices together, counted at their sockets.",
        alt=f"Bar plot of bytes per round; in sum {total}.",
        uri=data_uri(_figures.bytes_by_round(result.rounds)),
    )
    by_device = Picture(
        key="bytes-device",
        title="Traffic by device",
        caption="Bytes of the whole run, joining included.",
        alt=f"Bar plot of bytes for each of {len(result.devices)} devices; the median device "
        f"sent {units.byte_text(units.median(d.bytes_up for d in result.devices) or 0)}.",
        uri=data_uri(_figures.bytes_by_device(result.devices)),
    )
    own = result.devices and not result.cells  # what a cell's devices paid stands in its folder
    return [*([by_round] if result.rounds else []), *([by_device] if own else [])]


def _latency_pictures(details: Details) -> list[Picture]:
    caption = "Box: quartiles and median; whiskers: 5th to 95th percentile."
    found = []
    for key, title, label, pick in _LATENCIES:
        svg = _figures.latencies(details.latencies, pick, label)
        medians = [units.median(pick(device)) for device in details.latencies]
        if svg is not None:
            alt = f"Box plot of {label}; the median device's median is "
            alt += f"{units.ms_text(units.median(medians))} ms."
            found.append(Picture(key=key, title=title, caption=caption, alt=alt, uri=data_uri(svg)))
    return found


def _prototype_pictures(details: Details) -> list[Picture]:
    return [
        Picture(
            key=f"prototypes-{index}",
            title=f"Prototypes of {layer.layer}",
            caption="First two principal components. Rings: the server's after the last round; "
            "filled: a device's after its training, an arrow to each from the nearest ring.",
            alt=f"Scatter plot of the {len(layer.values)} prototypes of {_listed(layer.groups)}.",
            uri=data_uri(_figures.prototypes(layer)),
        )
        for index, layer in enumerate(_spread_out(details.prototypes))
        if layer.values
    ]


def _spread_out(layers: Sequence[Prototypes]) -> list[Prototypes]:
    """At most ``_MAX_LAYERS`` of them, evenly from first to last."""
    if len(layers) <= _MAX_LAYERS:
        return list(layers)
    last = len(layers) - 1
    return [layers[round(index * last / (_MAX_LAYERS - 1))] for index in range(_MAX_LAYERS)]


def _listed(groups: Sequence[str]) -> str:
    names = list(dict.fromkeys(groups))
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} groups"


def data_uri(svg: bytes) -> str:
    """An image as an address that needs no file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
