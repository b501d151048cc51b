"""Ditto: beside the shared model a client has its own, held near the received one.

Source: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization"
(arXiv:2012.04221), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| w^t, w_k^t | ``params/<name>`` of payload and update | the model's | float32 |
| v_k | ``params/<name>`` of the client's state | the model's | float32 |
| w_k^t as kept | ``shared/params/<name>``, for ``local_init`` | the model's | float32 |
| λ | ``lam`` | () | float |

A round: w goes down; the client trains a copy of it on its examples, as FedAvg, and sends that up;
then it trains v_k with λ(v_k - w) added to the gradient. v_k never leaves the device and is what is
scored. Both models have buffers of their own.

Deviations:
    - The shared models are averaged by number of examples; the paper leaves the rule open.
    - With ``local_init`` the client's own shared model of its last round is mixed with w, and the
      mixture takes the place of w in both trainings, as in PFLlib.
    - v_k starts as the bundle's model.
    - Default optimiser as in ``fedavg.py``; both trainings use the same.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from protofleet.strategies.bounds import Passes, Weight
from protofleet.strategies.common import network_names, scored
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.shared_model import (
    SharedModel,
    SharedTraining,
    finish_round,
    keep_both,
    local_init,
    scored_early,
    shared_state,
)
from protofleet.strategies.training import LocalObjective, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Payload,
    Update,
    WireContents,
)
from protofleet.tensors import Model


class DittoSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training of both models.

    Attributes:
        lam: weight of half the squared distance between the personal and the received model.
        personal_epochs: passes over the examples that train the personal model.
    """

    lam: Weight = 1.0
    personal_epochs: Passes = 5


class Ditto(SharedModel):
    """Two models: one that is averaged, one of the client's own near it."""

    description = replace(
        FedAvg.description,
        name="ditto",
        paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, "
        "arXiv:2012.04221",
        travels=WireContents(
            down=("parameters",),
            up=("parameters", "number of examples"),
            personal=("personal model", "buffers of both models"),
        ),
    )
    settings: DittoSettings

    def __init__(self, settings: DittoSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.carried = network_names(model)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings = self.settings
        received = self.receive(shared_state(state), payload)
        start = local_init(settings, received, tools)
        personal = self.client_model(state)
        early = tools.evaluate(personal) if scored_early(settings, payload) else None
        trained = train(start.network.copy(), tools.training, settings)
        training = msgspec.structs.replace(settings, epochs=settings.personal_epochs)
        # Algorithm 1: ∇F_k(v_k) + λ(v_k - w^t)
        objective = LocalObjective(proximal=(settings.lam, start.network.params))
        own = train(personal, tools.training, training, objective)
        start = replace(start, evaluation=scored(early, own.network, tools))
        kept, update = finish_round(start, trained, tools, self.shared)
        return keep_both(settings, own.network, kept), update
