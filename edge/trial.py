"""A short trial of a bundle on a device's own data: which learning rate, and what a round costs.

The learning rate is found as in L. N. Smith, "Cyclical learning rates for training neural
networks" (arXiv:1506.01186), section 3.3: one run of steps in which the rate grows geometrically
until the loss explodes. A tenth of the rate at the lowest smoothed loss, a third and three times of
that, and the bundle's own rate then train the same steps from the same start; what they gain is
told from the loss of the very same batches without training. The smallest rate is
advised that gains almost as much as the best: a device has few examples, and averaging wants models
that stay close.

Nothing is sent or stored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from protofleet.bundle import Bundle
from protofleet.edge.meter import peak_rss_bytes
from protofleet.edge.training import LocalData, check_data
from protofleet.errors import InputError
from protofleet.federation.records import Percentiles, percentiles
from protofleet.kernels import set_threads
from protofleet.runtime import BackendName, Programs, open_programs
from protofleet.strategies import build
from protofleet.strategies.optimisers import Adam, Group, Sgd
from protofleet.strategies.tasks import TASKS
from protofleet.strategies.training import (
    DivergedError,
    ExampleRows,
    Fit,
    Trainer,
    Training,
    batches,
)
from protofleet.strategies.types import TASK_LOSS, TrainTools
from protofleet.tensors import Model, Network

LOWEST = 1e-6
HIGHEST = {"adam": 0.1, "sgd": 3.0}
RANGE_STEPS = 100
COMPARED_STEPS = 30
_SMOOTHING = 0.9
_EXPLODED = 4.0
_ALMOST = 0.8
_SHARES = (0.03, 0.1, 0.3)
"""Of the rate at the lowest loss: the smoothed minimum lies where training is about to break."""

Progress = Callable[[int, int], None]
"""Takes the steps that are done and all that there will be at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of it.

    Attributes:
        objective: the training program that was run.
        kind: of the optimiser, ``adam`` or ``sgd``.
        learning_rate: the advised one.
        compared: mean loss at the end of ``COMPARED_STEPS`` steps, by learning rate; None where it
            diverged.
        bundle_rate: the bundle's own, if it has one for this optimiser.
        start_loss: of the batches of ``compared`` before any training.
        curve: smoothed loss by learning rate, of the range test.
        examples, batch_size, epochs: of a round.
        step_ms: forward, backward and optimiser.
        round_s: all steps of a round, without evaluation and transfer.
        peak_rss_bytes: of this process.
        backend: who ran the programs.
    """

    objective: str
    kind: str
    learning_rate: float
    compared: dict[float, float | None]
    bundle_rate: float | None
    start_loss: float
    curve: tuple[tuple[float, float], ...]
    examples: int
    batch_size: int
    epochs: int
    step_ms: Percentiles
    round_s: float
    peak_rss_bytes: int
    backend: str


def try_bundle(  # noqa: PLR0913 - the command's options, each by its name
    bundle: Bundle,
    data: LocalData,
    *,
    optimiser: str | None,
    threads: int,
    backend: BackendName,
    progress: Progress,
) -> Trial:
    """Train a little on the data's training part.

    Args:
        bundle: verified.
        data: the device's own.
        optimiser: ``adam`` or ``sgd``; None: the bundle's, else the first that its strategy takes.
        threads: of the runtime and the kernels.
        backend: who runs the programs.
        progress: told after every step.

    Raises:
        InputError: the data do not fit the bundle, have no training part, or no rate trains.
        ProvisionError: the backend cannot run the bundle.
    """
    check_data(data, bundle.manifest)
    if not len(data.own.y_train):
        raise InputError("device data: expected training examples to try, got none")
    set_threads(threads)
    model = bundle.model()
    programs = open_programs(bundle, threads=threads, backend=backend)
    if len(data.own.y_train) < programs.min_batch:
        raise InputError(
            f"device data: expected at least {programs.min_batch} training examples, got "
            f"{len(data.own.y_train)}: the model normalises over a batch"
        )
    settings = _training(bundle, model, optimiser)
    return _Trial(model, programs, data, settings, progress).run(_own_rate(bundle, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A short training with the bundle's own settings.

    Attributes:
        start_loss: of the batches before any training; None: there are no examples to train on.
        end_loss: mean at the end of ``COMPARED_STEPS`` steps.
        step_ms: median.
    """

    start_loss: float | None
    end_loss: float | None
    step_ms: float | None


