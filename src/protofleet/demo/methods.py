"""The methods that a demonstration shows beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Network = Literal["aligned", "plain"]
"""The demonstration's model, with FedAli's alignment layers and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoMethod:
    """A row of the table.

    Attributes:
        label: its name.
        network: what it trains.
    """

    label: str
    network: Network


_LABELS = {"local": "Local", "fedavg": "FedAvg", "ditto": "Ditto"}
"""Of the methods that are always shown, by strategy."""
_ALIGNED = {"fedali": "FedAli"}


def methods_of(strategy: str) -> dict[str, DemoMethod]:
    """What is shown where the fleet runs ``strategy``, by strategy; that one last."""
    shown = {name: label for name, label in _LABELS.items() if name != strategy}
    shown[strategy] = {**_LABELS, **_ALIGNED}.get(strategy, strategy)
    return {
        name: DemoMethod(label=label, network=network_of(name)) for name, label in shown.items()
    }


def is_shown(strategy: str) -> bool:
    """Whether the demonstration knows how a strategy trains well on its data."""
    return strategy in {**_LABELS, **_ALIGNED}


def network_of(strategy: str) -> Network:
    """What a strategy trains."""
    return "aligned" if strategy in _ALIGNED else "plain"


NETWORKS: dict[Network, str] = {
    "aligned": "the model with alignment layers",
    "plain": "the model without alignment layers",
}
"""In words."""
