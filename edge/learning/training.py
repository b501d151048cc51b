"""Local training and evaluation: a strategy's client half run on this device's data."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Manifest
from protofleet.datasets import DeviceData
from protofleet.datasets.arrays import check_tokens
from protofleet.edge.learning.meter import Meter, measure_windows
from protofleet.errors import InputError, ProtofleetError
from protofleet.federation.client import (
    TrainedRound,
)
from protofleet.federation.outcomes.calibration import held_out
from protofleet.federation.outcomes.gate import (
    FOLDS,
    ComparedExamples,
    GateEvidence,
    compare,
    folds_of,
    is_one_class,
    pooled,
)
from protofleet.federation.randomness import client_rng
from protofleet.federation.records import Costs, percentiles
from protofleet.runtime import Programs, release
from protofleet.strategies import build
from protofleet.strategies.scores import Statistics
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.tasks import TASKS, LearningTask, defined
from protofleet.strategies.training import (
    DivergedError,
    Training,
    check_batch_sizes,
    uneven_batch,
)
from protofleet.strategies.types import (
    Batch,
    ClientState,
    ClientTools,
    Evaluation,
    GradFn,
    Payload,
    Score,
    Step,
    TrainTools,
    Update,
    View,
)
from protofleet.tensors import Network, kind_of

_log = logging.getLogger(__name__)

EVALUATION_BATCH = 32
"""ALP couples the examples of a batch, so the scores of the paper belong to this number."""

LabelledExamples = tuple[NDArray[np.float32], NDArray[Any]]


class TrainingCancelledError(Exception):
    """The round in progress was given up between two steps; nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalData:
    """What a device trains and scores on.

    Attributes:
        own: its own train and test part.
        pooled: the union of all devices' test parts, in a rehearsal; None in the field.
        later: data that take the place of ``own``, each from the round beside it on; rounds
            ascend from 2.

    Raises:
        InputError: the rounds do not ascend.
    """

    own: DeviceData
    pooled: LabelledExamples | None = None
    later: tuple[tuple[int, DeviceData], ...] = ()

    def __post_init__(self) -> None:
        rounds = [1, *(round_id for round_id, _ in self.later)]
        if any(after <= before for before, after in pairwise(rounds)):
            raise InputError(f"later data: expected rounds that ascend from 2, got {rounds[1:]}")

    def at(self, round_id: int) -> DeviceData:
        """The own data of a round."""
        since = [own for first, own in self.later if first <= round_id]
        return since[-1] if since else self.own


