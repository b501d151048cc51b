"""What the halves of a strategy (``strategies.strategy``) are given, keep and send."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, RefusedError
from protofleet.strategies.aggregation import MEAN, Aggregator
from protofleet.strategies.scores import Statistics
from protofleet.tensors import Layout, Network, TaskName, TensorMap, Tensors

TASK_LOSS = "task_loss"
"""The objective that is the loss of the bundle's task, whichever that is: ``cross_entropy``,
``step_cross_entropy``, ``mse``, ``huber`` or ``bce``. Programs are found under this name beside
their own."""

Batch = Mapping[str, NDArray[Any]]
"""Inputs of a training program by key: ``x``, ``y`` and whatever its objective needs."""


class UnsuitableModelError(InputError):
    """A model lacks what a strategy needs.

    Attributes:
        flags: of ``protofleet export`` beside ``--strategy`` that give it to the model.
    """

    def __init__(self, message: str, *, flags: str = "") -> None:
        super().__init__(message)
        self.flags = flags


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What the coordinator keeps between rounds; ``round_id`` counts aggregated rounds.

    Attributes:
        figures: what the round's record tells of how the state was made, by a name that the
            strategy documents; it is not kept.
    """

    round_id: int
    tensors: Tensors
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientState:
    """What a device keeps between rounds; ``round_id`` is the last round it trained (0: none)."""

    round_id: int
    tensors: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Server → client content of round ``round_id`` (from 1).

    Attributes:
        final: the fit after the last round, which is scored but not aggregated
            (``Description.final_fit``).
    """

    round_id: int
    tensors: Tensors
    final: bool = False


AFTER_FIT = "after_fit"
"""Name of the scores after local training, of a strategy that has others before it."""
PERSONALISED = "personalised"
"""Name of the scores of the network that the device infers with, where ``own`` is of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What scores are made of, in the form of the bundle's task (``tasks.LearningTask``).

    Of a classifier these are confusion counts, ``(C, C) int64``, rows true and columns predicted
    class.

    Attributes:
        own: of the client's model on its own test part; None where it has none.
        start: of the bundle's model on the same, in a client's first round; None in the others.
        pooled: of the client's model on the union of all test parts; None if not rehearsed.
        own_loss: mean loss of the task on its own test part; NaN where it has none.
        more: own statistics of the client's other models or moments, by a name that the strategy
            documents.
    """

    own: Statistics | None = None
    start: Statistics | None = None
    pooled: Statistics | None = None
    own_loss: float = math.nan
    more: Mapping[str, Statistics] = field(default_factory=dict)

    @property
    def kept(self) -> Statistics | None:
        """Of the model that the device has after the round, on its own test part."""
        return self.more.get(AFTER_FIT, self.more.get(PERSONALISED, self.own))


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Client → server content of one round.

    Attributes:
        num_examples: number of training samples, the aggregation weight.
        tensors: what travels.
        evaluation: scores of the client's model at the moment the strategy names.
        loss: mean training loss of the last local epoch; NaN if nothing was trained.
        class_counts: ``(C,) int64`` training samples of each class, as the client registered
            them: the coordinator adds them, no update carries them. None unless the strategy asks
            for them (``Description.class_counts``).
    """

    client_id: str
    round_id: int
    num_examples: int
    tensors: Tensors
    evaluation: Evaluation = field(default_factory=Evaluation)
    loss: float = math.nan
    class_counts: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class TensorSchema:
    """Shape and dtype of a tensor that travels.

    Attributes:
        shape: None in the place of the first axis: any length up to ``most``.
        dtype: numpy's name of it.
        most: largest length of a free first axis.
    """

    shape: tuple[int | None, ...]
    dtype: str = "float32"
    most: int = 0

    def __str__(self) -> str:
        free = f" with n <= {self.most}" if None in self.shape else ""
        return f"{str(self.shape).replace('None', 'n')} {self.dtype}{free}"

    @property
    def max_bytes(self) -> int:
        """Size of the largest such tensor."""
        axes = (self.most if axis is None else axis for axis in self.shape)
        return math.prod(axes) * np.dtype(self.dtype).itemsize

    def fits(self, value: NDArray[Any]) -> bool:
        """Whether an array has this form."""
        return (
            value.dtype == self.dtype
            and value.ndim == len(self.shape)
            and all(
                got <= self.most if want is None else got == want
                for want, got in zip(self.shape, value.shape, strict=True)
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSchemas:
    """What a payload or an update of a strategy holds.

    Attributes:
        required: the tensors of each, by name.
        optional: tensors of which it has all or none; an update without them abstains.
    """

    required: Mapping[str, TensorSchema] = field(default_factory=dict)
    optional: Mapping[str, TensorSchema] = field(default_factory=dict)

    @property
    def max_bytes(self) -> int:
        """Size of all tensors together, at most."""
        return sum(form.max_bytes for form in (*self.required.values(), *self.optional.values()))

    def check(self, tensors: Tensors) -> None:
        """Raise RefusedError, rule ``layout``, unless these tensors may travel; reads no number."""
        if surplus := tensors.keys() - {*self.required, *self.optional}:
            raise RefusedError(
                "layout", f"tensor '{min(surplus)}': the strategy expects no such name"
            )
        expected = {**self.required}
        if tensors.keys() & self.optional.keys():
            expected |= self.optional
        for name, form in expected.items():
            got = tensors.get(name)
            if got is None or not form.fits(got):
                found = "nothing" if got is None else f"{got.shape} {got.dtype}"
                raise RefusedError("layout", f"tensor '{name}': expected {form}, got {found}")


def float32_schemas(layout: Layout) -> dict[str, TensorSchema]:
    """Forms of the tensors of a layout, by name."""
    return {name: TensorSchema(shape) for name, shape in layout.shapes.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Result of one call of a training program.

    Attributes:
        loss: mean loss of the batch.
        grads: gradient of every parameter, in the layout of the parameters. The buffer belongs to
            the runtime and is overwritten by the next call.
        buffers: the model's buffers after the call; same ownership, but they may be the input of
            the next call.
    """

    loss: float
    grads: TensorMap
    buffers: TensorMap


class GradFn(Protocol):
    """A training program: forward and backward over one batch, noise drawn from ``rng``."""

    def __call__(self, network: Network, batch: Batch, rng: np.random.Generator) -> Step:
        """Loss, gradients and new buffers of one batch; ``network`` is not written."""
        ...


class ForwardFn(Protocol):
    """A program without gradients: outputs ``(n, C)`` or features ``(n, d)`` of examples."""

    def __call__(self, network: Network, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """One row for each of ``x``, ``(n, …) float32``."""
        ...


class LayersFn(Protocol):
    """Activations of the hidden layers after their ReLU."""

    def __call__(
        self, network: Network, x: NDArray[np.float32]
    ) -> Mapping[str, NDArray[np.float32]]:
        """``(n, units)`` for each layer by the name whose ``.weight`` and ``.bias`` it has."""
        ...


Score = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Scores of the classes ``(n, C)`` from features ``(n, d)``; the largest is the prediction."""

View = Callable[[NDArray[np.float32], NDArray[np.float32] | None], NDArray[np.float32]]
"""Other examples ``(n, …)`` in the place of test examples and their boxes (or None)."""


class EvaluateFn(Protocol):
    """Evaluates a model on the client's own test part and, in a rehearsal, on the pooled one."""

    def __call__(self, network: Network, *, score: Score | None = None) -> Evaluation:
        """Statistics and loss; ``score`` classifies the features in place of the model's head."""
        ...


class StatisticsFn(Protocol):
    """Statistics of another model or view of the data, for ``Evaluation.more``."""

    def __call__(self, network: Network, *, view: View | None = None) -> Statistics | None:
        """On the own test part, in the form of ``Evaluation.own``; None where there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTools:
    """What training needs, on a device or on the server: examples, programs and randomness.

    Attributes:
        name: who trains, as messages say it: ``client 'a'``.
        x: the examples, ``(n, …) float32``.
        y: their classes ``(n,) int64``, or targets ``(n, T) float32`` where the task has those.
        grad_fns: training programs by objective name, e.g. ``moon``, and ``TASK_LOSS``.
        rng: seeded by federation seed, client and round, so that a rerun gives the same bits.
        min_batch: fewest examples of a step (``Program.min_batch``).
        work: share of the local training that is to be done, above 0 up to 1; less than 1 only
            where ``Description.partial_work`` allows it.
    """

    name: str
    x: NDArray[np.float32]
    y: NDArray[Any]
    grad_fns: Mapping[str, GradFn]
    rng: np.random.Generator
    min_batch: int = 1
    work: float = 1.0

    @property
    def can_train(self) -> bool:
        """Whether there are examples enough for a step."""
        return len(self.y) >= self.min_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTools:
    """What a device injects into ``client_update``.

    Attributes:
        client_id: the durable identity.
        training: the local training part, programs and randomness.
        boxes: ``(n, k, 4) float32`` regions of ``training.x`` to hide; None if the data have none.
        predict: outputs, in the batches of the evaluation.
        features: pooled features, in the batches of the evaluation.
        layers: activations of hidden layers, in the batches of the evaluation.
        evaluate: scores a model on the client's test data.
        statistics: of further models on the client's test data.
    """

    client_id: str
    training: TrainTools
    boxes: NDArray[np.float32] | None = None
    predict: ForwardFn
    features: ForwardFn
    layers: LayersFn
    evaluate: EvaluateFn
    statistics: StatisticsFn


NoiseFn = Callable[[int], NDArray[np.float64]]
"""So many independent standard normal numbers, ``(n,) float64``."""


def no_noise(_size: int) -> NDArray[np.float64]:
    """Raise InputError: the round was given none."""
    raise InputError("server: noise is drawn in a round that was given no source of it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTools:
    """What the coordinator injects into ``aggregate``.

    Attributes:
        grad_fns: training programs by objective; empty unless the strategy asks for them
            (``Description.server_objectives``).
        predict: logits; raises InputError unless the strategy asks for programs.
        rng: seeded by federation seed and round, so that a rerun gives the same bits.
        aggregator: how the clients' vectors become one; the mean unless the federation chose
            another and the strategy takes one (``Description.combines``).
        noise: of differential privacy; raises InputError without.
        min_batch: as in ``TrainTools``.
    """

    grad_fns: Mapping[str, GradFn]
    predict: ForwardFn
    rng: np.random.Generator
    aggregator: Aggregator = MEAN
    noise: NoiseFn = no_noise
    min_batch: int = 1


class Updates(Protocol):
    """Accepted updates of one round, sorted by client_id; items are read when asked for.

    They may be iterated over again, which reads them again.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Update]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WireContents:
    """What crosses the wire and what never does, in words, for ``protofleet strategies``."""

    down: tuple[str, ...]
    up: tuple[str, ...]
    personal: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What can be said of a strategy without a model.

    Attributes:
        name: key in ``protofleet.strategies.STRATEGIES``.
        paper: citation.
        objectives: whose training programs devices need.
        travels: what goes down, up, and stays.
        tasks: of the bundles that it runs on; one that looks at classes knows no other.
        server_objectives: whose training programs the coordinator needs.
        class_counts: devices register how many training samples of each class they have.
        final_fit: after the last round every live device gets one more payload and is scored
            after its fit; nothing is aggregated from it.
        combines: what the server needs of its clients' updates. ``"each"``: it looks at single
            ones. ``"rule"``: it combines them by ``ServerTools.aggregator``, so that a federation
            may choose the rule. ``"mean"``: and keeps nothing else than what the rule makes of what
            clients send under the same names. So what a client has changed may be applied to a
            later state than the one that it began with, in part: buffered schedules and late
            updates need that.
        reads_features: devices ask for features (``ClientTools.features``).
        reads_layers: devices ask for the activations of hidden layers (``ClientTools.layers``).
        alignment: the model must have alignment layers (ALP).
        partial_work: a client may do a part of its local training (``TrainTools.work``): what it
            sends still means the same, and the server needs to know nothing of it.
        published: the optimiser of its authors' experiments, as it stands in settings; empty: they
            say nothing of it.
    """

    name: str
    paper: str
    objectives: tuple[str, ...]
    travels: WireContents
    tasks: tuple[TaskName, ...] = ("classification",)
    server_objectives: tuple[str, ...] = ()
    class_counts: bool = False
    final_fit: bool = False
    combines: Literal["each", "rule", "mean"] = "each"
    reads_features: bool = False
    reads_layers: bool = False
    alignment: bool = False
    partial_work: bool = False
    published: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_rule(self) -> bool:
        """Whether a federation may choose how its clients' vectors become one."""
        return self.combines != "each"

    @property
    def takes_late(self) -> bool:
        """Whether an update may count in a later round than its own."""
        return self.combines == "mean"


ALL_TASKS: tuple[TaskName, ...] = ("classification", "segmentation", "regression", "multilabel")
"""Of a strategy that only asks for the task's own loss."""
