"""Local (SOLO): every client trains alone; the federation only starts it and collects its scores.

No tensors travel in either direction. A round goes on where the last one ended, with the
optimiser's moments, so that R rounds of E epochs are R·E epochs.

| symbol | name | shape | dtype |
|---|---|---|---|
| w_i | ``params/<name>``, on the device only | the model's | float32 |
| | ``optimiser/<…>``, its moments, on the device only | | float32, int64 |

With ``keep_best`` a round ends with the epoch that had the best accuracy (without classes: RMSE or
macro-F1) on the client's own *test* part, the first of equals: what FedAli's comparison
(arXiv:2411.10595) calls Local does so over one round of 200 epochs. Chosen on the test part, its
scores flatter.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np

from protofleet.strategies.common import network_names, network_tensors
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.tasks import TASKS, LearningTask
from protofleet.strategies.training import LocalObjective, Trained, Trainer, Training, passes
from protofleet.strategies.types import (
    ALL_TASKS,
    TASK_LOSS,
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    ServerTools,
    Update,
    Updates,
    WireContents,
)
from protofleet.tensors import Model


class LocalSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training.

    Attributes:
        keep_best: a round ends with its best epoch on the client's own test part, not its last.
    """

    keep_best: bool = False


class Local(Strategy):
    """Every client for itself."""

    description = Description(
        name="local",
        paper="none: the baseline without federation, also called SOLO",
        objectives=(TASK_LOSS,),
        travels=WireContents(down=(), up=("number of examples",), personal=("the whole model",)),
        tasks=ALL_TASKS,
    )
    settings: LocalSettings

    def __init__(self, settings: LocalSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.carried = network_names(model)

    def server_init(self, _model: Model, _rng: np.random.Generator) -> ServerState:
        return ServerState(round_id=0, tensors={})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, objective = self.settings, LocalObjective(moments=state.tensors)
        trainer = Trainer(self.client_model(state), tools.training, settings, objective)
        if settings.keep_best:
            trained = _best_epoch(trainer, settings, tools, TASKS[self.model.task])
        else:
            trained = trainer.trained(passes(trainer.step, tools.training, settings))
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors={},
            evaluation=tools.evaluate(trained.network),
            loss=trained.loss,
        )
        kept = {**network_tensors(trained.network), **trained.moments()}
        return ClientState(round_id=payload.round_id, tensors=kept), update

    def aggregate(self, state: ServerState, _updates: Updates, _tools: ServerTools) -> ServerState:
        return ServerState(round_id=state.round_id + 1, tensors={})


def _best_epoch(
    trainer: Trainer, settings: LocalSettings, tools: ClientTools, task: LearningTask
) -> Trained:
    """Copies of the best epoch; of the last one where there is no test part."""
    one_epoch = msgspec.structs.replace(settings, epochs=1)
    best, highest = trainer.trained(math.nan), -math.inf
    for _ in range(settings.epochs):
        now = trainer.trained(passes(trainer.step, tools.training, one_epoch))
        scored = tools.statistics(now.network)
        score = highest if scored is None else task.quality(scored)
        if scored is None or score > highest:
            best, highest = _copied(now), score
    return best


def _copied(trained: Trained) -> Trained:
    moments = {name: value.copy() for name, value in trained.moments().items()}
    return replace(trained, network=trained.network.copy(), moments=lambda: moments)
