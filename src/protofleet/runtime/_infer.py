"""A program without gradients, evaluated in batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import PENULTIMATE, Port
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._arrays import Arrays, Slots, check_map, views
from protofleet.runtime._program import InputStaging, LazyProgram
from protofleet.tensors import Network

LAYERS = "layers."
"""What the keys of hidden layers' activations begin with."""


class InferProgram:
    """Maps examples to some of its outputs, batch by batch in array order.

    Attributes:
        layers: keys of the outputs that are hidden layers' activations.
        tells_penultimate: whether it has what goes into the last layer of a head.
    """

    def __init__(self, source: LazyProgram, output: str) -> None:
        self._source = source
        self._main = output
        self.layers = tuple(p.key for p in source.outputs("output") if p.key.startswith(LAYERS))
        told = {p.key for p in source.outputs("output")}
        self.tells_penultimate = PENULTIMATE in told
        last = ((PENULTIMATE,),) if self.tells_penultimate else ()
        groups = ((output,), self.layers, *last)
        self._outputs = {key: _checked_output(source, key) for keys in groups for key in keys}
        self._out = {keys: Slots(tuple(self._outputs[key] for key in keys)) for keys in groups}
        self._groups = list(self._out)
        self._in_params, self._in_buffers = source.inputs("param"), source.inputs("state")
        self._staging = InputStaging(source.where, source.inputs("input"))
        if source.inputs("noise"):
            raise ProvisionError(f"program '{source.where}': expected no noise")

    def __call__(
        self, network: Network, x: NDArray[np.float32], batch_size: int
    ) -> NDArray[np.float32]:
        """The output for every row of ``x``, ``(n, …) float32``; the last batch may be partial.

        Raises:
            InputError: parameters, buffers or ``x`` have other shapes or dtypes than the program's.
            ProvisionError: the program failed or does not fit its manifest.
        """
        return self._evaluate(network, x, batch_size, (self._main,))[self._main]

    def activations(
        self, network: Network, x: NDArray[np.float32], batch_size: int
    ) -> dict[str, NDArray[np.float32]]:
        """The hidden layers' outputs by key, as ``__call__``."""
        return self._evaluate(network, x, batch_size, self.layers)

    def penultimate(
        self, network: Network, x: NDArray[np.float32], batch_size: int
    ) -> NDArray[np.float32]:
        """What goes into the last layer of the head, as ``__call__``."""
        return self._evaluate(network, x, batch_size, (PENULTIMATE,))[PENULTIMATE]

    def _evaluate(
        self,
        network: Network,
        x: NDArray[np.float32],
        batch_size: int,
        keys: tuple[str, ...],
    ) -> dict[str, NDArray[np.float32]]:
        if batch_size < 1:
            raise InputError(f"batch_size: expected at least 1, got {batch_size}")
        check_map("params", network.params, self._source.params)
        check_map("buffers", network.buffers, self._source.buffers)
        results = {key: self._empty(key, len(x)) for key in keys}
        with self._source.lock:
            for start in range(0, len(x), batch_size):
                rows = slice(start, start + batch_size)
                out = self._batch(network, x[rows], keys)
                for key, result in results.items():
                    result[rows] = out[self._outputs[key].name]
        return results

    def _empty(self, key: str, rows: int) -> NDArray[np.float32]:
        return np.zeros((rows, *(int(dim) for dim in self._outputs[key].shape[1:])), np.float32)

    def _batch(
        self,
        network: Network,
        x: NDArray[np.float32],
        keys: tuple[str, ...],
    ) -> Mapping[str, NDArray[np.float32]]:
        params, buffers = network.params, network.buffers
        batch = {"x": x}
        size = self._staging.size(batch)
        staged = self._staging.stage(batch, size)
        slots = self._out[keys]
        out = slots.at(size)

        def feed() -> tuple[Arrays, Arrays]:
            values = views(self._in_params, params) | views(self._in_buffers, buffers)
            return {**values, **staged}, out

        key = (
            params.address,
            buffers.address,
            size,
            self._staging.generation,
            slots.generation,
            self._groups.index(keys),
        )
        self._source.runner.run(key, feed)
        return out


def _checked_output(source: LazyProgram, key: str) -> Port:
    port = source.only_output("output", key)
    if port.shape[:1] != ("batch",) or not all(isinstance(dim, int) for dim in port.shape[1:]):
        raise ProvisionError(
            f"program '{source.where}': expected an output '{key}' of (batch, …), got {port.shape}"
        )
    return port
