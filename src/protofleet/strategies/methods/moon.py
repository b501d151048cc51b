"""MOON: features are pulled to those of the received model, away from the client's previous ones.

Source: Li, He, Song, "Model-Contrastive Federated Learning" (arXiv:2103.16257), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| w^t, w_i^t | ``params/<name>`` | the model's | float32 |
| z_glob | ``positive`` | (n, d) | float32 |
| z_prev | ``negative`` | (n, d) | float32 |
| τ, μ | ``tau``, ``mu`` | () | float |

The training program minimises cross-entropy + μ·l_con; l_con compares the features of the model in
training with those that the received model and the client's own of its last round give for the same
examples. Both are computed once a round. A client that has not trained yet has the received model
as its previous one.

Deviations:
    - Contrast is on the model's pooled features, without a projection head, as in the comparison of
      FedAli (arXiv:2411.10595).
    - The two fixed models see the examples in evaluation batches and with the device's own buffers.
    - Default optimiser and buffers as in ``fedavg.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from protofleet.strategies.bounds import Bounds, Weight
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.shared_model import ReceivedModel, SharedModel, SharedTraining
from protofleet.strategies.training import ExampleRows, LocalObjective
from protofleet.strategies.types import ClientTools


class MoonSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training and the contrastive term.

    Attributes:
        tau: temperature of the contrast.
        mu: its weight.
    """

    tau: Annotated[float, Bounds(1e-6)] = 0.5
    mu: Weight = 1.0


class Moon(SharedModel):
    """FedAvg with a contrast of features."""

    description = replace(
        FedAvg.description,
        name="moon",
        paper="Li et al., Model-Contrastive Federated Learning, arXiv:2103.16257",
        objectives=("moon",),
        travels=replace(
            FedAvg.description.travels, personal=("previous model", "buffers of the model")
        ),
        tasks=("classification",),
        reads_features=True,
    )
    settings: MoonSettings

    def objective(self, received: ReceivedModel, tools: ClientTools) -> LocalObjective:
        """Eq. 3's constants for every example."""
        if not len(tools.training.y):
            return LocalObjective(loss="moon")
        positive = negative = tools.features(received.network, tools.training.x)
        if received.state.round_id:
            negative = tools.features(self.client_model(received.state), tools.training.x)
        scalars = {
            "tau": np.float32(self.settings.tau),
            "mu": np.float32(self.settings.mu),
        }

        def inputs(rows: ExampleRows) -> Mapping[str, Any]:
            return {"positive": positive[rows], "negative": negative[rows], **scalars}

        return LocalObjective(loss="moon", inputs=inputs)
