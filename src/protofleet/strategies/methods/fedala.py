"""FedALA: a client learns, entry by entry, how much of the global model it starts from.

Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for Personalized
Federated Learning", AAAI 2023 (arXiv:2212.01197), algorithm 1, and the authors' published code
(TsingZ0/FedALA, PFLlib). Adaptive local aggregation itself is ``ala.py``.

| symbol | name | shape | dtype |
|---|---|---|---|
| Θ^{t-1}, Θ_i^t | ``params/<name>`` | the model's | float32 |
| Θ̂_i^t | the evaluated model | the model's | float32 |
| W_i^p | ``ala/<name>``, on the device only | the upper tensors' | float32 |
| k_i | ``num_examples`` | () | int |

A round: Θ goes down; the client mixes it with its own model into Θ̂, is scored with that, trains it
and sends the outcome up; the server averages by examples.

Deviations:
    - Those of ``ala.py``.
    - Local aggregation is skipped in round 1 and where the received model equals the client's own
      in every tensor; the authors' code looks at the sum of the first tensor's differences.
    - Only clients of the cohort get the model and mix; in the authors' code all do.
    - Local training is by default the other strategies'. The paper has one epoch of batches of 10
      without the last partial one, SGD at 0.005 (convolutions) or 0.1 (ResNet-18, fastText), which
      ten rounds of a few hundred examples hardly move.
    - The whole test part is scored.
    - Between rounds a device infers with its trained model; Θ̂ is what is scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from protofleet.strategies.ala import Ala
from protofleet.strategies.averaging import SharedTraining, averaging, share_all
from protofleet.strategies.common import parse_settings
from protofleet.strategies.methods.fedavg import client_update
from protofleet.strategies.types import ALL_TASKS, TASK_LOSS, Description, Strategy, Travels
from protofleet.tensors import Model

DESCRIPTION = Description(
    name="fedala",
    paper="Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, "
    "arXiv:2212.01197",
    programs=(TASK_LOSS,),
    travels=Travels(
        down=("parameters",),
        up=("parameters", "number of examples"),
        personal=("mixing weights", "buffers of the model"),
    ),
    tasks=ALL_TASKS,
    takes_aggregator=True,
    partial_work=True,
    weighted_mean=True,
    published={"kind": "sgd", "lr": 0.005},
)


class FedAlaSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adaptive local aggregation before local training.

    Attributes:
        local_init: adaptive local aggregation; it cannot be left out.
    """

    local_init: Ala = Ala()
    score_at: Literal["start", "end"] = "start"


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedALA for one model.

    Raises:
        InputError: unknown setting, wrong type or a value outside its range.
    """
    chosen = parse_settings(DESCRIPTION.name, settings, FedAlaSettings)
    return averaging(share_all(DESCRIPTION, chosen, model), client_update)
