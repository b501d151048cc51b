"""A device's events as lines for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protofleet.units import byte_text, duration_text, ms_text

Figures = Mapping[str, Any]

_ROUND = frozenset({"round_id", "num_examples", "loss", "train_s", "train_step_ms", "infer_ms"})
"""Of a trained round: what has a place of its own in the line; the rest are scores and memory."""


def to_text(event: str, figures: Figures) -> str:
    """One line about ``event``; what is not known here is shown as it is."""
    line = _LINES.get(event)
    return _plain(figures) if line is None else line(figures)


def _moved(figures: Figures) -> str:
    fates = ("kept", "kept_in_part", "new", "dropped")
    counts = (f"{len(figures[fate])} {fate.replace('_', ' ')}" for fate in fates if figures[fate])
    return f"to bundle {figures['bundle'][:12]}: tensors: {', '.join(counts) or 'none is kept'}"


def _switched(figures: Figures) -> str:
    how = "back to" if figures["taken_back"] else "to"
    return f"{how} bundle {figures['bundle'][:12]}, from {figures['former'][:12]}"


def _joined(figures: Figures) -> str:
    return (
        f"federation '{figures['federation']}' as '{figures['device_id']}': "
        f"{figures['num_examples']} examples, bundle {figures['bundle'][:12]}"
    )


def _waiting(figures: Figures) -> str:
    others = figures["federations"]
    named = ", ".join(f"'{name}' ({phase})" for name, phase in others.items())
    hint = f"; on this broker there is {named}: is --federation right?" if others else ""
    return f"since {figures['since'][11:19]} for {figures['awaited']}{hint}"


def _held(figures: Figures) -> str:
    return f"takes no part for now: {figures['reason']}"


def _task(figures: Figures) -> str:
    return f"round {figures['round_id']}: {byte_text(figures['payload_bytes'])} to fetch"


def _trained(figures: Figures) -> str:
    scores = {name: value for name, value in figures.items() if name not in _ROUND}
    memory = scores.pop("peak_rss_bytes", 0)
    loss = figures["loss"]
    parts = [
        f"{figures['num_examples']} examples in {duration_text(figures['train_s'])}",
        *([] if loss is None else [f"loss {loss:.4g}"]),
        *(_plain({name: value}) for name, value in scores.items() if value is not None),
        *_timed("step", figures["train_step_ms"]),
        *_timed("window", figures["infer_ms"]),
        f"memory {byte_text(memory)}",
    ]
    return f"round {figures['round_id']}: {', '.join(parts)}"


def _timed(name: str, percentiles: Mapping[str, float]) -> list[str]:
    median = percentiles.get("p50")
    return [] if median is None else [f"{name} {ms_text(median)} ms"]


def _delivered(figures: Figures) -> str:
    return (
        f"round {figures['round_id']}: {byte_text(figures['update_bytes'])}; "
        f"in all {_traffic(figures)}"
    )


def _left(figures: Figures) -> str:
    end = "the federation has finished" if figures["finished"] else "the federation goes on"
    return f"{end}; in all {_traffic(figures)}"


def _traffic(figures: Figures) -> str:
    return f"{byte_text(figures['bytes_up'])} up, {byte_text(figures['bytes_down'])} down"


def _plain(figures: Figures) -> str:
    from protofleet.strategies.tasks import METRICS

    labels = {str(name): metric.label for name, metric in METRICS.items()}
    named = ((labels.get(key, key.replace("_", " ")), value) for key, value in figures.items())
    return ", ".join(f"{name} {_short(value)}" for name, value in named)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _in_use(figures: Figures) -> str:
    when = f"after round {figures['round_id']}" if figures["round_id"] else "before the first round"
    return f"{when}: {figures['text']}"


def _personalised(figures: Figures) -> str:
    return f"a head on {figures['examples']} examples, in {figures['store']}: {figures['text']}"


def _calibrating(figures: Figures) -> str:
    rates = figures["rates"]
    return f"trying {len(rates)} learning rates, from {rates[0]:g} to {rates[-1]:g}"


def _calibrated(figures: Figures) -> str:
    if not figures["ratios"]:
        return "no learning rates could be tried, or their outcome may not be told"
    _, rate = min(zip(figures["ratios"], figures["rates"], strict=True))
    taken = duration_text(figures["train_s"])
    return f"of {len(figures['rates'])} learning rates {rate:g} is best here ({taken} of training)"


_LINES: dict[str, Callable[[Figures], str]] = {
    "moved": _moved,
    "switched": _switched,
    "joined": _joined,
    "held": _held,
    "free": lambda _figures: "may take part again",
    "waiting": _waiting,
    "calibrating": _calibrating,
    "calibrated": _calibrated,
    "task": _task,
    "trained": _trained,
    "delivered": _delivered,
    "in_use": _in_use,
    "personalised": _personalised,
    "dropped": lambda figures: f"round {figures['round_id']}: {figures['reason']}",
    "finished": lambda figures: f"in round {figures['round_id']}; waiting for another run",
    "left": _left,
}