class Learner:
    """Runs a bundle's programs on local data, for whichever strategy the coordinator names.

    Attributes:
        model: the bundle's initial values.
        manifest: of the bundle.
        task: what its outputs are, and how they are scored.
        meter: what is spent.
        device_id: of the client.
        cancelled: set by another thread, ends the training in progress at its next step.
        free: unset by another thread, makes the training in progress wait before its next step.

    Raises:
        InputError: the data do not fit the bundle's input shape, classes or targets.
    """

    def __init__(
        self, bundle: Bundle, programs: Programs, data: LocalData, meter: Meter, device_id: str
    ) -> None:
        check_data(data, bundle.manifest)
        self.model = bundle.model()
        self.task = TASKS[bundle.manifest.task]
        self._loss = self.task.losses[self.task.loss_of(programs.grad_fns)]
        self._bundle, self.manifest = bundle, bundle.manifest
        self._programs = programs
        self._data = data
        self._own = data.own
        self.meter = meter
        self.cancelled, self.free = threading.Event(), threading.Event()
        self.free.set()
        self.device_id = device_id
        self._told: set[str] = set()

    @property
    def programs(self) -> Programs:
        """The bundle's, open."""
        return self._programs

    def strategy(self, name: str, settings: Mapping[str, Any]) -> Strategy:
        """The strategy ``name`` for this bundle's model.

        Raises:
            InputError: unknown strategy or setting, the bundle lacks a program it needs, or its
                programs do not take so small batches.
        """
        strategy = build(name, settings, self.model)
        missing = sorted(set(strategy.description.objectives) - self._programs.grad_fns.keys())
        if missing:
            raise InputError(
                f"strategy '{name}': needs a training program '{missing[0]}', the bundle has "
                f"{sorted(self._programs.grad_fns)}; export a bundle for this strategy"
            )
        check_batch_sizes(strategy.settings, self._programs.min_batch)
        return strategy

    def num_examples(self, round_id: int) -> int:
        """Training samples in a round's data."""
        return len(self._data.at(round_id).y_train)

    def class_counts(self, round_id: int) -> tuple[int, ...]:
        """Training samples of each class in a round's data, or steps in a segmentation's.

        Empty where the task has no classes.
        """
        if not self.model.num_classes:
            return ()
        y = self._data.at(round_id).y_train
        return tuple(np.bincount(y.reshape(-1), minlength=self.model.num_classes).tolist())

    def rate_tester(self, round_id: int) -> Learner | None:
        """A learner without some of a round's training examples, which it scores on.

        None: there are too few of them.
        """
        held = held_out(self._data.at(round_id).y_train)
        return None if held is None else self._without(held, round_id, self.meter)

    def _without(self, held: NDArray[np.bool_], round_id: int, meter: Meter) -> Learner | None:
        """A learner that scores on some of a round's training examples and trains on the others."""
        if np.count_nonzero(~held) < max(1, self._programs.min_batch):
            return None
        own = self._data.at(round_id)
        boxes = own.boxes_train
        split = replace(
            own,
            x_train=own.x_train[~held],
            y_train=own.y_train[~held],
            x_test=own.x_train[held],
            y_test=own.y_train[held],
            boxes_train=None if boxes is None else boxes[~held],
            boxes_test=None if boxes is None else boxes[held],
        )
        bundle, data = self._bundle, LocalData(own=split)
        tester = Learner(bundle, self._programs, data, meter, self.device_id)
        tester.cancelled, tester.free = self.cancelled, self.free
        return tester

    def enter(self, round_id: int) -> None:
        """Train, evaluate and infer on the data of this round from now on."""
        self._own = self._data.at(round_id)

    def warm_up(self) -> None:
        """Rehearse a round of the bundle's own strategy on two examples.

        This opens the sessions and compiles the kernels before the first round needs them. The
        federation may run another strategy, so a rehearsal that fails is no error.
        """
        own, declared = self._own, self.manifest.strategy
        x, y = own.x_train[:2], own.y_train[:2]

        def evaluate(network: Network, *, score: Score | None = None) -> Evaluation:
            self._scores(network, x, score)
            return Evaluation()

        tools = self._tools(self._programs.grad_fns, np.random.default_rng(0))
        tools = replace(
            tools,
            training=replace(tools.training, x=x, y=y),
            boxes=None if own.boxes_train is None else own.boxes_train[:2],
            evaluate=evaluate,
            statistics=lambda _network, *, view=None: None,  # noqa: ARG005 - the tool's signature
        )
        try:
            strategy = self.strategy(declared.name, declared.settings)
            server = strategy.server_init(self.model, np.random.default_rng(0))
            payload = strategy.downlink(server, self.device_id)
            strategy.client_update(strategy.client_init(self.model), payload, tools)
        except ProtofleetError as error:
            _log.info("no warm-up: %s", error)
        release()

    def train(
        self,
        strategy: Strategy,
        state: ClientState | None,
        payload: Payload,
        *,
        seed: int,
        work: float = 1.0,
    ) -> tuple[ClientState, Update]:
        """One local round on that round's data: the same arguments give the same bits.

        Args:
            strategy: of the federation.
            state: of the last round that counted; None: none did.
            payload: of the round.
            seed: of the federation.
            work: share of the training that is to be done; less than 1 only where the strategy
                allows it.

        Raises:
            TrainingCancelledError: ``cancelled`` is set.
        """
        self.enter(payload.round_id)
        self._tell_uneven_batch(strategy)
        timed = {name: _Timed(grad_fn, self) for name, grad_fn in self._programs.grad_fns.items()}
        tools = self._tools(timed, client_rng(seed, payload.round_id, self.device_id))
        tools = replace(tools, training=replace(tools.training, work=work))
        before = None if state is None else self._data.at(state.round_id)
        with self.meter.phase("train"):
            state = strategy.client_init(self.model) if state is None else state
            state, update = strategy.client_update(state, payload, tools)
        if before is not self._own:
            update = self._with_start(update)
        return state, update

    def _with_start(self, update: Update) -> Update:
        """With statistics of the bundle's model on the same examples: what the owner had before."""
        own = self._own
        with self.meter.phase("evaluate"):
            start = self._count(self._scores(self.model.network, own.x_test, None), own.y_test)
        return replace(update, evaluation=replace(update.evaluation, start=start))

    def _tell_uneven_batch(self, strategy: Strategy) -> None:
        settings, count = strategy.settings, len(self._own.y_train)
        if not isinstance(settings, Training):
            return
        text = uneven_batch(count, settings, self._programs.min_batch)
        if text and text not in self._told:
            self._told.add(text)
            _log.warning("%s", text)

    def phase(self, name: Literal["encode"]) -> AbstractContextManager[None]:
        """Count the time in the block."""
        return self.meter.phase(name)

    def evaluate(self, network: Network, *, score: Score | None = None) -> Evaluation:
        """Statistics on the own and, in a rehearsal, on the pooled test part."""
        own, pooled = self._own, self._data.pooled
        with self.meter.phase("evaluate"):
            scores = self._scores(network, own.x_test, score)
            return Evaluation(
                own=self._count(scores, own.y_test),
                pooled=pooled and self._count(self._scores(network, pooled[0], score), pooled[1]),
                own_loss=self._loss(scores, own.y_test),
            )

    def compare(self, strategy: Strategy, state: ClientState) -> GateEvidence:
        """The model of ``state`` beside the bundle's, on the own test part."""
        own = self._own
        evidence = pooled(self.task.name, self._compared(strategy, state))
        one_class = is_one_class(own.y_train, own.y_test)
        return msgspec.structs.replace(evidence, one_class=one_class)

    def _compared(self, strategy: Strategy, state: ClientState) -> ComparedExamples:
        own, network = self._own, strategy.client_model(state)
        with self.meter.phase("evaluate"):
            before = self._scores(self.model.network, own.x_test, None)
            now = self._scores(network, own.x_test, strategy.client_score(state))
        return compare(self.task, before, now, own.y_test)

    def hold_out(
        self, strategy: Strategy, payload: Payload, *, fold: int, seed: int
    ) -> ComparedExamples:
        """A personal model that has not seen a fold of a round's training part, compared on that.

        As of a device that joins in this round: what it keeps from earlier ones has seen the fold.
        The time goes to the phase ``gate``, whatever else the device does meanwhile.

        Args:
            strategy: of the federation.
            payload: of the round.
            fold: below ``gate.FOLDS``.
            seed: of the federation.

        Returns:
            No examples where the fold has none, there are too few others, or training diverges.

        Raises:
            TrainingCancelledError: ``cancelled`` is set.
        """
        held = folds_of(self._data.at(payload.round_id).y_train, FOLDS) == fold
        apart = Meter()
        tester = self._without(held, payload.round_id, apart) if held.any() else None
        if tester is None:
            return ComparedExamples()
        try:
            state, _ = tester.train(strategy, None, payload, seed=seed)
            return tester._compared(strategy, state)  # noqa: SLF001 - another of this class
        except DivergedError:
            return ComparedExamples()
        finally:
            self.meter.count("gate", apart.take())

    def statistics(
        self, network: Network, *, view: View | None = None, score: Score | None = None
    ) -> Statistics | None:
        """Statistics of a model on the own test part as ``view`` shows it."""
        own = self._own
        with self.meter.phase("evaluate"):
            x = own.x_test if view is None else view(own.x_test, own.boxes_test)
            return self._count(self._scores(network, x, score), own.y_test)

    def window_scores(
        self, network: Network, *, score: Score | None = None
    ) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        """Scores a model by the programs that training has loaded, window by window.

        ``score`` classifies the features in place of the model's head.
        """
        return lambda x: self._scores(network, x, score, batch_size=1)

    def take_costs(self, strategy: Strategy, state: ClientState) -> Costs:
        """Measure inference with the model of ``state``, and take what was spent up to now."""
        scores = self.window_scores(
            strategy.client_model(state), score=strategy.client_score(state)
        )
        self.measure_inference(scores)
        return msgspec.structs.replace(self.meter.take(), backend=self._programs.backend)

    def measure_inference(
        self, scores: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    ) -> None:
        """Time ``scores`` on single windows, as a device in use would call it."""
        own = self._own
        x = own.x_test if len(own.y_test) else own.x_train
        with self.meter.phase("infer"):
            measure_windows(self.meter, scores, x)

    def _tools(self, grad_fns: Mapping[str, GradFn], rng: np.random.Generator) -> ClientTools:
        own, programs = self._own, self._programs
        return ClientTools(
            client_id=self.device_id,
            training=TrainTools(
                name=f"client '{self.device_id}'",
                x=own.x_train,
                y=own.y_train,
                grad_fns=grad_fns,
                min_batch=programs.min_batch,
                rng=rng,
            ),
            boxes=own.boxes_train,
            predict=partial(programs.predict, batch_size=EVALUATION_BATCH),
            features=partial(programs.features, batch_size=EVALUATION_BATCH),
            layers=self._layers,
            evaluate=self.evaluate,
            statistics=self.statistics,
        )

    def _layers(
        self, network: Network, x: NDArray[np.float32]
    ) -> Mapping[str, NDArray[np.float32]]:
        return self._programs.layers(network, x, batch_size=EVALUATION_BATCH)

    def _scores(
        self,
        network: Network,
        x: NDArray[np.float32],
        score: Score | None,
        *,
        batch_size: int = EVALUATION_BATCH,
    ) -> NDArray[np.float32]:
        if score is None:
            return self._programs.predict(network, x, batch_size=batch_size)
        return score(self._programs.features(network, x, batch_size=batch_size))

    def _count(self, scores: NDArray[np.float32], y: NDArray[Any]) -> Statistics | None:
        if not len(y):
            return None
        return self.task.statistics(scores, y, len(self.manifest.outputs))


