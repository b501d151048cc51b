"""FedRep: a client fits its head to the received body, then the body to its head; bodies average.

Source: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning" (arXiv:2102.07078), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| φ | ``params/<name>`` without the head | the model's | float32 |
| h_i | ``params/<head…>``, on the device only | the model's | float32 |
| τ | ``head_epochs``, in epochs | () | int |

Deviations:
    - Bodies are averaged by number of examples; the paper's clients have equally many.
    - The head makes epochs as in the authors' experiments, not single gradient steps.
    - A client's head starts as the bundle's.
    - Default optimiser and buffers as in ``fedavg.py``; both phases use the same, each from fresh
      moments.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from protofleet.strategies.bounds import Passes
from protofleet.strategies.common import PARAMS, shared_layout
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.optimisers import Group
from protofleet.strategies.shared_model import SharedModel, SharedTraining, finish_round, initialise
from protofleet.strategies.training import LocalObjective, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Payload,
    Update,
    WireContents,
)
from protofleet.tensors import Model


class FedRepSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training in two phases.

    Attributes:
        head: parameters whose names start so stay on the device; None: those that the bundle
            calls its head.
        head_epochs: passes over the examples that move the head alone, before ``epochs`` passes
            that move the body alone.
    """

    epochs: int = 1
    head: str | None = None
    head_epochs: Passes = 10


class FedRep(SharedModel):
    """Head and body in turn; the body is shared."""

    description = replace(
        FedAvg.description,
        name="fedrep",
        paper="Collins et al., Exploiting Shared Representations for Personalized Federated "
        "Learning, arXiv:2102.07078",
        travels=WireContents(
            down=("body",),
            up=("body", "number of examples"),
            personal=("head", "buffers of the model"),
        ),
        partial_work=False,
    )
    settings: FedRepSettings

    def __init__(self, settings: FedRepSettings, model: Model) -> None:
        super().__init__(settings, model, shared=shared_layout(model, settings.head))

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings = self.settings
        start = initialise(settings, self.receive(state, payload), tools)
        body = {name.removeprefix(PARAMS) for name in self.shared.shapes}
        head = start.network.params.keys() - body
        head_training = msgspec.structs.replace(settings, epochs=settings.head_epochs)
        fitted = train(
            start.network,
            tools.training,
            head_training,
            LocalObjective(groups=[Group(names=head, optimiser=settings.optimiser)]),
        )
        trained = train(
            fitted.network,
            tools.training,
            settings,
            LocalObjective(groups=[Group(names=body, optimiser=settings.optimiser)]),
        )
        return finish_round(start, trained, tools, self.shared)
