"""Per-FedAvg: the federation learns a model from which one gradient step adapts to any client.

Source: Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees:
A Model-Agnostic Meta-Learning Approach" (NeurIPS 2020, arXiv:2002.07948), algorithm 1 and its two
approximations of the Hessian, FO and HF.

| symbol | name | shape | dtype |
|---|---|---|---|
| w | ``params/<name>`` of payload and update | the model's | float32 |
| w - α∇f_i(w) | ``params/<name>`` of the client's state | the model's | float32 |
| w as trained | ``shared/params/<name>``, for ``local_init`` | the model's | float32 |
| α, β, δ | ``alpha``, ``optimiser.lr``, ``delta`` | () | float |
| D, D', D'' | consecutive parts of a step's examples | | |

A step takes fresh batches. FO: g = ∇f(w - α∇f(w; D); D'), w ← w - βg. HF multiplies g by
I - α∇²f(w; D''), where ∇²f(w) g = (∇f(w + δg) - ∇f(w - δg)) / 2δ. A device is scored, and infers,
with the model after one step of α with the gradient of all of its training examples, which never
leaves it.

Deviations:
    - That is a step from the device's own w, which it has trained; the paper's is from the common
      one (``score_at = "start"``: from the received one).
    - Local steps are counted in ``epochs``: each example is in one batch of an epoch.
    - A client with too few examples for two (HF: three) batches takes all of them for each.
    - g may be a step of any optimiser; the paper has plain SGD.
    - In HF both gradients of the difference draw the same noise (dropout), which would otherwise be
      divided by 2δ; the model's buffers learn nothing there.
    - With ``local_init`` the client's own w of its last round is mixed with the received one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import sgd_step
from protofleet.strategies.bounds import MOST_BATCH, Bounds, LearningRate
from protofleet.strategies.common import scored
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.optimisers import Adam, Sgd
from protofleet.strategies.shared_model import (
    ServerStep,
    SharedModel,
    SharedTraining,
    finish_round,
    keep_both,
    local_init,
    scored_early,
    shared_state,
)
from protofleet.strategies.training import Training, mean_gradient, refuse_rewritten, train
from protofleet.strategies.types import (
    TASK_LOSS,
    Batch,
    ClientState,
    ClientTools,
    GradFn,
    Payload,
    Step,
    TrainTools,
    Update,
    WireContents,
)
from protofleet.tensors import Layout, Model, Network, TensorMap

_BATCHES = {"fo": 2, "hf": 3}


class PerFedAvgSettings(SharedTraining, frozen=True, kw_only=True):
    """Local training of the model to adapt, and the step that adapts it.

    Attributes:
        alpha: rate of the step that adapts.
        variant: the Hessian is left out (``"fo"``), or a finite difference of gradients
            (``"hf"``).
        delta: half the distance of that difference, in gradients.
        server: what the server makes of the clients' updates.
    """

    optimiser: Adam | Sgd = Sgd()
    alpha: LearningRate = 0.01
    variant: Literal["fo", "hf"] = "fo"
    delta: Annotated[float, Bounds(1e-6)] = 1e-3
    server: ServerStep = ServerStep()


class PerFedAvg(SharedModel):
    """A start from which one step of a client's own goes far."""

    description = replace(
        FedAvg.description,
        name="perfedavg",
        paper="Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A "
        "Model-Agnostic Meta-Learning Approach, arXiv:2002.07948",
        travels=WireContents(
            down=("parameters",),
            up=("parameters", "number of examples"),
            personal=("adapted model", "buffers of the model"),
        ),
        partial_work=False,
    )
    settings: PerFedAvgSettings

    def __init__(self, settings: PerFedAvgSettings, model: Model) -> None:
        refuse_rewritten(self.description.name, model)
        super().__init__(settings, model, server=settings.server)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, training = self.settings, tools.training
        start = local_init(settings, self.receive(shared_state(state), payload), tools)
        early = None
        if scored_early(settings, payload):
            early = tools.evaluate(_adapted(settings, start.network, training))
        trained = train(start.network, *_meta(settings, training, self.model.params.layout))
        own = _adapted(settings, trained.network, training)
        start = replace(start, evaluation=scored(early, own, tools))
        kept, update = finish_round(start, trained, tools, self.shared)
        return keep_both(settings, own, kept), update


