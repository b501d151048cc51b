"""pFedMe: personal models near a shared one, which follows them down its Moreau envelope.

Source: Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes" (NeurIPS
2020, arXiv:2006.08848), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| w_t, w_{i,R} | ``params/<name>`` of payload and update | the model's | float32 |
| θ_i | ``params/<name>`` of the client's state | the model's | float32 |
| w_{i,R} as kept | ``shared/params/<name>``, for ``local_init`` | the model's | float32 |
| λ, η, β | ``lam``, ``local_lr``, ``server.lr`` | () | float |
| K | ``inner_steps`` | () | int |

A local round r takes a batch: K steps of the optimiser on f_i(θ) + λ/2 |θ - w|², from the θ of the
local round before, and w ← w - ηλ(w - θ). w is sent up, θ stays, is scored, and is what the device
infers with; ``shared`` among a round's scores is the received model's on the own test part.

Deviations:
    - R is the number of batches in ``epochs`` passes; in a federation's round θ begins at w, as in
      the authors' code.
    - Only the round's participants train; in the paper all clients do and some are averaged.
    - θ is approached by K steps, not to a given accuracy.
    - By default λ = 1 and η = 0.5: the printed 15 and 0.005 move w by 0.075 of its distance to θ
      for each batch, and ten rounds leave it where it was.
    - Buffers are those of the passes with θ: no pass is made with w.
    - With ``local_init`` the client's own w of its last round is mixed with the received one, and
      both θ and w begin as the mixture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from protofleet.strategies.bounds import LearningRate, Passes, Weight
from protofleet.strategies.common import scored
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.optimisers import Adam, Sgd
from protofleet.strategies.shared_model import (
    ServerStep,
    SharedModel,
    SharedTraining,
    finish_round,
    keep_both,
    local_init,
    scored_early,
    shared_state,
)
from protofleet.strategies.training import (
    ExampleRows,
    LocalObjective,
    Trainer,
    passes,
    refuse_rewritten,
)
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Evaluation,
    Payload,
    Update,
    WireContents,
)
from protofleet.tensors import Model, Network


class PFedMeSettings(SharedTraining, frozen=True, kw_only=True):
    """Local training of the personal model and of the shared one behind it.

    Attributes:
        optimiser: of the personal model.
        lam: λ, weight of half the squared distance between the two.
        local_lr: η, rate at which the shared one follows, times λ.
        inner_steps: K, steps of the personal one on a batch.
        server: β, and whether clients count alike.
    """

    optimiser: Adam | Sgd = Sgd()
    lam: Weight = 1.0
    local_lr: LearningRate = 0.5
    inner_steps: Passes = 5
    server: ServerStep = ServerStep()


class PFedMe(SharedModel):
    """Each client's own model, and the point between all of them."""

    description = replace(
        FedAvg.description,
        name="pfedme",
        paper="Dinh et al., Personalized Federated Learning with Moreau Envelopes, "
        "arXiv:2006.08848",
        travels=WireContents(
            down=("parameters",),
            up=("parameters", "number of examples"),
            personal=("personal model", "buffers of the model"),
        ),
        partial_work=False,
    )
    settings: PFedMeSettings

    def __init__(self, settings: PFedMeSettings, model: Model) -> None:
        refuse_rewritten(self.description.name, model)
        super().__init__(settings, model, server=settings.server)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings = self.settings
        received = self.receive(shared_state(state), payload)
        shared = tools.statistics(received.network)
        start = local_init(settings, received, tools)
        early = None
        if scored_early(settings, payload):
            early = tools.evaluate(self.client_model(state))
        w = start.network.params.copy()
        trainer = Trainer(
            start.network, tools.training, settings, LocalObjective(proximal=(settings.lam, w))
        )
        rate = np.float32(settings.local_lr * settings.lam)

        def local_round(rows: ExampleRows) -> float:
            losses = [
                trainer.step(rows) for _ in range(settings.inner_steps)
            ]  # f_i(θ) + λ/2 |θ - w|²
            w.buffer[...] -= rate * (w.buffer - trainer.network.params.buffer)  # w ← w - ηλ(w - θ)
            return losses[0]

        own = trainer.trained(passes(local_round, tools.training, settings))
        evaluation = scored(early, own.network, tools)
        start = replace(start, evaluation=_with_shared(evaluation, shared))
        trained = replace(own, network=Network(params=w, buffers=own.network.buffers))
        kept, update = finish_round(start, trained, tools, self.shared)
        return keep_both(settings, own.network, kept), update


def _with_shared(evaluation: Evaluation, shared: Any) -> Evaluation:
    """The personal model's scores with those of the received one beside them."""
    if shared is None:
        return evaluation
    return replace(evaluation, more={**evaluation.more, "shared": shared})
