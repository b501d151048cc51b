"""APFL: a client predicts with a mixture of the shared model and of its own, and learns the share.

Source: Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning" (arXiv:2003.13461),
algorithm 1 with an adaptive α.

| symbol | name | shape | dtype |
|---|---|---|---|
| w, w_i | ``params/<name>`` of payload and update | the model's | float32 |
| v̄_i = α_i v_i + (1 - α_i) w_i | ``params/<name>`` of the client's state | the model's | float32 |
| v_i | ``personal/params/<name>`` of the client's state | the model's | float32 |
| α_i | ``alpha`` of the client's state | () | float32 |
| w_i as kept | ``shared/params/<name>``, for ``local_init`` | the model's | float32 |
| η, η_α | ``optimiser.lr``, ``alpha_lr`` | () | float |

A step, on one batch, from the values before it: w ← w - η∇f(w); v ← v - ηα∇f(v̄); and with the
first batch of a round α ← α - η_α <v - w, ∇f(v̄)>, clipped to [0, 1]. w is sent up. v̄ is scored and
is what the device infers with; v and α never leave it. w and v̄ have buffers of their own.

Deviations:
    - The authors' code adds 0.02 α to the gradient of α (``alpha_decay`` does; the paper has none),
      and mixes the predictions of both models, not their parameters. That is not offered: it takes
      a training program of two models. ``alpha_every = "step"`` is PFLlib's.
    - v starts as the bundle's model.
    - The steps of w and v may be another optimiser's, each with moments of its own; α's is plain.
    - With ``local_init`` the client's own w of its last round is mixed with the received one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.bounds import LearningRate, Share, Weight
from protofleet.strategies.common import BUFFERS, PARAMS, prefixed, scored, unpack
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
from protofleet.strategies.training import (
    DivergedError,
    ExampleRows,
    Trainer,
    passes,
    refuse_rewritten,
)
from protofleet.strategies.types import (
    TASK_LOSS,
    Batch,
    ClientState,
    ClientTools,
    Payload,
    Step,
    TrainTools,
    Update,
    WireContents,
)
from protofleet.tensors import Model, Network, TensorMap

_PERSONAL = "personal/" + PARAMS
_ALPHA = "alpha"


class ApflSettings(SharedTraining, frozen=True, kw_only=True):
    """Local training of both models, and the share of the personal one.

    Attributes:
        optimiser: of both models.
        alpha: share of the personal model before the first round.
        alpha_lr: rate of its gradient step; absent: ``optimiser.lr``; 0: it stays as it is.
        alpha_every: whether it makes one in a ``round``, with the first batch, or in every
            ``step``.
        alpha_decay: what is added to α's gradient, as a multiple of α; 0.02 in the authors' code.
        server: what the server makes of the clients' updates.
    """

    optimiser: Adam | Sgd = Sgd()
    alpha: Share = 0.5
    alpha_lr: LearningRate | None = None
    alpha_every: Literal["round", "step"] = "round"
    alpha_decay: Weight = 0.0
    server: ServerStep = ServerStep()


class Apfl(SharedModel):
    """A mixture of the shared model and the client's own."""

    description = replace(
        FedAvg.description,
        name="apfl",
        paper="Deng et al., Adaptive Personalized Federated Learning, arXiv:2003.13461",
        travels=WireContents(
            down=("parameters",),
            up=("parameters", "number of examples"),
            personal=("personal model", "its share of the mixture", "buffers of both models"),
        ),
        partial_work=False,
    )
    settings: ApflSettings

    def __init__(self, settings: ApflSettings, model: Model) -> None:
        refuse_rewritten(self.description.name, model)
        super().__init__(settings, model, server=settings.server)
        own = {_PERSONAL + name for name in model.params}
        self.carried = frozenset({*own, *(BUFFERS + name for name in model.buffers), _ALPHA})

    def client_init(self, model: Model) -> ClientState:
        fresh = super().client_init(model)
        own = _own_tensors(model.params, self.settings.alpha)
        return replace(fresh, tensors={**fresh.tensors, **own})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, training = self.settings, tools.training
        start = local_init(settings, self.receive(shared_state(state), payload), tools)
        mixture = _Mixture(self, state, start.network.params, training)
        early = tools.evaluate(mixture.network) if scored_early(settings, payload) else None
        shared = Trainer(start.network, training, settings)
        personal = Trainer(mixture.personal, mixture.tools, settings)

        def both(rows: ExampleRows) -> float:
            personal.step(rows)  # first: it mixes with w as that is before its own step
            return shared.step(rows)

        loss = passes(both, training, settings)
        personal.trained(loss)
        start = replace(start, evaluation=scored(early, mixture.network, tools))
        kept, update = finish_round(start, shared.trained(loss), tools, self.shared)
        both_kept = keep_both(settings, mixture.network, kept)
        own = _own_tensors(mixture.personal.params, mixture.alpha)
        return replace(both_kept, tensors={**both_kept.tensors, **own}), update


