"""Differences between two runs, row by row."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from protofleet.federation.records import Metrics, RunRecord
from protofleet.units import median


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of two runs; None where a run lacks it.

    Attributes:
        name: the quantity, its unit in brackets.
        first, second: its values.
        change: ``second - first``.
        ratio: ``second / first``; None as well where ``first`` is zero.
    """

    name: str
    first: float | None
    second: float | None
    change: float | None
    ratio: float | None


def compare(first: RunRecord, second: RunRecord) -> list[Difference]:
    """Scores in percent, bytes, milliseconds and seconds of two runs, side by side.

    A loss and further scores have rows where one of the runs has them. Rounds are those that were
    aggregated, without a final fit.
    """
    rows = {**_SCORE_ROWS, **_further_rows(first, second), **_COST_ROWS}
    return [_difference(name, pick(first), pick(second)) for name, pick in rows.items()]


def _further_rows(*results: RunRecord) -> dict[str, Callable[[RunRecord], float | None]]:
    rows: dict[str, Callable[[RunRecord], float | None]] = {}
    if any(result.scores.own_loss for result in results):
        rows["own loss"] = _own_loss
    for name in sorted({name for result in results for name in result.scores.more}):
        for metric, label in _METRICS.items():
            rows[f"{name} {label} (%)"] = _score(_further(name), metric)
    return rows


def _further(name: str) -> Callable[[RunRecord], Metrics | None]:
    return lambda result: result.scores.more.get(name)


def _own_loss(result: RunRecord) -> float | None:
    loss = result.scores.own_loss
    return None if loss is None else loss.mean


def _difference(name: str, first: float | None, second: float | None) -> Difference:
    both = None if first is None or second is None else (first, second)
    return Difference(
        name=name,
        first=first,
        second=second,
        change=both[1] - both[0] if both else None,
        ratio=both[1] / both[0] if both and both[0] else None,
    )


def _score(
    pick: Callable[[RunRecord], Metrics | None], metric: str
) -> Callable[[RunRecord], float | None]:
    def read(result: RunRecord) -> float | None:
        metrics = pick(result)
        return None if metrics is None else 100 * float(getattr(metrics, metric).mean)

    return read


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


_METRICS = {"macro_f1": "macro-F1", "accuracy": "accuracy"}
_SCORE_ROWS: dict[str, Callable[[RunRecord], float | None]] = {
    "personalisation macro-F1 (%)": _score(lambda r: r.scores.personalisation, "macro_f1"),
    "personalisation accuracy (%)": _score(lambda r: r.scores.personalisation, "accuracy"),
    "generalisation macro-F1 (%)": _score(lambda r: r.scores.generalisation, "macro_f1"),
    "generalisation accuracy (%)": _score(lambda r: r.scores.generalisation, "accuracy"),
    "global macro-F1 (%)": _score(lambda r: r.scores.global_, "macro_f1"),
    "global accuracy (%)": _score(lambda r: r.scores.global_, "accuracy"),
}
_COST_ROWS: dict[str, Callable[[RunRecord], float | None]] = {
    "devices": lambda r: len(r.devices),
    "rounds": lambda r: len(r.aggregated),
    "seconds per round": lambda r: _mean([item.seconds for item in r.aggregated]),
    "bytes up per round": lambda r: _mean([float(item.bytes_up) for item in r.aggregated]),
    "bytes down per round": lambda r: _mean([float(item.bytes_down) for item in r.aggregated]),
    "training step, median device (ms)": lambda r: median(d.train_step_ms.p50 for d in r.devices),
    "inference, median device (ms)": lambda r: median(d.infer_ms.p50 for d in r.devices),
    "peak memory, largest device (bytes)": lambda r: max(
        (float(d.peak_rss_bytes) for d in r.devices), default=None
    ),
}
