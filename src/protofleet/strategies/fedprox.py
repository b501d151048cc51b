"""FedProx: FedAvg with a term that holds local training near the received model.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks" (arXiv:1812.06127), algorithm 2.

| symbol | name | shape | dtype |
|---|---|---|---|
| w^t, w_k^{t+1} | ``params/<name>`` | the model's | float32 |
| μ | ``mu`` | () | float |
| n_k | ``num_examples`` | () | int |

Deviations:
    - Clients are averaged by their number of examples; the paper draws them with that probability
      and averages plainly.
    - The subproblem is solved by a fixed number of epochs instead of to a given inexactness.
    - With ``local_init`` training starts from the mixture, and the term still pulls to what was
      received.
    - Default optimiser and buffers as in ``fedavg.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofleet.strategies.averaging import (
    AveragingContext,
    SharedTraining,
    averaging,
    finish_round,
    initialise,
    receive,
    share_all,
)
from protofleet.strategies.common import parse_settings
from protofleet.strategies.optimisers import check_range
from protofleet.strategies.training import Fit, train
from protofleet.strategies.types import (
    ALL_TASKS,
    TASK_LOSS,
    ClientState,
    ClientTools,
    Description,
    Payload,
    Strategy,
    Travels,
    Update,
)
from protofleet.tensors import Model

DESCRIPTION = Description(
    name="fedprox",
    paper="Li et al., Federated Optimization in Heterogeneous Networks, arXiv:1812.06127",
    programs=(TASK_LOSS,),
    travels=Travels(
        down=("parameters",),
        up=("parameters", "number of examples"),
        personal=("buffers of the model",),
    ),
    tasks=ALL_TASKS,
    takes_aggregator=True,
    partial_work=True,
    weighted_mean=True,
)


class FedProxSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training and the strength of the pull.

    Attributes:
        mu: weight of half the squared distance to the received parameters.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mu", self.mu, low=0)


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedProx for one model.

    Raises:
        InputError: unknown setting, wrong type or a value outside its range.
    """
    chosen = parse_settings(DESCRIPTION.name, settings, FedProxSettings)
    return averaging(share_all(DESCRIPTION, chosen, model), _client_update)


def _client_update(
    context: AveragingContext[FedProxSettings],
    state: ClientState,
    payload: Payload,
    tools: ClientTools,
) -> tuple[ClientState, Update]:
    settings = context.settings
    received = receive(context, state, payload)
    start = initialise(settings, received, tools)
    fit = Fit(proximal=(settings.mu, received.network.params))  # Eq. 2
    trained = train(start.network.copy(), tools.training, settings, fit)
    return finish_round(start, trained, tools, context.shared)
