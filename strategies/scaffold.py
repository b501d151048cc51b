"""SCAFFOLD: control variates take the clients' drift out of their local steps.

Source: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning" (ICML 2020, arXiv:1910.06378v4), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| x, y_i | ``params/<name>`` | the model's | float32 |
| c, c_i; Δc_i | ``control/<name>``; up: ``control_change/<name>`` | the model's | float32 |
| η, η_g, N | ``optimiser.lr``, ``server.lr``, ``server.population`` | () | float, float, int |

Deviations:
    - y_i = x + Δy_i goes up in the place of Δy_i; as many bytes.
    - N is the number of clients that have ever taken part, unless ``server.population`` says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from protofleet.kernels import control_update, delta
from protofleet.strategies import averaging, fedavg
from protofleet.strategies.common import parse_settings
from protofleet.strategies.optimisers import Adam, Sgd, check_plain
from protofleet.strategies.training import Fit, mean_gradient, train
from protofleet.strategies.types import ClientState, ClientTools, Payload, Strategy, Travels, Update
from protofleet.tensors import Model, TensorMap

DESCRIPTION = replace(
    fedavg.DESCRIPTION,
    name="scaffold",
    paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, arXiv:1910.06378",
    travels=Travels(
        down=("parameters", "control variate"),
        up=("parameters", "change of the client's control variate", "number of examples"),
        personal=("control variate", "buffers of the model"),
    ),
)


class ScaffoldSettings(averaging.SharedTraining, frozen=True, kw_only=True):
    """Local training by plain SGD: of other steps (x - y_i) / (K η) is no gradient.

    Attributes:
        option: what c_i becomes: the gradient at x (``"I"``) or that of the steps (``"II"``).
        server: η_g, N and whether clients count alike.
    """

    optimiser: Adam | Sgd = Sgd()
    option: Literal["I", "II"] = "II"
    server: averaging.ServerStep = averaging.ServerStep()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plain(self.optimiser)


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """SCAFFOLD for one model; raises InputError for settings that it does not take."""
    chosen = parse_settings(DESCRIPTION.name, settings, ScaffoldSettings)
    control = averaging.Extra.beside(model, down="control/", up="control_change/")
    sharing = averaging.share_all(DESCRIPTION, chosen, model, (control,), chosen.server)
    return averaging.averaging(sharing, _client_update)


def _client_update(
    sharing: averaging.Sharing[Any], state: ClientState, payload: Payload, tools: ClientTools
) -> tuple[ClientState, Update]:
    settings, (control,) = sharing.settings, sharing.extras
    start = averaging.arrive(sharing.model, sharing.down, state, payload)
    start = averaging.begin(settings, start, tools)
    c, own = control.pick(payload.tensors).buffer, control.pick(state.tensors)
    fit = Fit(correction=TensorMap(start.params.layout, delta(c, own.buffer)))  # Line 10
    trained = train(start.params, start.buffers, tools, settings, fit)
    change = TensorMap.zeros(control.up)
    if settings.option == "I" and len(tools.y):
        gradient = mean_gradient(start.params, start.buffers, tools, settings)
        delta(gradient.buffer, own.buffer, out=change.buffer)
        own.buffer[...] = gradient.buffer
    elif trained.steps:
        ends, lr = (start.params.buffer, trained.params.buffer), settings.optimiser.lr
        control_update(own.buffer, c, *ends, steps=trained.steps, lr=lr, out=change.buffer)
    start = replace(start, kept={**start.kept, **own})
    return averaging.finish(start, trained, tools, sharing.shared, change)