def trained_figures(trained: TrainedRound, task: LearningTask) -> dict[str, Any]:
    """What a person or a program wants to know of a trained round."""
    own, costs = trained.update.evaluation.kept, trained.costs
    return {
        "round_id": trained.update.round_id,
        "num_examples": trained.update.num_examples,
        "loss": trained.update.loss,
        task.headline: None if own is None else defined(task.score(own)).get(task.headline),
        "train_s": costs.phases_s.get("train", 0.0),
        "train_step_ms": msgspec.to_builtins(percentiles(costs.train_step_ms, 50, 95)),
        "infer_ms": msgspec.to_builtins(percentiles(costs.infer_ms, 50, 95, 99)),
        "peak_rss_bytes": costs.peak_rss_bytes,
    }


def check_data(data: LocalData, manifest: Manifest) -> None:
    """Raise InputError unless the examples are what the bundle's programs take."""
    parts: dict[str, NDArray[np.float32]] = {}
    for suffix, own in (("", data.own), *((f" from round {r}", own) for r, own in data.later)):
        _check_outputs(suffix, own, manifest)
        parts |= {f"x_train{suffix}": own.x_train, f"x_test{suffix}": own.x_test}
    expected = manifest.preprocessing.input_shape
    if data.pooled is not None:
        parts["pooled x_test"] = data.pooled[0]
    for name, x in parts.items():
        if len(x) and x.shape[1:] != expected:
            raise InputError(
                f"device data: expected {name} (n, {', '.join(map(str, expected))}) as the "
                f"bundle's input, got {x.shape}"
            )
        check_tokens(f"device data: {name}", x, manifest.preprocessing.tokens)
    if data.pooled is not None:
        _check_labels("pooled y_test", data.pooled[1], manifest)