def _meta(
    settings: PerFedAvgSettings, tools: TrainTools, layout: Layout
) -> tuple[TrainTools, Training]:
    """Tools and training whose batches are as large as all that a step takes together."""
    batches = _BATCHES[settings.variant]
    least = tools.min_batch * (batches if len(tools.y) >= batches * tools.min_batch else 1)
    meta = replace(
        tools, grad_fns={TASK_LOSS: _MetaGradient(settings, tools, layout)}, min_batch=least
    )
    size = min(batches * settings.batch_size, MOST_BATCH)
    return meta, msgspec.structs.replace(settings, batch_size=size)


def _adapted(settings: PerFedAvgSettings, network: Network, tools: TrainTools) -> Network:
    """A copy after one step of α; without examples enough for a step, the network itself."""
    if not tools.can_train:
        return network
    adapted = network.copy()
    gradient = mean_gradient(network, tools, settings)
    sgd_step(adapted.params.buffer, gradient.buffer, None, lr=settings.alpha)
    return adapted


class _MetaGradient:
    """The gradient of the loss after one step of α, of a batch that is divided into parts.

    Args:
        settings: α, δ and how the Hessian enters.
        tools: the client's programs, and how few examples they take.
        layout: of the parameters.
    """

    def __init__(self, settings: PerFedAvgSettings, tools: TrainTools, layout: Layout) -> None:
        self._settings = settings
        self._grad_fn: GradFn = tools.grad_fns[TASK_LOSS]
        self._least = tools.min_batch
        self._moved = TensorMap.zeros(layout)

    def __call__(self, network: Network, batch: Batch, rng: np.random.Generator) -> Step:
        first, second, *third = _parts(batch, _BATCHES[self._settings.variant], self._least)
        step = self._grad_fn(network, first, rng)
        moved = self._moved
        moved.buffer[...] = network.params.buffer
        sgd_step(moved.buffer, step.grads.buffer, None, lr=self._settings.alpha)
        step = self._grad_fn(Network(params=moved, buffers=step.buffers), second, rng)
        for part in third:
            step = self._times_hessian(network, step, part, rng)
        return step

    def _times_hessian(
        self, network: Network, step: Step, batch: Batch, rng: np.random.Generator
    ) -> Step:
        """``(I - α∇²f) g`` with the Hessian of ``batch`` at ``network``."""
        # The program's next call overwrites what its last one returned.
        direction, buffers = step.grads.copy(), step.buffers.copy()
        seed, delta = int(rng.integers(2**63)), np.float32(self._settings.delta)
        shift = delta * direction.buffer
        ahead = self._gradient(network.params.buffer + shift, buffers, batch, seed).copy()
        behind = self._gradient(network.params.buffer - shift, buffers, batch, seed)
        share = np.float32(self._settings.alpha) / (2 * delta)
        direction.buffer[...] -= share * (ahead - behind)
        return Step(loss=step.loss, grads=direction, buffers=buffers)

    def _gradient(
        self, params: NDArray[np.float32], buffers: TensorMap, batch: Batch, seed: int
    ) -> NDArray[np.float32]:
        """Of the loss at other parameters, with the noise of a seed."""
        self._moved.buffer[...] = params
        network = Network(params=self._moved, buffers=buffers)
        return self._grad_fn(network, batch, np.random.default_rng(seed)).grads.buffer


def _parts(batch: Batch, count: int, least: int) -> list[Batch]:
    """Consecutive parts of a batch, or all of it so often if a part would be too small."""
    size = len(batch["y"])
    if size < count * least:
        return [batch] * count
    cuts = [size * index // count for index in range(count + 1)]
    return [
        {name: value[start:stop] for name, value in batch.items()} for start, stop in pairwise(cuts)
    ]
