"""FedPHP: a private model inherits what each round teaches, and teaches the next one.

Source: Li, Zhan, Shao, Li and Song, "FedPHP: Federated Personalization with Inherited Private
Models" (ECML PKDD 2021).

| symbol | name | shape | dtype |
|---|---|---|---|
| w, w_i | ``params/<name>`` of payload and update | the model's | float32 |
| w_p | ``params/<name>`` of the client's state | the model's | float32 |
| w_i as kept | ``shared/params/<name>``, for ``local_init`` | the model's | float32 |
| Q_i, Q | ``inherited`` of the client's state, ``participations`` | () | int64, int |
| μ, λ | ``mu``, ``lam`` | () | float |

A round: w goes down; the client trains a copy of it, w_i, on (1 - λ) times the cross-entropy plus λ
times the transfer from its personal model w_p, and sends w_i up; the server averages as FedAvg.
Then w_p becomes μ_t w_p + (1 - μ_t) w_i with μ_t = μ Q_i / Q, where Q_i counts the client's earlier
rounds: the longer a client has taken part, the less a single round changes its model. w_p never
leaves the device and is what is scored. The transfer is the squared maximum mean discrepancy of the
two models' features of a batch, or the divergence of w_i's predictions from those of w_p. What w_p
gives for the client's examples is computed once a round.

Deviations:
    - In a client's first round there is no w_p: it trains on the cross-entropy alone, and w_p
      becomes w_i.
    - From Q earlier rounds on μ_t is μ.
    - Buffers of the model are inherited as parameters are.
    - The discrepancy is summed over four Gaussian kernels, with PFLlib's bandwidths.
    - With ``local_init`` the client's own shared model of its last round is mixed with w.
    - Clients count by examples; default optimiser as in ``fedavg.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.bounds import Count, Share
from protofleet.strategies.common import network_names, scored
from protofleet.strategies.prototypes import feature_width
from protofleet.strategies.shared_model import (
    SharedModel,
    SharedTraining,
    finish_round,
    keep_both,
    local_init,
    scored_early,
    shared_state,
)
from protofleet.strategies.training import ExampleRows, LocalObjective, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    Update,
    WireContents,
)
from protofleet.tensors import Model, Network

_INHERITED = "inherited"
_OBJECTIVE = "fedphp"


class FedPhpSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, what it learns from the personal model, and how that one changes.

    Attributes:
        mu: μ: share of the personal model that stays in the end.
        participations: Q: earlier rounds of a client after which so much stays.
        lam: λ: weight of the transfer; the cross-entropy has the rest.
        transfer: ``mmd``: of features; ``kl``: of predictions.
    """

    mu: Share = 0.9
    participations: Count = 100
    lam: Share = 0.1
    transfer: Literal["mmd", "kl"] = "mmd"


class FedPhp(SharedModel):
    """A personal model that inherits from every round's, and teaches the next."""

    description = Description(
        name="fedphp",
        paper="Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML "
        "PKDD 2021",
        objectives=(_OBJECTIVE,),
        travels=WireContents(
            down=("parameters",),
            up=("parameters", "number of examples"),
            personal=("personal model", "number of own rounds", "buffers of both models"),
        ),
        reads_features=True,
        combines="mean",
    )
    settings: FedPhpSettings

    def __init__(self, settings: FedPhpSettings, model: Model) -> None:
        super().__init__(settings, model)
        feature_width(model)
        self.carried = network_names(model) | {_INHERITED}

    def client_init(self, model: Model) -> ClientState:
        fresh = super().client_init(model)
        return replace(fresh, tensors={**fresh.tensors, _INHERITED: np.array(0, np.int64)})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, count = self.settings, int(state.tensors[_INHERITED])
        personal = self.client_model(state)
        early = tools.evaluate(personal) if scored_early(settings, payload) else None
        objective = self._transfer(personal, count, tools)
        start = local_init(settings, self.receive(shared_state(state), payload), tools, objective)
        trained = train(start.network, tools.training, settings, objective)
        if trained.steps:
            kept = settings.mu * min(count / settings.participations, 1.0)  # μ_t
            _inherit(personal, trained.network, kept)
            count += 1
        start = replace(start, evaluation=scored(early, personal, tools))
        shared, update = finish_round(start, trained, tools, self.shared)
        after = keep_both(settings, personal, shared)
        tensors: dict[str, NDArray[Any]] = {**after.tensors, _INHERITED: np.array(count, np.int64)}
        return replace(after, tensors=tensors), update

    def _transfer(self, personal: Network, count: int, tools: ClientTools) -> LocalObjective:
        """What the personal model gives for every example, and what it weighs."""
        settings, x = self.settings, tools.training.x
        if not len(tools.training.y):
            return LocalObjective(loss=_OBJECTIVE)
        lam = settings.lam if count else 0.0
        teacher = np.zeros((len(x), self.model.features), np.float32)
        outputs = np.zeros((len(x), self.model.num_classes), np.float32)
        if lam and settings.transfer == "mmd":
            teacher = tools.features(personal, x)
        elif lam:
            outputs = tools.predict(personal, x)
        weights = {"mmd": 0.0, "kl": 0.0, settings.transfer: lam, "local": 1 - lam}
        scalars = {name: np.float32(weight) for name, weight in weights.items()}

        def inputs(rows: ExampleRows) -> Mapping[str, Any]:
            return {"teacher": teacher[rows], "teacher_outputs": outputs[rows], **scalars}

        return LocalObjective(loss=_OBJECTIVE, inputs=inputs)


def _inherit(personal: Network, trained: Network, kept: float) -> None:
    """Move the personal model, in place, to ``kept`` of itself and the rest of the trained one."""
    pairs = ((personal.params, trained.params), (personal.buffers, trained.buffers))
    for own, new in pairs:
        own.buffer[...] = new.buffer + np.float32(kept) * (own.buffer - new.buffer)
