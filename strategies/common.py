"""What strategies share: settings of local training, the training loop, tensors with prefixes.

In states, payloads and updates a parameter ``a.w`` is called ``params/a.w`` and a state tensor
``b.m`` is called ``state/b.m``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import EpsForm, WeightedMean, adam_step, sgd_step
from protofleet.strategies.types import (
    Batch,
    ClientState,
    ClientTools,
    Payload,
    ServerState,
    Update,
    Updates,
)
from protofleet.wire.tensors import Layout, Model, TensorMap, Tensors

PARAMS = "params/"
STATE = "state/"

_Settings = TypeVar("_Settings", bound=msgspec.Struct)
_Step = Callable[[NDArray[np.float32], NDArray[np.float32]], None]


def check_range(name: str, value: float, *, low: float, high: float = math.inf) -> None:
    """Raise InputError unless ``low <= value <= high`` and the value is finite."""
    if not (math.isfinite(value) and low <= value <= high):
        bounds = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise InputError(f"setting '{name}': expected a number {bounds}, got {value}")


class _Record(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    pass


class Sgd(_Record, frozen=True, tag="sgd"):
    """Stochastic gradient descent as in ``torch.optim.SGD``; in TOML ``kind = "sgd"``.

    Attributes:
        lr: learning rate.
        momentum: share of the velocity that stays, in [0, 1].
        weight_decay: factor of the parameters added to their gradient.
    """

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_range("optimiser.lr", self.lr, low=0)
        check_range("optimiser.momentum", self.momentum, low=0, high=1)
        check_range("optimiser.weight_decay", self.weight_decay, low=0)


class Adam(_Record, frozen=True, tag="adam"):
    """Adam with Keras' defaults; in TOML ``kind = "adam"``.

    Attributes:
        lr: learning rate.
        beta1: share of the gradients' moving mean that stays, in [0, 1).
        beta2: share of their squares' moving mean that stays, in [0, 1).
        eps: added to the root.
        eps_form: ``keras`` adds eps before the bias correction, ``torch`` after it.
        weight_decay: factor of the parameters added to their gradient (L2).
    """

    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-7
    eps_form: EpsForm = "keras"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_range("optimiser.lr", self.lr, low=0)
        check_range("optimiser.beta1", self.beta1, low=0, high=math.nextafter(1, 0))
        check_range("optimiser.beta2", self.beta2, low=0, high=math.nextafter(1, 0))
        check_range("optimiser.eps", self.eps, low=1e-20)
        check_range("optimiser.weight_decay", self.weight_decay, low=0)


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training of one round; the optimiser starts anew each round.

    Attributes:
        epochs: passes over the local training part.
        batch_size: examples per step.
        drop_last: leave out the last batch of an epoch if it is not full. A client with fewer
            examples than ``batch_size`` then does not train.
        optimiser: ``{kind = "adam", …}`` or ``{kind = "sgd", …}``.
    """

    epochs: int = 5
    batch_size: int = 64
    drop_last: bool = False
    optimiser: Adam | Sgd = Adam()

    def __post_init__(self) -> None:
        check_range("epochs", self.epochs, low=1)
        check_range("batch_size", self.batch_size, low=1)


