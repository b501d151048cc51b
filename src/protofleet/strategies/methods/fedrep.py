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

from collections.abc import Mapping
from typing import Any

import msgspec

from protofleet.strategies.averaging import (
    AveragingContext,
    SharedTraining,
    averaging,
    finish_round,
    initialise,
    receive,
)
from protofleet.strategies.bounds import Passes
from protofleet.strategies.common import PARAMS, parse_settings, shared_layout
from protofleet.strategies.optimisers import Group
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
    name="fedrep",
    paper="Collins et al., Exploiting Shared Representations for Personalized Federated Learning, "
    "arXiv:2102.07078",
    programs=(TASK_LOSS,),
    travels=Travels(
        down=("body",),
        up=("body", "number of examples"),
        personal=("head", "buffers of the model"),
    ),
    tasks=ALL_TASKS,
    takes_aggregator=True,
    weighted_mean=True,
)


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


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedRep for one model.

    Raises:
        InputError: unknown setting, wrong type, a value outside its range, or a head that is all of
            the model or nothing of it.
    """
    chosen = parse_settings(DESCRIPTION.name, settings, FedRepSettings)
    context = AveragingContext(
        description=DESCRIPTION,
        settings=chosen,
        model=model,
        shared=shared_layout(model, chosen.head),
    )
    return averaging(context, _client_update)


def _client_update(
    context: AveragingContext[FedRepSettings],
    state: ClientState,
    payload: Payload,
    tools: ClientTools,
) -> tuple[ClientState, Update]:
    settings = context.settings
    start = initialise(settings, receive(context, state, payload), tools)
    body = {name.removeprefix(PARAMS) for name in context.shared.shapes}
    head = start.network.params.keys() - body
    head_training = msgspec.structs.replace(settings, epochs=settings.head_epochs)
    fitted = train(
        start.network,
        tools.training,
        head_training,
        Fit(groups=[Group(names=head, optimiser=settings.optimiser)]),
    )
    trained = train(
        fitted.network,
        tools.training,
        settings,
        Fit(groups=[Group(names=body, optimiser=settings.optimiser)]),
    )
    return finish_round(start, trained, tools, context.shared)
