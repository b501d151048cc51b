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
from dataclasses import replace
from typing import Any

from protofleet.strategies.averaging import AveragingContext, InitialModel, SharedTraining
from protofleet.strategies.bounds import Weight
from protofleet.strategies.common import parse_settings
from protofleet.strategies.methods import fedavg
from protofleet.strategies.training import Fit
from protofleet.strategies.types import ClientTools, Strategy
from protofleet.tensors import Model

DESCRIPTION = replace(
    fedavg.DESCRIPTION,
    name="fedprox",
    paper="Li et al., Federated Optimization in Heterogeneous Networks, arXiv:1812.06127",
)


class FedProxSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training and the strength of the pull.

    Attributes:
        mu: weight of half the squared distance to the received parameters.
    """

    mu: Weight = 0.01


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedProx for one model.

    Raises:
        InputError: unknown setting, wrong type or a value outside its range.
    """
    chosen = parse_settings(DESCRIPTION.name, settings, FedProxSettings)
    return fedavg.with_term(DESCRIPTION, chosen, model, _proximal)


def _proximal(
    context: AveragingContext[FedProxSettings], received: InitialModel, _tools: ClientTools
) -> Fit:
    """Eq. 2: half the squared distance to what was received, which training will change."""
    return Fit(proximal=(context.settings.mu, received.network.params.copy()))