def parse_settings(strategy: str, settings: Mapping[str, Any], kind: type[_Settings]) -> _Settings:
    """The settings record of a strategy, from what a file or a message says.

    Raises:
        InputError: unknown key, wrong type or a value outside its range.
    """
    try:
        return msgspec.convert(dict(settings), kind)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__)
        raise InputError(f"strategy '{strategy}': {error}; its settings are {known}") from error
    except InputError as error:
        raise InputError(f"strategy '{strategy}': {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model after local training.

    Attributes:
        params, state: its tensors, in buffers of their own.
        loss: mean over the examples of the last epoch; NaN if no step was made.
    """

    params: TensorMap
    state: TensorMap
    loss: float


def train(
    params: TensorMap,
    state: TensorMap,
    tools: ClientTools,
    training: Training,
    *,
    objective: str = "cross_entropy",
) -> Trained:
    """Train copies of ``params`` and ``state`` on the client's examples, shuffled every epoch.

    Raises:
        InputError: the loss became NaN or infinite.
    """
    params = params.copy()
    step_params = _optimiser(training.optimiser, params.layout.size)
    grad_fn = tools.grad_fns[objective]
    loss = math.nan
    for epoch in range(1, training.epochs + 1):
        total, seen = 0.0, 0
        for rows in _batches(len(tools.y), training, tools.rng):
            batch: Batch = {"x": tools.x[rows], "y": tools.y[rows]}
            step = grad_fn(params, state, batch, tools.rng)
            if not math.isfinite(step.loss):
                raise InputError(
                    f"client '{tools.client_id}': expected a finite loss, got {step.loss} in epoch "
                    f"{epoch} after {seen} examples; lower the learning rate or check the data"
                )
            step_params(params.buffer, step.grads.buffer)
            state = step.state
            total += step.loss * len(rows)
            seen += len(rows)
        loss = total / seen if seen else math.nan
    return Trained(params=params, state=state.copy(), loss=loss)


def _batches(
    count: int, training: Training, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    order = rng.permutation(count)
    size = training.batch_size
    stop = count - count % size if training.drop_last else count
    return (order[start : start + size] for start in range(0, stop, size))


def _optimiser(settings: Adam | Sgd, size: int) -> _Step:
    """A step in place on flat buffers, with fresh moments."""
    first = np.zeros(size, np.float32)
    if isinstance(settings, Sgd):
        numbers = msgspec.structs.asdict(settings)
        return lambda params, grads: sgd_step(params, grads, first, **numbers)
    second = np.zeros(size, np.float32)
    numbers = msgspec.structs.asdict(settings)
    count = 0

    def step(params: NDArray[np.float32], grads: NDArray[np.float32]) -> None:
        nonlocal count
        count += 1
        adam_step(params, grads, first, second, step=count, **numbers)

    return step


def prefixed(prefix: str, tensors: Tensors) -> dict[str, NDArray[Any]]:
    """The same arrays under names with a prefix."""
    return {prefix + name: value for name, value in tensors.items()}


def prefixed_layout(prefix: str, layout: Layout) -> Layout:
    """The layout of ``prefixed``."""
    return Layout.of({prefix + name: shape for name, shape in layout.shapes.items()})


def unpack(tensors: Tensors, prefix: str, layout: Layout) -> TensorMap:
    """Copy the tensors of ``layout``, named there without the prefix, into a map of their own.

    Raises:
        InputError: one is absent, surplus, or of another shape.
    """
    named = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    return TensorMap.pack(named, layout)


def downlink(state: ServerState, _client_id: str) -> Payload:
    """Every client gets the server's whole state."""
    return Payload(round_id=state.round_id + 1, tensors=state.tensors)


def client_init(model: Model) -> ClientState:
    """All of the bundle's values, under prefixed names."""
    tensors = {**prefixed(PARAMS, model.params), **prefixed(STATE, model.state)}
    return ClientState(round_id=0, tensors=tensors)


def client_model(model: Model, state: ClientState) -> tuple[TensorMap, TensorMap]:
    """Parameters and state in a client's state that holds all of the model's tensors.

    Raises:
        InputError: one is absent, surplus, or of another shape.
    """
    params = unpack(state.tensors, PARAMS, model.params.layout)
    return params, unpack(state.tensors, STATE, model.state.layout)


def weighted(updates: Updates, layout: Layout) -> Iterator[tuple[TensorMap, int]]:
    """Tensors and number of examples of each update that has any, by ascending client_id.

    A list is sorted here; a lazy sequence is sorted already (``Updates``) and read one by one.

    Raises:
        InputError: two updates of one client, or tensors that do not fit ``layout``.
    """
    if isinstance(updates, Sequence):
        updates = sorted(updates, key=lambda update: update.client_id)
    previous: Update | None = None
    for update in updates:
        if previous is not None and previous.client_id >= update.client_id:
            raise InputError(
                f"updates: expected ascending client ids, got '{update.client_id}' "
                f"after '{previous.client_id}'"
            )
        previous = update
        if update.num_examples:
            yield TensorMap.pack(update.tensors, layout), update.num_examples


def average(updates: Updates, layout: Layout) -> TensorMap | None:
    """Mean of all tensors, weighted by number of examples; None if no update has any."""
    mean = WeightedMean(layout.size)
    mean.add_all((tensors.buffer, examples) for tensors, examples in weighted(updates, layout))
    return TensorMap(layout, mean.result()) if mean.weight else None
