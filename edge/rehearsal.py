"""Whether a bundle trains on this device: some steps with its own settings, before it is used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from protofleet.bundle import Bundle
from protofleet.edge.learning.training import LocalData, check_data
from protofleet.edge.learning.trial import training_of
from protofleet.errors import InputError
from protofleet.federation.records import percentiles
from protofleet.runtime import BackendName, Programs, open_programs
from protofleet.strategies.optimisers import Group
from protofleet.strategies.tasks import TASKS
from protofleet.strategies.training import (
    DivergedError,
    ExampleRows,
    LocalObjective,
    Trainer,
    Training,
    batches,
)
from protofleet.strategies.types import TASK_LOSS, TrainTools
from protofleet.tensors import Model, Network

_STEPS = 30
_EXPLODED = 4.0
"""Times the loss of the bundle's own model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A short training with the bundle's own settings.

    Attributes:
        start_loss: of the batches before any training; None: there are no examples to train on.
        end_loss: mean of the last third of the steps.
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
    training = training_of(bundle, model, None)
    return _Steps(model, programs, data, training).rehearsal()


class _Steps:
    """Short runs that begin with the bundle's values and the same randomness."""

    def __init__(
        self, model: Model, programs: Programs, data: LocalData, training: Training
    ) -> None:
        self._model, self._programs, self._training = model, programs, training
        self._own = data.own
        self._step_ms: list[float] = []
        self._loss = TASKS[model.task].loss_of(programs.grad_fns)
        self._objective = self._plain_objective()

    def rehearsal(self) -> Rehearsal:
        """A run with the bundle's rate beside one that changes nothing."""
        rate = self._training.optimiser.lr
        start, end = self._loss_after(0.0), self._loss_after(rate)
        if start is None or end is None or end > _EXPLODED * max(start, 1e-3):
            raise InputError(
                f"rehearsal: expected a loss that stays near {_number(start)}, that of the "
                f"bundle's own model, after {_STEPS} steps at learning rate {rate:g}, got "
                f"{_number(end)}"
            )
        step_ms = percentiles(self._step_ms[1:], 50, 95).p50
        return Rehearsal(start_loss=start, end_loss=end, step_ms=step_ms)

    def _loss_after(self, rate: float) -> float | None:
        """Mean loss of the last third of some steps with one rate; None if it diverged."""
        losses = list(self._losses(rate))
        if len(losses) < _STEPS:
            return None
        return float(np.mean(losses[-_STEPS // 3 :]))

    def _losses(self, rate: float) -> Iterator[float]:
        """Loss before each step; ends where it is not finite any more."""
        network = Network(params=self._model.params, buffers=self._model.buffers).copy()
        tools = self._tools()
        group = Group(optimiser=msgspec.structs.replace(self._training.optimiser, lr=rate))
        fit = LocalObjective(loss=self._objective, groups=(group,))
        trainer = Trainer(network, tools, self._training, fit)
        rows = self._rows(tools)
        for _ in range(_STEPS):
            started = time.perf_counter()
            try:
                loss = trainer.step(next(rows))
            except DivergedError:
                return
            self._step_ms.append(1e3 * (time.perf_counter() - started))
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
            name="rehearsal",
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
                trainer = Trainer(network, tools, self._training, LocalObjective(loss=name))
                trainer.step(next(self._rows(tools)))
            except DivergedError as error:
                raise InputError(f"{error}; this is the bundle's own model, untrained") from error
            except (InputError, KeyError):
                continue
            return name
        raise InputError(
            f"rehearsal: expected a training program that needs examples and labels alone, the "
            f"bundle has {', '.join(sorted(known)) or 'none'}; export with --strategy fedavg too"
        )


def _number(loss: float | None) -> str:
    return "one that is not finite" if loss is None else f"{loss:.4g}"
