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


METHODS: dict[str, DemoMethod] = {
    "local": DemoMethod(label="Local", network="plain"),
    "fedavg": DemoMethod(label="FedAvg", network="plain"),
    "fedali": DemoMethod(label="FedAli", network="aligned"),
}
"""By strategy."""

EXPORTED_FOR: dict[Network, str] = {"aligned": "fedali", "plain": "fedavg"}
"""The strategy that a network's bundle names; its programs serve every method of the network."""

NETWORKS: dict[Network, str] = {
    "aligned": "the model with alignment layers",
    "plain": "the model without alignment layers",
}
"""In words."""
