"""FedAvg: every client trains the same model, the server averages by number of examples.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data" (arXiv:1602.05629), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| w_t, w^k | ``params/<name>`` | the model's | float32 |
| n_k | ``num_examples`` | () | int |
| E, B, η | ``epochs``, ``batch_size``, ``optimiser.lr`` | () | int, int, float |

Deviations:
    - The default optimiser is Adam; ``optimiser = {kind = "sgd"}`` is the original.
    - Buffers of the model (batch-norm statistics, prototypes) do not travel: each device keeps
      its own, and the server's model has those of the bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from protofleet.strategies.averaging import (
    AveragingContext,
    InitialModel,
    SharedTraining,
    averaging,
    finish_round,
    initialise,
    receive,
    share_all,
)
from protofleet.strategies.common import parse_settings
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
    name="fedavg",
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized "
    "Data, arXiv:1602.05629",
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


Term = Callable[[AveragingContext[Any], InitialModel, ClientTools], Fit]
"""From what a client has received: how its steps differ from FedAvg's."""


class FedAvgSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of FedAvg: those of local training alone."""


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedAvg for one model.

    Raises:
        InputError: unknown setting, wrong type or a value outside its range.
    """
    return build_as(DESCRIPTION, settings, model)


def build_as(description: Description, settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedAvg under another description.

    Raises:
        InputError: as in ``build``.
    """
    chosen = parse_settings(description.name, settings, FedAvgSettings)
    return averaging(share_all(description, chosen, model), client_update)


def with_term(
    description: Description, settings: SharedTraining, model: Model, term: Term
) -> Strategy:
    """FedAvg whose clients minimise more than the task's loss.

    Args:
        description: most often ``replace(fedavg.DESCRIPTION, name=…, paper=…)``.
        settings: parsed.
        model: the bundle's.
        term: what is different about a step.
    """
    return averaging(share_all(description, settings, model), partial(client_update, term=term))


def client_update(
    context: AveragingContext[Any],
    state: ClientState,
    payload: Payload,
    tools: ClientTools,
    *,
    term: Term = lambda *_: Fit(),
) -> tuple[ClientState, Update]:
    """Train what was received, with the task's loss and a term of the method's."""
    settings, received = context.settings, receive(context, state, payload)
    fit = term(context, received, tools)
    start = initialise(settings, received, tools, fit)
    trained = train(start.network, tools.training, settings, fit)
    return finish_round(start, trained, tools, context.shared)
