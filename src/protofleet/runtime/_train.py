"""A training program as the gradient function that strategies call."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Port
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._arrays import Arrays, Slots, check_map, resolve, views
from protofleet.runtime._program import InputStaging, LazyProgram
from protofleet.strategies.types import Batch, Step
from protofleet.tensors import Layout, Network, TensorMap


class TrainProgram:
    """Forward and backward over one batch (``strategies.types.GradFn``).

    Gradients and buffers come in this object's own memory: one for gradients, two for the buffers,
    so that a step may read the buffers that the step before wrote.
    """

    def __init__(self, source: LazyProgram) -> None:
        self._source = source
        self._loss_port = source.only_output("loss")
        self._in_params, self._in_buffers = source.inputs("param"), source.inputs("state")
        self._grads_out, self._buffers_out = source.outputs("grad"), source.outputs("state")
        self._staging = InputStaging(source.where, source.inputs("input"))
        self._noise_ports = _checked_noise(source)
        self._noise = Slots(self._noise_ports)
        self._loss = np.zeros(resolve(self._loss_port.shape, 1), np.float32)
        self._carried = _gaps(source.buffers, {port.key for port in self._buffers_out})

    @cached_property
    def _grads(self) -> TensorMap:
        return TensorMap.zeros(self._source.params)

    @cached_property
    def _new_buffers(self) -> tuple[TensorMap, TensorMap]:
        return TensorMap.zeros(self._source.buffers), TensorMap.zeros(self._source.buffers)

    def __call__(self, network: Network, batch: Batch, rng: np.random.Generator) -> Step:
        """Loss and gradients of ``batch`` at the network's parameters.

        Noise is drawn from ``rng`` in the order of the ports.

        Raises:
            InputError: parameters, buffers or batch have other shapes or dtypes than the program's,
                or there are fewer examples than it takes.
            ProvisionError: the program failed or does not fit its manifest.
        """
        check_map("params", network.params, self._source.params)
        check_map("buffers", network.buffers, self._source.buffers)
        if np.may_share_memory(network.params.buffer, self._grads.buffer):
            raise InputError("params: expected a buffer of the caller's, got Step.grads; copy it")
        with self._source.lock:
            return self._step(network, batch, rng)

    def _step(self, network: Network, batch: Batch, rng: np.random.Generator) -> Step:
        params, buffers = network.params, network.buffers
        size, least = self._staging.size(batch), self._source.program.min_batch
        if size < least:
            raise InputError(
                f"program '{self._source.where}': expected at least {least} examples, got {size}: "
                "the model normalises over the batch, and one example has no variance"
            )
        staged = self._staging.stage(batch, size)
        noise = self._noise.at(size)
        for port in self._noise_ports:
            _draw(noise[port.name], port, rng)
        new_buffers = self._next_buffers(buffers)

        def feed() -> tuple[Arrays, Arrays]:
            values = views(self._in_params, params) | views(self._in_buffers, buffers)
            results = views(self._grads_out, self._grads) | views(self._buffers_out, new_buffers)
            results[self._loss_port.name] = self._loss
            return {**values, **staged, **noise}, results

        key = (
            params.address,
            buffers.address,
            new_buffers.address,
            size,
            self._staging.generation,
            self._noise.generation,
        )
        self._source.runner.run(key, feed)
        return Step(loss=float(self._loss.item()), grads=self._grads, buffers=new_buffers)

    def _next_buffers(self, buffers: TensorMap) -> TensorMap:
        """Memory for the new buffers, with what the program does not write carried over."""
        if not self._buffers_out:
            return buffers
        first, second = self._new_buffers
        chosen = second if np.may_share_memory(buffers.buffer, first.buffer) else first
        for run in self._carried:
            chosen.buffer[run] = buffers.buffer[run]
        return chosen


def _draw(out: NDArray[np.float32], port: Port, rng: np.random.Generator) -> None:
    if port.distribution == "uniform":
        rng.random(out=out, dtype=np.float32)
    else:
        rng.standard_normal(out=out, dtype=np.float32)


def _checked_noise(source: LazyProgram) -> tuple[Port, ...]:
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
