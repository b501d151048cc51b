"""The report's figures, each an SVG element; matplotlib is imported with this module."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from protofleet.federation.outcomes.calibration import Calibration
from protofleet.federation.records import DeviceRecord, Metrics, RoundRecord, Scores
from protofleet.report.comparison import ComparedMethod
from protofleet.report.details import Latencies, Prototypes
from protofleet.report.projection import principal_plane
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS, TASKS, Metric
from protofleet.units import unit_of

# Okabe and Ito, "Color Universal Design" (2008): told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9",
)  # fmt: skip
INK, FAINT = "#1f2933", "#d5dbe1"
_MARKERS = "osD^vPX*"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa5b1",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "protofleet",
}
_SERIES: tuple[tuple[str, str, str, str, Callable[[Scores], Metrics | None]], ...] = (
    ("Personalisation", BLUE, "o", "-", lambda scores: scores.personalisation),
    ("Generalisation", RED, "s", "--", lambda scores: scores.generalisation),
    ("Global", GREEN, "^", ":", lambda scores: scores.global_),
)
_WIDTH, _HEIGHT = 5.0, 3.3
_MAX_ROWS = 40
_MAX_GROUPS = 8
_MOST_MOVES = 200
GLOBAL = "global"
"""Group of the server's prototypes."""
_DARK = {INK: "#e4e9ee", FAINT: "#36424e", "#9aa5b1": "#7b8794"}


def scores_by_round(rounds: Sequence[RoundRecord]) -> bytes:
    """The task's first score of the three kinds, with a band of one standard deviation."""
    headline = TASKS[rounds[0].scores.task].headline
    metric = METRICS[headline]

    def draw(axes: Any) -> None:
        for label, colour, marker, line, pick in _SERIES:
            scored = [(r.round_id, (pick(r.scores) or {}).get(headline)) for r in rounds]
            points = [(round_id, spread) for round_id, spread in scored if spread is not None]
            if not points:
                continue
            x = [round_id for round_id, _ in points]
            mean = np.array([metric.scaled(spread.mean) for _, spread in points])
            std = np.array([metric.scaled(spread.std) for _, spread in points])
            axes.plot(
                x, mean, line, color=colour, marker=marker, ms=3.5, lw=1.8, label=label,
                markevery=max(1, len(x) // 12),
            )  # fmt: skip
            largest = 100 if metric.is_share else np.inf
            low, high = np.clip(mean - std, 0, largest), np.clip(mean + std, 0, largest)
            axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)
        _label_scores(axes, metric)

    return _drawn(draw)


def compared_by_round(
    methods: Sequence[ComparedMethod],
    pick: Callable[[Scores], Metrics | None],
    shown: MetricName,
) -> bytes | None:
    """One score of one kind, a line for each method; round 0 is before the first.

    None where no method has such scores.
    """
    metric = METRICS[shown]
    curves = []
    looks = zip((GREEN, ORANGE, BLUE, RED, PURPLE, SKY), _MARKERS, strict=False)
    # A method looks alike in all figures, also where another has no such scores.
    for method, look in zip(methods, looks, strict=False):
        scored = [(pick(one) or {}).get(shown) for one in (method.start, *method.rounds)]
        points = [(r, metric.scaled(one.mean)) for r, one in enumerate(scored) if one is not None]
        if any(round_id for round_id, _ in points):
            curves.append((method.label, look, points))
    if not curves:
        return None

    def draw(axes: Any) -> None:
        for label, (colour, marker), points in curves:
            x, y = zip(*points, strict=True)
            axes.plot(
                x, y, color=colour, marker=marker, ms=3.5, lw=1.8, label=label,
                markevery=max(1, len(x) // 12),
            )  # fmt: skip
        _label_scores(axes, metric)

    return _drawn(draw)


def _label_scores(axes: Any, metric: Metric) -> None:
    """Rounds below, the score beside; the axis of a share ends at 0 and 100 %."""
    axes.set(xlabel="Round", ylabel=metric.title[0].upper() + metric.title[1:])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if metric.is_share:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0), min(high, 100))
    _legend_above(axes)


def ladder(chosen: Calibration) -> bytes:
    """What each learning rate does to the loss on held-out examples."""

    def draw(axes: Any) -> None:
        axes.plot(chosen.rates, chosen.ratios, color=BLUE, marker="o")
        axes.plot([chosen.lr], [chosen.ratios[chosen.rates.index(chosen.lr)]], "D", color=RED, ms=9)
        axes.axhline(1.0, color=INK, lw=0.8, ls=":")
        axes.set(xlabel="Learning rate", ylabel="Loss after / before", xscale="log", yscale="log")

    return _drawn(draw)


