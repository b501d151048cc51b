"""A training program as the gradient function that strategies call."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Port
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._arrays import Arrays, Slots, address, check_map, resolve, views
from protofleet.runtime._program import Intake, Source
from protofleet.strategies.types import Batch, Step
from protofleet.tensors import Layout, TensorMap


class TrainProgram:
    """Forward and backward over one batch (``strategies.types.GradFn``).

    Gradients and state come in this object's own buffers: one for gradients, two for the state,
    so that a step may read the state that the step before wrote.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loss_port = source.only_output("loss")
        self._in_params, self._in_state = source.inputs("param"), source.inputs("state")
        self._grads_out, self._state_out = source.outputs("grad"), source.outputs("state")
        self._intake = Intake(source.where, source.inputs("input"))
        self._noise_ports = _checked_noise(source)
        self._noise = Slots(self._noise_ports)
        self._loss = np.zeros(resolve(self._loss_port.shape, 1), np.float32)
        self._carried = _gaps(source.state, {port.key for port in self._state_out})

    @cached_property
    def _grads(self) -> TensorMap:
        return TensorMap.zeros(self._source.params)

    @cached_property
    def _states(self) -> tuple[TensorMap, TensorMap]:
        return TensorMap.zeros(self._source.state), TensorMap.zeros(self._source.state)

    def __call__(
        self, params: TensorMap, state: TensorMap, batch: Batch, rng: np.random.Generator
    ) -> Step:
        """Loss and gradients of ``batch`` at ``params``.

        Noise is drawn from ``rng`` in the order of the ports.

        Raises:
            InputError: parameters, state or batch have other shapes or dtypes than the program's.
            ProvisionError: the program failed or does not fit its manifest.
        """
        check_map("params", params, self._source.params)
        check_map("state", state, self._source.state)
        if np.may_share_memory(params.buffer, self._grads.buffer):
            raise InputError("params: expected a buffer of the caller's, got Step.grads; copy it")
        with self._source.lock:
            return self._step(params, state, batch, rng)

    def _step(
        self, params: TensorMap, state: TensorMap, batch: Batch, rng: np.random.Generator
    ) -> Step:
        size = self._intake.size(batch)
        staged = self._intake.stage(batch, size)
        noise = self._noise.at(size)
        for port in self._noise_ports:
            _draw(noise[port.name], port, rng)
        new_state = self._next_state(state)

        def feed() -> tuple[Arrays, Arrays]:
            values = views(self._in_params, params) | views(self._in_state, state)
            results = views(self._grads_out, self._grads) | views(self._state_out, new_state)
            results[self._loss_port.name] = self._loss
            return {**values, **staged, **noise}, results

        key = (
            address(params.buffer),
            address(state.buffer),
            address(new_state.buffer),
            size,
            self._intake.generation,
            self._noise.generation,
        )
        self._source.runner.run(key, feed)
        return Step(loss=float(self._loss.item()), grads=self._grads, state=new_state)

    def _next_state(self, state: TensorMap) -> TensorMap:
        """The buffer for the new state, with what the program does not write carried over."""
        if not self._state_out:
            return state
        first, second = self._states
        chosen = second if np.may_share_memory(state.buffer, first.buffer) else first
        for run in self._carried:
            chosen.buffer[run] = state.buffer[run]
        return chosen


def _draw(out: NDArray[np.float32], port: Port, rng: np.random.Generator) -> None:
    if port.distribution == "uniform":
        rng.random(out=out, dtype=np.float32)
    else:
        rng.standard_normal(out=out, dtype=np.float32)


def _checked_noise(source: Source) -> tuple[Port, ...]:
    ports = source.inputs("noise")
    for port in ports:
        if port.distribution is None or port.dtype != "float32":
            raise ProvisionError(
                f"program '{source.where}', noise '{port.name}': expected float32 with a "
                f"distribution, got {port.dtype} and {port.distribution}"
            )
    return ports


def _gaps(layout: Layout, written: set[str]) -> tuple[slice, ...]:
    """Runs of the buffer that hold no tensor of ``written``."""
    runs: list[slice] = []
    for spec in layout.specs:
        if spec.name in written:
            continue
        start = spec.offset
        if runs and runs[-1].stop == start:
            start = runs.pop().start
        runs.append(slice(start, spec.offset + spec.size))
    return tuple(runs)
