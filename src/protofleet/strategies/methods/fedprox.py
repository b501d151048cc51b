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

from dataclasses import replace

from protofleet.strategies.bounds import Weight
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.shared_model import ReceivedModel, SharedModel, SharedTraining
from protofleet.strategies.training import LocalObjective
from protofleet.strategies.types import ClientTools


class FedProxSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training and the strength of the pull.

    Attributes:
        mu: weight of half the squared distance to the received parameters.
    """

    mu: Weight = 0.01


class FedProx(SharedModel):
    """FedAvg with a pull to what was received."""

    description = replace(
        FedAvg.description,
        name="fedprox",
        paper="Li et al., Federated Optimization in Heterogeneous Networks, arXiv:1812.06127",
    )
    settings: FedProxSettings

    def objective(self, received: ReceivedModel, _tools: ClientTools) -> LocalObjective:
        """Eq. 2: half the squared distance to what was received, which training will change."""
        return LocalObjective(proximal=(self.settings.mu, received.network.params.copy()))
