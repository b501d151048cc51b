"""SCAFFOLD: control variates take the clients' drift out of their local steps.

Source: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning" (ICML 2020, arXiv:1910.06378v4), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| x, y_i | ``params/<name>`` | the model's | float32 |
| c, c_i; Δc_i | ``control/<name>``; up: ``change/control/<name>`` | the model's | float32 |
| η, η_g, N | ``optimiser.lr``, ``server.lr``, ``server.population`` | () | float, float, int |

Deviations:
    - y_i goes up in the place of Δy_i, so that aggregation rules and codecs get parameters.
    - N is the number of clients that have ever taken part, unless ``server.population`` is more.
    - Option I leaves out ``weight_decay`` and ``clip_norm``. With ``local_init`` x is the mixture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from protofleet.errors import InputError
from protofleet.kernels import control_update
from protofleet.strategies.bounds import MOST_LR, Bounds, check_range
from protofleet.strategies.common import unpack
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.optimisers import Sgd
from protofleet.strategies.shared_model import (
    PopulationMean,
    ServerStep,
    SharedModel,
    SharedTraining,
    changed,
    finish_round,
    initialise,
)
from protofleet.strategies.training import LocalObjective, mean_gradient, refuse_rewritten, train
from protofleet.strategies.types import ClientState, ClientTools, Payload, Update, WireContents
from protofleet.tensors import Model, TensorMap

_CONTROL = "control/"


class ScaffoldServer(ServerStep, frozen=True, kw_only=True):
    """What the server does with the updates, and of how many clients c is the mean.

    Attributes:
        population: N; 0, or fewer than have ever taken part: those. Experiments say how many
            clients they have; a fleet does not know how many devices are still to come.
    """

    population: Annotated[int, Bounds(0)] = 0


class ScaffoldSettings(SharedTraining, frozen=True, kw_only=True):
    """Local training by plain SGD: of other steps (x - y_i) / (K η) is no gradient.

    Attributes:
        option: c_i becomes the gradient at x (``"I"``) or the mean one of the steps (``"II"``).
        server: η_g, N and whether clients count alike.
    """

    optimiser: Sgd = Sgd()
    option: Literal["I", "II"] = "II"
    server: ScaffoldServer = ScaffoldServer()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("optimiser.lr", self.optimiser.lr, low=1e-12, high=MOST_LR)
        check_range("optimiser.momentum", self.optimiser.momentum, low=0, high=0)
        if self.option == "I" and self.clip_norm is not None:
            raise InputError("setting 'clip_norm': option I clips no gradient; use option II")


class Scaffold(SharedModel):
    """Steps that are corrected by how clients drift apart."""

    description = replace(
        FedAvg.description,
        name="scaffold",
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, arXiv:1910.06378",
        travels=WireContents(
            down=("parameters", "control variate"),
            up=("parameters", "change of the client's control variate", "number of examples"),
            personal=("control variate", "buffers of the model"),
        ),
        combines="rule",
    )
    settings: ScaffoldSettings

    def __init__(self, settings: ScaffoldSettings, model: Model) -> None:
        refuse_rewritten(self.description.name, model)
        extra = PopulationMean.of_params(model, _CONTROL, settings.server.population)
        super().__init__(settings, model, extra=extra, server=settings.server)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, layout = self.settings, self.model.params.layout
        start = initialise(settings, self.receive(state, payload), tools)
        c, own = (unpack(tensors, _CONTROL, layout) for tensors in (payload.tensors, state.tensors))
        objective = LocalObjective(correction=TensorMap(layout, c.buffer - own.buffer))  # Line 10
        trained = train(start.network.copy(), tools.training, settings, objective)
        new = own.copy()  # Line 12
        if settings.option == "I" and tools.training.can_train:
            new = mean_gradient(start.network, tools.training, settings)
        elif trained.steps:
            x, y = start.network.params.buffer, trained.network.params.buffer
            control_update(
                new.buffer, c.buffer, x, y, steps=trained.steps, lr=settings.optimiser.lr
            )
        keep, send = changed(_CONTROL, own, new)
        return finish_round(start, trained, tools, self.shared, keep=keep, send=send)
