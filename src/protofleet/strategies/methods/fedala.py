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
    - Between rounds a device infers with its trained model: its scores are ``after_fit``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from protofleet.strategies.ala import Ala
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.shared_model import SharedModel, SharedTraining
from protofleet.strategies.types import WireContents


class FedAlaSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adaptive local aggregation before local training.

    Attributes:
        local_init: adaptive local aggregation; it cannot be left out.
    """

    local_init: Ala = Ala()
    score_at: Literal["start", "end"] = "start"


class FedAla(SharedModel):
    """FedAvg that starts from a mixture."""

    description = replace(
        FedAvg.description,
        name="fedala",
        paper="Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated "
        "Learning, arXiv:2212.01197",
        travels=WireContents(
            down=("parameters",),
            up=("parameters", "number of examples"),
            personal=("mixing weights", "buffers of the model"),
        ),
        published={"kind": "sgd", "lr": 0.005},
    )
    settings: FedAlaSettings