def bytes_by_round(rounds: Sequence[RoundRecord]) -> bytes:
    """Bytes of all devices together, up and down, per round."""
    unit, size = unit_of(max((max(r.bytes_up, r.bytes_down) for r in rounds), default=0))
    ids = np.array([r.round_id for r in rounds])

    def draw(axes: Any) -> None:
        for offset, label, colour, values in (
            (-0.2, "down (to devices)", SKY, [r.bytes_down / size for r in rounds]),
            (0.2, "up (from devices)", BLUE, [r.bytes_up / size for r in rounds]),
        ):
            axes.bar(ids + offset, values, 0.38, color=colour, label=label)
        axes.set(xlabel="Round", ylabel=f"{unit} per round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="x", visible=False)
        _legend_above(axes)

    return _drawn(draw)


def bytes_by_device(devices: Sequence[DeviceRecord]) -> bytes:
    """Bytes of the whole run, up and down, per device."""
    devices = devices[:_MAX_ROWS]
    unit, size = unit_of(max((max(d.bytes_up, d.bytes_down) for d in devices), default=0))
    rows = np.arange(len(devices))

    def draw(axes: Any) -> None:
        for offset, label, colour, values in (
            (-0.2, "down (to the device)", SKY, [d.bytes_down / size for d in devices]),
            (0.2, "up (from the device)", BLUE, [d.bytes_up / size for d in devices]),
        ):
            axes.barh(rows + offset, values, 0.38, color=colour, label=label)
        _device_rows(axes, [device.id for device in devices], f"{unit} in the whole run")
        _legend_above(axes)

    return _drawn(draw, height=_rows_height(len(devices)))


def latencies(
    devices: Sequence[Latencies], pick: Callable[[Latencies], Sequence[float]], label: str
) -> bytes | None:
    """One box per device: median, quartiles, whiskers from the 5th to the 95th percentile."""
    shown = [(d.device_id, np.array(pick(d))) for d in devices if len(pick(d))][:_MAX_ROWS]
    if not shown:
        return None
    ends = np.concatenate([np.percentile(samples, (5, 95)) for _, samples in shown])

    def draw(axes: Any) -> None:
        axes.boxplot(
            [samples for _, samples in shown], positions=range(len(shown)), whis=(5, 95),
            orientation="horizontal", widths=0.6, showfliers=False, patch_artist=True,
            boxprops={"facecolor": SKY, "edgecolor": BLUE, "alpha": 0.7},
            medianprops={"color": INK, "linewidth": 1.6},
            whiskerprops={"color": BLUE}, capprops={"color": BLUE},
        )  # fmt: skip
        if ends.min() > 0 and ends.max() > 20 * ends.min():
            axes.set_xscale("log")
        _device_rows(axes, [name for name, _ in shown], label)

    return _drawn(draw, height=_rows_height(len(shown)))


def moves(values: NDArray[np.float64], groups: Sequence[str]) -> tuple[list[int], list[int]]:
    """From which global prototype to which other one: the nearest in all dimensions.

    Args:
        values: ``(n, d)``.
        groups: ``n`` names; ``global`` are those of the server.

    Returns:
        Rows where arrows begin, and where they end.
    """
    named = np.array(groups)
    shared, own = np.flatnonzero(named == GLOBAL), np.flatnonzero(named != GLOBAL)
    if not len(shared) or len(own) > _MOST_MOVES:
        return [], []
    apart = np.linalg.norm(values[own][:, None] - values[shared][None], axis=2)
    return shared[apart.argmin(1)].tolist(), own.tolist()


def prototypes(layer: Prototypes) -> bytes:
    """First two principal components, coloured and marked by group."""
    points, shares = principal_plane(np.array(layer.values, np.float64))
    names = list(dict.fromkeys(layer.groups))
    shown = names if len(names) <= _MAX_GROUPS else names[: _MAX_GROUPS - 1]
    groups = np.array([name if name in shown else "others" for name in layer.groups])
    colours = [BLUE, ORANGE, GREEN, RED, PURPLE, SKY, "#5b4b8a", "#7b8794"]

    def draw(axes: Any) -> None:
        # The first group, drawn last, is the one that the others are compared with.
        for index, name in reversed(list(enumerate(dict.fromkeys(groups.tolist())))):
            x, y = points[groups == name].T
            shared = name == GLOBAL
            axes.scatter(
                x, y, s=60 if shared else 26, marker=_MARKERS[index], label=name, linewidths=1.4,
                facecolors="none" if shared else colours[index], edgecolors=colours[index],
                zorder=3,
            )  # fmt: skip
        starts, ends = moves(np.array(layer.values, np.float64), layer.groups)
        if len(starts):
            (x, y), (u, v) = points[starts].T, (points[ends] - points[starts]).T
            axes.quiver(
                x, y, u, v, angles="xy", scale_units="xy", scale=1, width=0.003, headwidth=5,
                color="#7b8794", zorder=2,
            )  # fmt: skip
        axes.set(
            xlabel=f"Component 1 ({shares[0]:.0%} of variance)",
            ylabel=f"Component 2 ({shares[1]:.0%})",
        )
        _legend_above(axes, reverse=True)

    return _drawn(draw, height=3.8)


def has_scores(rounds: Sequence[RoundRecord]) -> bool:
    """Whether any round was scored."""
    return any(pick(item.scores) for item in rounds for *_, pick in _SERIES)


def _drawn(draw: Callable[[Any], None], *, height: float = _HEIGHT) -> bytes:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = buffer.getvalue()
    svg = svg[svg.index(b"<svg") :]  # without the document type, which names an address
    end = svg.index(b">") + 1
    return svg[:end] + _dark_style() + svg[end:]


def _dark_style() -> bytes:
    """Ink and grid for a dark page; of an image the media query is that of its page."""
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in _DARK.items()
        for part in ("fill", "stroke")
    )
    return f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>".encode()


def _legend_above(axes: Any, *, reverse: bool = False) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    axes.legend(
        handles[::-1] if reverse else handles, labels[::-1] if reverse else labels,
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(3, len(labels)), fontsize=8,
        borderaxespad=0.2, handletextpad=0.4, columnspacing=1.2,
    )  # fmt: skip


def _rows_height(count: int) -> float:
    return max(_HEIGHT, 0.9 + 0.24 * count)


def _device_rows(axes: Any, names: Sequence[str], xlabel: str) -> None:
    axes.set_yticks(
        range(len(names)), [name if len(name) <= 18 else f"{name[:17]}…" for name in names]
    )
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(xlabel)
    axes.grid(axis="y", visible=False)
