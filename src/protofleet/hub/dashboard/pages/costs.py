"""*Bytes and cost*: what rounds and devices sent, received, and took of their machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protofleet.hub.dashboard.pages import PageRequest, chart
from protofleet.hub.dashboard.records import DeviceView
from protofleet.units import unit_of
from protofleet.wire.mqtt.usage import FIGURES, UsageFigure

_ROWS = 20
_Cost = tuple[str, str, Callable[[DeviceView], float | None]]


def _usage_cost(figure: UsageFigure) -> _Cost:
    in_bytes = figure.shown.unit == "bytes"

    def cost(one: DeviceView) -> float | None:
        value = figure.counted(one.usage)
        return value / 1e6 if in_bytes and value is not None else value

    return figure.shown.label, "MB" if in_bytes else figure.shown.unit, cost


_COSTS: tuple[_Cost, ...] = (
    ("Training step", "ms", lambda one: one.train_step_ms),
    ("Inference", "ms", lambda one: one.infer_ms),
    ("Training of a round", "s", lambda one: one.phases_s.get("train")),
    ("Receiving of a round", "s", lambda one: one.phases_s.get("receive")),
    *(_usage_cost(one) for one in FIGURES if one.shown.merge != "counter"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """How a cost is spread over so many devices: its median, 95th percentile, and largest."""

    name: str
    unit: str
    count: int
    median: float
    most: float
    largest: float
    device_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsView:
    """Attributes: totals in bytes, bytes by round as a chart, spreads, and who paid most."""

    up: int
    down: int
    per_round: float
    joining: int
    by_round: str
    unit: str
    costs: tuple[CostRow, ...]
    largest: tuple[DeviceView, ...]
    figures: tuple[UsageFigure, ...] = FIGURES


def view(asked: PageRequest) -> CostsView:
    """The page's content."""
    run = asked.run
    devices = run.devices.values()
    rounds = run.committed
    up, down = (sum(_bytes(one)[way] for one in devices) for way in (0, 1))
    unit, size = unit_of(max((max(one.bytes_up, one.bytes_down) for one in rounds), default=0))
    paid = [one.bytes_up + one.bytes_down for one in rounds]
    drawn = chart(
        "Round",
        [one.round_id for one in rounds],
        {
            "to devices": [round(one.bytes_down / size, 3) for one in rounds],
            "from devices": [round(one.bytes_up / size, 3) for one in rounds],
        },
    )
    return CostsView(
        up=up,
        down=down,
        per_round=sum(paid) / max(1, len(paid)),
        joining=sum(run.joining),
        by_round=drawn,
        unit=unit,
        costs=tuple(row for cost in _COSTS if (row := _row(*cost, [*devices])) is not None),
        largest=tuple(sorted(devices, key=lambda one: -sum(_bytes(one)))[:_ROWS]),
    )


def _bytes(one: DeviceView) -> tuple[int, int]:
    return one.usage.bytes_up, one.usage.bytes_down


def _row(
    name: str,
    unit: str,
    cost: Callable[[DeviceView], float | None],
    devices: list[DeviceView],
) -> CostRow | None:
    found = [(value, one.device_id) for one in devices if (value := cost(one)) is not None]
    if not found:
        return None
    values = [value for value, _ in found]
    middle, most = np.percentile(values, (50, 95))
    largest, device_id = max(found)
    return CostRow(
        name=name,
        unit=unit,
        count=len(found),
        median=float(middle),
        most=float(most),
        largest=largest,
        device_id=device_id,
    )