def rehearse(bundle: Bundle, data: LocalData, *, threads: int, backend: BackendName) -> Rehearsal:
    """Whether a bundle trains on this device: its programs run, and its loss does not explode.

    Args:
        bundle: verified.
        data: the device's own.
        threads: of the runtime.
        backend: who runs the programs.

    Raises:
        InputError: the data do not fit the bundle, or its own settings train no model.
        ProvisionError: the backend cannot run the bundle.
    """
    check_data(data, bundle.manifest)
    programs = open_programs(bundle, threads=threads, backend=backend)
    if len(data.own.y_train) < programs.min_batch:
        return Rehearsal(start_loss=None, end_loss=None, step_ms=None)
    model = bundle.model()
    settings = _training(bundle, model, None)
    run = _Trial(model, programs, data, settings, lambda _done, _total: None)
    return run.rehearsal(settings.optimiser.lr)


class _Trial:
    """The runs of one trial; all begin with the bundle's values and the same randomness."""

    def __init__(
        self,
        model: Model,
        programs: Programs,
        data: LocalData,
        training: Training,
        progress: Progress,
    ) -> None:
        self._model, self._programs, self._training = model, programs, training
        self._own, self._progress = data.own, progress
        self._step_ms: list[float] = []
        self._done = 0
        self._total = RANGE_STEPS + COMPARED_STEPS * (len(_SHARES) + 2)
        self._loss = TASKS[model.task].loss_of(programs.grad_fns)
        self._objective = self._plain_objective()

    def run(self, own_rate: float | None) -> Trial:
        curve = self._range_test()
        lowest = min(curve, key=lambda point: point[1])[0]
        rates = {_rounded(lowest * share) for share in _SHARES}
        rates |= set() if own_rate is None else {own_rate}
        start = self._loss_after(0.0)
        if start is None:
            raise InputError("trial: the loss of the bundle's own model is not finite")
        compared = {rate: self._loss_after(rate) for rate in sorted(rates)}
        training, count = self._training, len(self._own.y_train)
        steps = training.epochs * math.ceil(count / training.batch_size)
        step_ms = percentiles(self._step_ms[1:] or self._step_ms, 50, 95)
        return Trial(
            objective=self._objective,
            kind=_kind(training.optimiser),
            learning_rate=_advised(compared, start),
            compared=compared,
            bundle_rate=own_rate,
            start_loss=start,
            curve=curve,
            examples=count,
            batch_size=training.batch_size,
            epochs=training.epochs,
            step_ms=step_ms,
            round_s=steps * (step_ms.p50 or 0.0) / 1e3,
            peak_rss_bytes=peak_rss_bytes(),
            backend=self._programs.backend,
        )

    def rehearsal(self, rate: float) -> Rehearsal:
        """A run with one rate beside one that changes nothing."""
        start, end = self._loss_after(0.0), self._loss_after(rate)
        if start is None or end is None or end > _EXPLODED * max(start, 1e-3):
            raise InputError(
                f"rehearsal: expected a loss that stays near {_number(start)}, that of the "
                f"bundle's own model, after {COMPARED_STEPS} steps at learning rate {rate:g}, got "
                f"{_number(end)}"
            )
        step_ms = percentiles(self._step_ms[1:], 50, 95).p50
        return Rehearsal(start_loss=start, end_loss=end, step_ms=step_ms)

    def _range_test(self) -> tuple[tuple[float, float], ...]:
        """Smoothed loss before the step with each rate, up to where it explodes."""
        curve: list[tuple[float, float]] = []
        highest = HIGHEST[_kind(self._training.optimiser)]
        rates = np.geomspace(LOWEST, highest, RANGE_STEPS).tolist()
        mean, best = 0.0, math.inf
        for number, loss in enumerate(self._losses(rates), 1):
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            smooth = mean / (1 - _SMOOTHING**number)
            curve.append((rates[number - 1], smooth))
            best = min(best, smooth)
            if smooth > _EXPLODED * max(best, 1e-3):
                break
        return tuple(curve)

    def _loss_after(self, rate: float) -> float | None:
        """Mean loss of the last third of some steps with one rate; None if it diverged."""
        losses = list(self._losses([rate] * COMPARED_STEPS))
        if len(losses) < COMPARED_STEPS:
            return None
        return float(np.mean(losses[-COMPARED_STEPS // 3 :]))

    def _losses(self, rates: list[float]) -> Iterator[float]:
        """Loss before each step; ends where it is not finite any more."""
        network = Network(params=self._model.params, buffers=self._model.buffers).copy()
        tools = self._tools()
        rows, moments = self._rows(tools), None
        for rate in rates:
            group = Group(optimiser=msgspec.structs.replace(self._training.optimiser, lr=rate))
            fit = Fit(objective=self._objective, groups=(group,), moments=moments)
            started = time.perf_counter()
            trainer = Trainer(network, tools, self._training, fit)
            try:
                loss = trainer.step(next(rows))
            except DivergedError:
                return
            self._step_ms.append(1e3 * (time.perf_counter() - started))
            trained = trainer.trained(loss)
            network, moments = trained.network, trained.moments()
            self._done += 1
            self._progress(self._done, self._total)
            yield loss

    def _rows(self, tools: TrainTools) -> Iterator[ExampleRows]:
        """Batches of epochs without end, alike in size: the loss of a small rest is noise."""
        count = len(self._own.y_train)
        whole = count >= self._training.batch_size
        training = msgspec.structs.replace(self._training, drop_last=whole)
        while True:
            yield from batches(count, training, tools)

    def _tools(self) -> TrainTools:
        return TrainTools(
            name="trial",
            x=self._own.x_train,
            y=self._own.y_train,
            grad_fns=self._programs.grad_fns,
            rng=np.random.default_rng(0),
            min_batch=self._programs.min_batch,
        )

    def _plain_objective(self) -> str:
        """A training program that needs nothing but examples and labels."""
        known = self._programs.grad_fns.keys() - {TASK_LOSS}
        for name in sorted(known, key=lambda name: (name != self._loss, name)):
            network = Network(params=self._model.params, buffers=self._model.buffers).copy()
            tools = self._tools()
            try:
                trainer = Trainer(network, tools, self._training, Fit(objective=name))
                trainer.step(next(self._rows(tools)))
            except DivergedError as error:
                raise InputError(f"{error}; this is the bundle's own model, untrained") from error
            except (InputError, KeyError):
                continue
            return name
        raise InputError(
            f"trial: expected a training program that needs examples and labels alone, the bundle "
            f"has {', '.join(sorted(known)) or 'none'}; export with --strategy fedavg too"
        )


def _training(bundle: Bundle, model: Model, optimiser: str | None) -> Training:
    """The bundle's settings of local training, with an optimiser that its strategy takes.

    Raises:
        InputError: the strategy takes none of that kind.
    """
    declared = bundle.manifest.strategy
    known: Mapping[str, Any] = declared.settings
    own = {key: known[key] for key in Training.__struct_fields__ if key in known}
    own.pop("optimiser", None)
    given = dict(known.get("optimiser") or {})
    kinds = [optimiser] if optimiser else list(dict.fromkeys((given.get("kind"), "adam", "sgd")))
    for kind in filter(None, kinds):
        table = given if kind == given.get("kind") else {"kind": kind}
        try:
            build(declared.name, {**known, "optimiser": table}, model)
        except InputError as error:
            refused = error
            continue
        return msgspec.convert({**own, "optimiser": table}, Training)
    raise refused


def _advised(compared: Mapping[float, float | None], start: float) -> float:
    """The smallest rate whose loss falls almost as far as with the best."""
    gains = {rate: start - loss for rate, loss in compared.items() if loss is not None}
    best = max(gains.values(), default=0.0)
    if best <= 0:
        raise InputError(
            f"trial: no learning rate among {', '.join(f'{rate:g}' for rate in compared)} lowers "
            f"the loss of {start:.4g}; check the data's scale and labels"
        )
    return min(rate for rate, gain in gains.items() if gain >= _ALMOST * best)


def _own_rate(bundle: Bundle, training: Training) -> float | None:
    given = bundle.manifest.strategy.settings.get("optimiser") or {}
    same = given.get("kind") == _kind(training.optimiser)
    return float(given["lr"]) if same and "lr" in given else None


def _kind(optimiser: Adam | Sgd) -> str:
    return str(type(optimiser).__struct_config__.tag)


def _number(loss: float | None) -> str:
    return "one that is not finite" if loss is None else f"{loss:.4g}"


def _rounded(rate: float) -> float:
    """Two digits are more than such a test can tell."""
    return float(f"{rate:.2g}")
