"""The report's table of devices, and their confusion matrices, as the template needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protofleet import units
from protofleet.federation.records import DeviceRecord, RunRecord
from protofleet.report.details import Confusion, Details
from protofleet.report.device_scores import RoundScore
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.wire.mqtt.usage import FIGURES

_WIDTH, _HEIGHT = 88, 22
"""Of a curve, in pixels."""
_MARGIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a row: its text, and the number by which rows are sorted (None: none)."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One device: its curve as points of an SVG polyline, its description, and its cells."""

    id: str
    curve: str
    alt: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTable:
    """Headings of the cells, and a row for each device."""

    headings: tuple[str, ...]
    rows: tuple[DeviceRow, ...]
    has_curves: bool


def device_table(result: RunRecord, details: Details) -> DeviceTable:
    """What each device has come to, and what it paid."""
    metric = METRICS[TASKS[result.scores.task].headline]
    unit = " %" if metric.is_share else ""
    backends = bool(details.backends)
    headings = (
        *((f"{metric.label}{unit}", "since first") if details.scores else ()),
        "train ms p50", "train ms p95", "infer ms p50", "infer ms p95", "infer ms p99",
        *(one.shown.label.lower() for one in FIGURES),
        *(("backend",) if backends else ()),
        "codec",
    )  # fmt: skip
    values = [one.score for scores in details.scores.values() for one in scores]
    bounds = (min(values), max(values)) if values else (0.0, 1.0)
    rows = tuple(_row(device, result, details, bounds) for device in result.devices)
    return DeviceTable(headings=headings, rows=rows, has_curves=bool(values))


def _row(
    device: DeviceRecord, result: RunRecord, details: Details, bounds: tuple[float, float]
) -> DeviceRow:
    metric = METRICS[TASKS[result.scores.task].headline]
    scores = details.scores.get(device.id, ())
    train, infer = device.train_step_ms, device.infer_ms
    latencies = (train.p50, train.p95, infer.p50, infer.p95, infer.p99)
    cells = [Cell(text=units.ms_text(one), value=one) for one in latencies]
    cells += [Cell(text=one.text(device), value=one.counted(device)) for one in FIGURES]
    if details.backends:
        cells.append(Cell(text=details.backends.get(device.id, units.NOTHING)))
    own: list[Cell] = []
    alt = "not scored"
    if details.scores:
        own = _own_cells(scores, result)
    if scores:
        shown = [metric.page_text(one.score) for one in (scores[0], scores[-1])]
        alt = f"{metric.label} by round, from {shown[0]} to {shown[1]}"
    return DeviceRow(
        id=device.id,
        curve=curve(scores, bounds),
        alt=alt,
        cells=(*own, *cells, Cell(text=result.codec)),
    )


def _own_cells(scores: Sequence[RoundScore], result: RunRecord) -> list[Cell]:
    metric = METRICS[TASKS[result.scores.task].headline]
    if not scores:
        return [Cell(text=units.NOTHING), Cell(text=units.NOTHING)]
    first, last = scores[0].score, scores[-1].score
    change = metric.scaled(last) - metric.scaled(first)
    return [
        Cell(text=metric.page_text(last), value=last),
        Cell(text=f"{change:+.1f}" if metric.is_share else f"{change:+.3g}", value=change),
    ]


def curve(scores: Sequence[RoundScore], bounds: tuple[float, float]) -> str:
    """Points of a polyline, its height common to all devices; one score is a short line."""
    if not scores:
        return ""
    low, high = bounds
    span, first = high - low, scores[0].round_id
    rounds = max(scores[-1].round_id - first, 1)
    points = []
    for one in scores:
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * (one.round_id - first) / rounds
        share = (one.score - low) / span if span else 0.5
        points.append(f"{x:.1f},{_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * share:.1f}")
    if len(points) == 1:
        points.append(f"{_MARGIN + 6},{points[0].split(',')[1]}")
    return " ".join(points)


def shares(matrix: Confusion) -> list[list[float]]:
    """Of each cell its share of the true class, two digits."""
    return [[round(count / max(sum(row), 1), 2) for count in row] for row in matrix.counts]
