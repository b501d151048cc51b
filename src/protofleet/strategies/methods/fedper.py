"""FedPer: the head stays on the device, the body is averaged; both train together.

Source: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers"
(arXiv:1912.00818), algorithms 1 and 2.

| symbol | name | shape | dtype |
|---|---|---|---|
| W_B | ``params/<name>`` without the head | the model's | float32 |
| W_P | ``params/<head…>``, on the device only | the model's | float32 |
| gamma_j | ``num_examples`` over their sum | () | int |

Deviations:
    - A client's head starts as the bundle's, the same for all; in the paper each draws its own.
    - Default optimiser and buffers as in ``fedavg.py``.
"""

from __future__ import annotations

from dataclasses import replace

from protofleet.strategies.common import shared_layout
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.shared_model import SharedModel, SharedTraining
from protofleet.strategies.types import WireContents
from protofleet.tensors import Model


class FedPerSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training and what is personal.

    Attributes:
        head: parameters whose names start so stay on the device; None: those that the bundle
            calls its head.
    """

    head: str | None = None


class FedPer(SharedModel):
    """FedAvg of all but the head."""

    description = replace(
        FedAvg.description,
        name="fedper",
        paper="Arivazhagan et al., Federated Learning with Personalization Layers, "
        "arXiv:1912.00818",
        travels=WireContents(
            down=("body",),
            up=("body", "number of examples"),
            personal=("head", "buffers of the model"),
        ),
    )
    settings: FedPerSettings

    def __init__(self, settings: FedPerSettings, model: Model) -> None:
        super().__init__(settings, model, shared=shared_layout(model, settings.head))
