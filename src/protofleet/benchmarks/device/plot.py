"""One figure of a device report: latency, throughput, training, memory, size, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from protofleet.benchmarks._rows import short
from protofleet.benchmarks.device.report import RANDOM, DeviceReport, DeviceRun, Phase
from protofleet.report._figures import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SKY, STYLE

_GREY = "#6b7580"
_LOOKS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("onnx", "float32"): (BLUE, "o"),
    ("onnx", "float16"): (SKY, "^"),
    ("onnx", "int8"): (PURPLE, "D"),
    ("litert", "float32"): (RED, "s"),
    ("litert", "float16"): (ORANGE, "v"),
    ("litert", "int8"): (GREEN, "P"),
}
_CODECS = (INK, BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
_CODEC_MARKERS = "osDv^P*"
_DASHES = {1: "-", 2: (0, (4, 1.6))}
_MORE_THREADS = (0, (1, 1.2))
_WHISKER = 2  # largest p50 times this is the longest whisker
_STEEP, _FLAT = 60, 6  # largest value of an axis to the smallest
_STYLE = {**STYLE, "font.size": 8.5}
_WIDTH_IN, _PANEL_IN, _ROW_IN, _HEAD_IN = 14.0, 3.6, 0.24, 0.7
_HEAD_BARS_IN = 1.0


def draw_device(path: Path, report: DeviceReport) -> None:
    """Write the figure; the name's end says whether PNG or SVG. What is not there is left out."""
    runs = [run for run in report.runs if run.phases]
    strategies = list(dict.fromkeys(row.strategy for row in report.traffic if row.total))
    bars = _HEAD_BARS_IN + _ROW_IN * max(len(runs), 3)
    bottom = max(_HEAD_BARS_IN + _ROW_IN * max(len(strategies), 4), _PANEL_IN)
    heights = [_HEAD_IN, bars, max(_PANEL_IN, bottom)]
    with mpl.rc_context(_STYLE):
        figure: Any = Figure(figsize=(_WIDTH_IN, sum(heights)), layout="constrained")
        head, upper, lower = figure.subfigures(3, 1, height_ratios=heights)
        _head(head, report)
        latency, throughput, size = upper.subplots(1, 3)
        _latency(latency, runs)
        _throughput(throughput, runs)
        _sizes(size, runs)
        training, memory, traffic = lower.subplots(1, 3)
        _training(training, runs)
        _memory(memory, runs)
        _traffic(traffic, report, strategies)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=130, metadata=metadata)


