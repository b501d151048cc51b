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

from collections.abc import Mapping
from typing import Any

from protofleet.strategies.averaging import AveragingContext, SharedTraining, averaging
from protofleet.strategies.common import parse_settings, shared_layout
from protofleet.strategies.methods.fedavg import client_update
from protofleet.strategies.types import ALL_TASKS, TASK_LOSS, Description, Strategy, Travels
from protofleet.tensors import Model

DESCRIPTION = Description(
    name="fedper",
    paper="Arivazhagan et al., Federated Learning with Personalization Layers, arXiv:1912.00818",
    programs=(TASK_LOSS,),
    travels=Travels(
        down=("body",),
        up=("body", "number of examples"),
        personal=("head", "buffers of the model"),
    ),
    tasks=ALL_TASKS,
    takes_aggregator=True,
    partial_work=True,
    weighted_mean=True,
)


class FedPerSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training and what is personal.

    Attributes:
        head: parameters whose names start so stay on the device; None: those that the bundle
            calls its head.
    """

    head: str | None = None


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedPer for one model.

    Raises:
        InputError: unknown setting, wrong type, a value outside its range, or a head that is all of
            the model or nothing of it.
    """
    chosen = parse_settings(DESCRIPTION.name, settings, FedPerSettings)
    context = AveragingContext(
        description=DESCRIPTION,
        settings=chosen,
        model=model,
        shared=shared_layout(model, chosen.head),
    )
    return averaging(context, client_update)