def _check_outputs(suffix: str, own: DeviceData, manifest: Manifest) -> None:
    kind = kind_of(manifest.task)
    if (own.classes, own.targets) != (manifest.classes, manifest.targets):
        got = {"classes": list(own.classes), "targets": list(own.targets)}
        known = {name: names for name, names in got.items() if names}
        raise InputError(
            f"device data{suffix}: expected the bundle's {kind} {list(manifest.outputs)} "
            f"(task {manifest.task}), got {known or 'none'}"
        )
    for part in ("train", "test"):
        _check_labels(f"y_{part}{suffix}", getattr(own, f"y_{part}"), manifest)


def _check_labels(part: str, y: NDArray[Any], manifest: Manifest) -> None:
    TASKS[manifest.task].check_labels(f"device data: {part}", y, len(manifest.outputs))
    if manifest.task == "segmentation" and len(y) and y.shape[1] != manifest.steps:
        raise InputError(
            f"device data: {part}: expected (n, {manifest.steps}), a class for each step of the "
            f"bundle's outputs, got {y.shape}"
        )


class _Timed:
    """A training program that is timed, and waits or stops between steps when it is asked to."""

    def __init__(self, grad_fn: GradFn, learner: Learner) -> None:
        self._grad_fn, self._learner = grad_fn, learner

    def __call__(self, network: Network, batch: Batch, rng: np.random.Generator) -> Step:
        learner = self._learner
        if not learner.free.is_set():
            with learner.meter.phase("idle"):  # how fast the device is says nothing of its waits
                learner.free.wait()
        if learner.cancelled.is_set():
            raise TrainingCancelledError
        with learner.meter.train_step():
            return self._grad_fn(network, batch, rng)