def _head(figure: Any, report: DeviceReport) -> None:
    machine = report.machine
    bundle = f"{report.bundle.name}, {report.bundle.params:,} parameters"
    where = f"{machine.get('processor', 'processor not known')}, {machine.get('cores', '?')} cores"
    data = "random examples" if report.data == RANDOM else Path(report.data).name
    figure.text(0.008, 0.62, f"What a device pays: {bundle}", fontsize=13, fontweight="bold")
    figure.text(0.008, 0.22, f"{where} · {data}", color=_GREY)
    measured = [run.what for run in report.runs if run.phases]
    kinds = dict.fromkeys((what.backend, what.precision) for what in measured)
    threads = sorted({what.threads for what in measured})
    keys = [_key(kind) for kind in kinds] + [
        Line2D([], [], color=INK, ls=_dashes(n), label=f"{n} thread{'' if n == 1 else 's'}")
        for n in threads
    ]
    figure.legend(handles=keys, loc="center right", ncols=max(1, (len(keys) + 1) // 2))


def _key(kind: tuple[str, str]) -> Line2D:
    colour, marker = _LOOKS[kind]
    return Line2D([], [], color=colour, marker=marker, mfc="white", label=" ".join(kind))


def _latency(axes: Any, runs: Sequence[DeviceRun]) -> None:
    """Tails are numbers, and long whiskers arrows: a few slow calls must not hide the rest."""
    found = {place: phase for place, run in enumerate(runs) if (phase := run.phase("infer"))}
    middles = [phase.ms["p50"] for phase in found.values()]
    whiskers = [phase.ms.get("p95", phase.ms["p50"]) for phase in found.values()]
    shown = min(max(whiskers, default=1), _WHISKER * max(middles, default=1))
    for (place, phase), middle, whisker in zip(found.items(), middles, whiskers, strict=True):
        _bar(axes, place, runs[place], middle)
        end = min(whisker, shown)
        axes.plot([middle, end], [place] * 2, color=INK, lw=1, zorder=4)
        axes.plot(end, place, ">" if whisker > shown else "|", color=INK, ms=6, mew=1.2, zorder=4)
        higher = [f"{name} {short(phase.ms[name])}" for name in ("p95", "p99") if name in phase.ms]
        _beside(axes, end, place, f"{short(middle)}   {'   '.join(higher)}")
    _rows(axes, [_name(run) for run in runs])
    axes.set_xlim(0, 1.7 * shown)
    axes.set_xlabel("p50, whisker to p95 (arrow: beyond); left is better")
    _title(axes, "One example, ms")


def _throughput(axes: Any, runs: Sequence[DeviceRun]) -> None:
    for place, run in enumerate(runs):
        found = run.phase("stream")
        if found is not None and found.per_s is not None:
            _bar(axes, place, run, found.per_s)
            _beside(axes, found.per_s, place, short(found.per_s))
    _rows(axes, [_name(run) for run in runs])
    axes.margins(x=0.15)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("right is better")
    _title(axes, "Streaming in batches, examples a second")


def _bar(axes: Any, place: int, run: DeviceRun, value: float) -> None:
    colour = _colour(run)
    axes.barh(place, value, 0.66, color=colour, alpha=0.55, edgecolor=colour)


def _beside(axes: Any, x: float, place: int, text: str) -> None:
    axes.annotate(text, (x, place), (5, 0), textcoords="offset points", va="center", fontsize=7.5)


def _rows(axes: Any, names: Sequence[str]) -> None:
    """From top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def _sizes(axes: Any, runs: Sequence[DeviceRun]) -> None:
    """Programs, and weights behind them."""
    shown = list({(run.what.backend, run.what.precision): run for run in runs}.values())
    for place, run in enumerate(shown):
        colour = _colour(run)
        programs, weights = sum(run.program_bytes.values()) / 1e6, run.weight_bytes / 1e6
        axes.barh(place, programs, 0.66, color=colour, edgecolor=colour)
        axes.barh(place, weights, 0.66, left=programs, color=colour, alpha=0.35, edgecolor=colour)
        _beside(axes, programs + weights, place, f"{programs + weights:.3g}")
    _rows(axes, [f"{run.what.backend} {run.what.precision}" for run in shown])
    axes.margins(x=0.15)
    axes.set_xlabel("dark: programs; light: weights beside them")
    _title(axes, "On disk, MB")


def _training(axes: Any, runs: Sequence[DeviceRun]) -> None:
    _title(axes, "Training step, ms")
    trained = {run.what: _trains(run) for run in runs if run.objective}
    if not any(trained.values()):
        _nothing(axes, "no training measured")
        return
    for run in runs:
        points = [(p.batch, p.ms["p50"]) for p in _trains(run)]
        if points:
            axes.plot(*zip(*points, strict=True), **_line(run))
    sizes = sorted({p.batch or 0 for phases in trained.values() for p in phases})
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    _plain(axes.xaxis)
    _ticked(axes.yaxis, axes.get_ylim())
    axes.set_xlabel("examples in the batch; both axes logarithmic, lower is better")


def _trains(run: DeviceRun) -> list[Phase]:
    found = [phase for phase in run.phases if phase.name == "train"]
    return sorted(found, key=lambda phase: phase.batch or 0)


def _memory(axes: Any, runs: Sequence[DeviceRun]) -> None:
    keys = list(dict.fromkeys(phase.key for run in runs for phase in run.phases))
    for run in runs:
        points = [
            (keys.index(p.key), p.peak_rss_bytes / 1e6) for p in run.phases if p.peak_rss_bytes
        ]
        if points:
            axes.plot(*zip(*points, strict=True), **_line(run))
    axes.set_xticks(range(len(keys)), keys, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_ylim(bottom=0)
    _title(axes, "Peak resident memory by phase, MB")


def _traffic(axes: Any, report: DeviceReport, strategies: Sequence[str]) -> None:
    """A colour for each kind of codec; filled where compression follows."""
    largest = max((row.total or 0 for row in report.traffic), default=0)
    unit, scale = ("MB", 1e6) if largest >= 1e6 else ("kB", 1e3)
    _title(axes, f"Bytes of a round, both ways, {unit}")
    if not strategies:
        _nothing(axes, "no bytes counted")
        return
    names = list(dict.fromkeys(row.codec for row in report.traffic if row.total))
    kinds = list(dict.fromkeys(name.partition("+")[0] for name in names))
    for name in names:
        points = [
            ((row.total or 0) / scale, strategies.index(row.strategy))
            for row in report.traffic
            if row.codec == name and row.total
        ]
        kind, _, compressed = name.partition("+")
        number = kinds.index(kind) % len(_CODECS)
        axes.plot(
            *zip(*points, strict=True), _CODEC_MARKERS[number], ls="", ms=5.5, mew=1.3, label=name,
            color=_CODECS[number], mfc=_CODECS[number] if compressed else "white", clip_on=False,
        )  # fmt: skip
    _rows(axes, strategies)
    axes.grid(axis="y", visible=True)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("left is better")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1)


def _ticked(axis: Any, limits: tuple[float, float]) -> None:
    """A logarithmic axis with enough ticks to read from."""
    span = limits[1] / limits[0]
    subs = (1,) if span > _STEEP else (1, 2, 5) if span > _FLAT else tuple(range(1, 10))
    axis.set_major_locator(LogLocator(subs=subs))
    _plain(axis)


def _plain(axis: Any) -> None:
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _colour(run: DeviceRun) -> str:
    return _LOOKS[run.what.backend, run.what.precision][0]


def _line(run: DeviceRun) -> dict[str, Any]:
    colour, marker = _LOOKS[run.what.backend, run.what.precision]
    return {
        "color": colour,
        "marker": marker,
        "ms": 4,
        "mfc": "white",
        "mew": 1.1,
        "lw": 1.5,
        "ls": _dashes(run.what.threads),
    }


def _name(run: DeviceRun) -> str:
    return f"{run.what.backend} {run.what.precision}, {run.what.threads}T"


def _dashes(threads: int) -> Any:
    return _DASHES.get(threads, _MORE_THREADS)


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, fontweight="bold")


def _nothing(axes: Any, why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", color=_GREY, transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])