def _own_tensors(personal: TensorMap, alpha: float) -> dict[str, NDArray[Any]]:
    return {**prefixed(_PERSONAL, personal), _ALPHA: np.array(alpha, np.float32)}


class _Mixture:
    """The model in between: its gradient moves the personal model, and the share of that.

    Args:
        method, state: settings, layouts and what the device kept.
        shared: w, as it is whenever a gradient is asked for.
        tools: the client's.

    Attributes:
        personal: v, with the mixture's buffers.
        alpha: share of v.
        tools: the client's, with gradients at the mixture in the place of those at v.
    """

    def __init__(
        self, method: Apfl, state: ClientState, shared: TensorMap, tools: TrainTools
    ) -> None:
        model, settings = method.model, method.settings
        layout = model.params.layout
        self.personal = Network(
            params=unpack(state.tensors, _PERSONAL, layout),
            buffers=unpack(state.tensors, BUFFERS, model.buffers.layout),
        )
        self.alpha = float(state.tensors[_ALPHA])
        self.tools = replace(tools, grad_fns={TASK_LOSS: self._grads})
        self._name, self._grad_fn = tools.name, tools.grad_fns[TASK_LOSS]
        lr = settings.optimiser.lr if settings.alpha_lr is None else settings.alpha_lr
        self._lr, self._decay = lr, settings.alpha_decay
        self._shared, self._mixed = shared, TensorMap.zeros(layout)
        self._every_step, self._learns = settings.alpha_every == "step", True
        self._apart = np.zeros(layout.size, np.float32)

    @property
    def network(self) -> Network:
        """v̄ as w, v and α are now; the next call overwrites it."""
        w, mixed = self._shared.buffer, self._mixed.buffer
        np.subtract(self.personal.params.buffer, w, out=self._apart)
        np.multiply(self._apart, np.float32(self.alpha), out=mixed)
        mixed += w
        return Network(params=self._mixed, buffers=self.personal.buffers)

    def _grads(self, network: Network, batch: Batch, rng: np.random.Generator) -> Step:
        """∇_v f(v̄) = α∇f(v̄); where α learns, it moves for the next step."""
        mixed = replace(self.network, buffers=network.buffers)
        step = self._grad_fn(mixed, batch, rng)
        alpha = self._moved_alpha(step) if self._learns else self.alpha
        step.grads.buffer[...] *= np.float32(self.alpha)
        self.alpha, self._learns = alpha, self._every_step
        return step

    def _moved_alpha(self, step: Step) -> float:
        # ∇_α f(v̄) = <v - w, ∇f(v̄)>, by a sum whose bits hang on no number of threads.
        slope = float(np.sum(self._apart * step.grads.buffer, dtype=np.float64))
        if not math.isfinite(slope):
            raise DivergedError(
                f"{self._name}: expected a finite gradient of the mixture's share, got {slope}; "
                "lower the learning rate or check the data"
            )
        return min(max(self.alpha - self._lr * (slope + self._decay * self.alpha), 0.0), 1.0)
