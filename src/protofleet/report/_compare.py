"""Differences between two runs, row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from protofleet.coordinator.ledger.queries import read_identity
from protofleet.federation.records import Metrics, RunRecord
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.units import NOTHING, median


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
    """Scores, bytes, milliseconds and seconds of two runs, side by side.

    Scores are those of the runs' tasks, shares in per cent. A loss and further scores have rows
    where one of the runs has them. Rounds are those that were aggregated, without a final fit.
    """
    rows = {**_score_rows(first, second), **_further_rows(first, second), **_COST_ROWS}
    return [_difference(name, pick(first), pick(second)) for name, pick in rows.items()]


def differing_settings(
    first: tuple[Path, RunRecord], second: tuple[Path, RunRecord]
) -> dict[str, tuple[str, str]]:
    """What two runs were told differently: by name, the text of each; ``-`` where one has none.

    Args:
        first: folder and record of a run; of a folder without a ledger only the record tells.
        second: likewise.

    Raises:
        InputError: a ledger is damaged.
    """
    one, other = _settings(*first), _settings(*second)
    return {
        name: (one.get(name, NOTHING), other.get(name, NOTHING))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    }


def _settings(folder: Path, result: RunRecord) -> dict[str, str]:
    """By name; a setting within a setting has both names."""
    inner = folder / "coordinator"  # of a demonstration
    identity = read_identity(inner if inner.is_dir() else folder)
    found = {"strategy": result.strategy, "seed": str(result.seed), "codec": result.codec}
    for name in ("bundle", "schedule", "aggregation", "privacy"):
        if name in identity:
            found[name] = identity[name]
    told = msgspec.json.decode(identity.get("settings", "{}"), type=dict[str, Any])
    return found | {f"settings.{name}": str(value) for name, value in told.items()}


_Rows = dict[str, Callable[[RunRecord], float | None]]


def _metrics_of(*results: RunRecord) -> list[MetricName]:
    """What the runs' tasks are scored by."""
    tasks = dict.fromkeys(result.scores.task for result in results)
    return list(dict.fromkeys(name for task in tasks for name in TASKS[task].metrics))


def _score_rows(*results: RunRecord) -> _Rows:
    return {
        f"{section} {METRICS[metric].title}": _score(pick, metric)
        for section, pick in _SECTIONS.items()
        for metric in _metrics_of(*results)
    }


def _further_rows(*results: RunRecord) -> _Rows:
    rows: _Rows = {}
    if any(result.scores.own_loss for result in results):
        rows["own loss"] = _own_loss
    for name in sorted({name for result in results for name in result.scores.more}):
        for metric in _metrics_of(*results):
            rows[f"{name} {METRICS[metric].title}"] = _score(_further(name), metric)
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
    pick: Callable[[RunRecord], Metrics | None], metric: MetricName
) -> Callable[[RunRecord], float | None]:
    def read(result: RunRecord) -> float | None:
        found = (pick(result) or {}).get(metric)
        return None if found is None else METRICS[metric].scaled(found.mean)

    return read


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


_SECTIONS: dict[str, Callable[[RunRecord], Metrics | None]] = {
    "personalisation": lambda result: result.scores.personalisation,
    "generalisation": lambda result: result.scores.generalisation,
    "global": lambda result: result.scores.global_,
}
_COST_ROWS: _Rows = {
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
