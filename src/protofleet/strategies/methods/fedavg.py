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

from protofleet.strategies.shared_model import SharedModel, SharedTraining
from protofleet.strategies.types import ALL_TASKS, TASK_LOSS, Description, WireContents


class FedAvgSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of FedAvg: those of local training alone."""


class FedAvg(SharedModel):
    """What every method is that shares a model and says nothing else."""

    description = Description(
        name="fedavg",
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data, arXiv:1602.05629",
        objectives=(TASK_LOSS,),
        travels=WireContents(
            down=("parameters",),
            up=("parameters", "number of examples"),
            personal=("buffers of the model",),
        ),
        tasks=ALL_TASKS,
        partial_work=True,
        combines="mean",
    )
    settings: FedAvgSettings
