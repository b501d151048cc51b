"""*Model*: scores by round, how far devices drift from the server, where prototypes move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protofleet.federation.outcomes.calibration import CalibrationProgress
from protofleet.federation.records import RoundRecord
from protofleet.hub.dashboard.pages import Lines, PageRequest, chart
from protofleet.hub.dashboard.prototypes import PrototypeLayer, read_prototypes
from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.hub.dashboard.watch import WatchedRun
from protofleet.strategies.tasks import METRICS, TASKS, Metric

_LINES = 8
_WIDTH, _HEIGHT, _EDGE = 480.0, 320.0, 12.0
_LADDER_TOP, _LADDER_HEIGHT, _LEAST = 30.0, 90.0, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """From a prototype's place after a round to that after the next, in pixels."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """One layer's picture: points of the last round, and the lines that lead to them."""

    layer: PrototypeLayer
    points: tuple[tuple[float, float], ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Learning rates that devices tried, as a curve in pixels.

    Attributes:
        text: which was chosen, and how.
        points: of each rate: its number as text, its ratio as text, x and y.
        chosen: index of the one that is used.
    """

    text: str
    points: tuple[tuple[str, str, float, float], ...]
    chosen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A section of scores: its name, and its last, first and best headline as text."""

    name: str
    last: str
    spread: str
    first: str
    best: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """Attributes as the page shows them; charts are empty where there is nothing to draw."""

    title: str
    scores: tuple[Score, ...]
    scored: str
    losses: str
    drift: str
    figures: str
    scatters: tuple[Scatter, ...]
    epsilon: float | None
    ladder: Ladder | None


def details(
    watched: WatchedRun, run: RunSnapshot, _query: Mapping[str, str]
) -> tuple[PrototypeLayer, ...]:
    """The server's prototypes."""
    return read_prototypes(watched.folder) if run.committed else ()


def view(asked: PageRequest) -> ModelView:
    """The page's content."""
    rounds = asked.run.committed
    headline = TASKS[asked.run.task].headline
    metric = METRICS[headline]
    names = list(dict.fromkeys(name for one in rounds for name in one.scores.sections))
    lines = {name: _headlines(rounds, name) for name in names}
    private = [one.privacy for one in rounds if one.privacy is not None]
    scaled: dict[str, list[float | None]] = {
        name: [None if one is None else round(metric.scaled(one), 3) for one in values]
        for name, values in lines.items()
    }
    return ModelView(
        title=metric.title,
        scores=tuple(_score(rounds, name, values) for name, values in lines.items()),
        scored=_chart(rounds, scaled, metric),
        losses=_chart(
            rounds,
            {
                "mean loss on own test parts": [
                    None if one.scores.own_loss is None else one.scores.own_loss.mean
                    for one in rounds
                ]
            },
        ),
        drift=_chart(rounds, _by_name([one.update_norms for one in rounds])),
        figures=_chart(rounds, _by_name([one.figures for one in rounds])),
        scatters=tuple(_scatter(layer) for layer in asked.details),
        epsilon=private[-1].epsilon if private else None,
        ladder=_ladder(asked.run.calibration),
    )


def _ladder(progress: CalibrationProgress | None) -> Ladder | None:
    chosen = None if progress is None else progress.chosen
    if chosen is None or not chosen.ratios:
        return None
    ratios = [max(ratio, _LEAST) for ratio in chosen.ratios]
    low, high = min(ratios), max(ratios)
    step, span = (_WIDTH - 4 * _EDGE) / max(len(chosen.rates) - 1, 1), math.log(high / low) or 1.0
    points = tuple(
        (
            f"{rate:g}",
            f"{chosen.ratios[index]:.2g}",
            round(2 * _EDGE + index * step, 1),
            round(_LADDER_TOP + _LADDER_HEIGHT * (1 - math.log(ratio / low) / span), 1),
        )
        for index, (rate, ratio) in enumerate(zip(chosen.rates, ratios, strict=True))
    )
    return Ladder(text=chosen.text, points=points, chosen=chosen.rates.index(chosen.lr))


def _headlines(rounds: Sequence[RoundRecord], name: str) -> list[float | None]:
    found = []
    for one in rounds:
        spread = one.scores.sections.get(name, {}).get(TASKS[one.scores.task].headline)
        found.append(None if spread is None else spread.mean)
    return found


def _score(rounds: Sequence[RoundRecord], name: str, values: list[float | None]) -> Score:
    headline = TASKS[rounds[-1].scores.task].headline
    metric = METRICS[headline]
    known = [one for one in values if one is not None]
    last = next(
        (
            found
            for one in reversed(rounds)
            if (found := one.scores.sections.get(name, {}).get(headline)) is not None
        ),
        None,
    )
    if last is None:
        return Score(name=name, last="-", spread="", first="-", best="-")
    best = min(known) if metric.lower_is_better else max(known)
    spread = f"± {metric.page_text(last.std)} over {last.n}" if last.n > 1 else ""
    texts = [metric.page_text(one) for one in (last.mean, known[0], best)]
    return Score(name=name, last=texts[0], spread=spread, first=texts[1], best=texts[2])


def _by_name(records: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    names = list(dict.fromkeys(name for one in records for name in one))[:_LINES]
    return {name: [one.get(name) for one in records] for name in names}


def _chart(rounds: Sequence[RoundRecord], lines: Lines, metric: Metric | None = None) -> str:
    return chart("Round", [one.round_id for one in rounds], lines, metric)


def _scatter(layer: PrototypeLayer) -> Scatter:
    every = [*layer.points, *(point for move in layer.moves for point in move)]
    low = [min(point[axis] for point in every) for axis in (0, 1)]
    high = [max(point[axis] for point in every) for axis in (0, 1)]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        share = [(point[a] - low[a]) / ((high[a] - low[a]) or 1.0) for a in (0, 1)]
        x = _EDGE + share[0] * (_WIDTH - 2 * _EDGE)
        y = _HEIGHT - _EDGE - share[1] * (_HEIGHT - 2 * _EDGE)
        return round(x, 1), round(y, 1)

    ends = [(place(start), place(end)) for start, end in layer.moves]
    lines = tuple(Line(x1=x1, y1=y1, x2=x2, y2=y2) for (x1, y1), (x2, y2) in ends)
    return Scatter(layer=layer, points=tuple(map(place, layer.points)), lines=lines)
