"""A program without gradients, evaluated in batches."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._binding import Runner, Slots, address, bind_arrays, bind_map, check_map
from protofleet.runtime._program import Intake, Settings, Source
from protofleet.wire.tensors import TensorMap


class InferProgram:
    """Maps examples to one output, batch by batch in array order."""

    def __init__(self, source: Source, settings: Settings, output: str) -> None:
        self._source = source
        self._settings = settings
        self._output = source.only_output("output", output)
        self._in_params, self._in_state = source.inputs("param"), source.inputs("state")
        self._intake = Intake(source.program.file, source.inputs("input"))
        self._out = Slots((self._output,))
        if source.inputs("noise") or self._output.shape[:1] != ("batch",):
            raise ProvisionError(
                f"program '{source.program.file}': expected no noise and an output "
                f"'{output}' of (batch, …), got {self._output.shape}"
            )

    @cached_property
    def _runner(self) -> Runner:
        return self._source.open(self._settings)

    def __call__(
        self, params: TensorMap, state: TensorMap, x: NDArray[np.float32], batch_size: int
    ) -> NDArray[np.float32]:
        """The output for every row of ``x``, ``(n, …) float32``; the last batch may be partial.

        Raises:
            InputError: parameters, state or ``x`` have other shapes or dtypes than the program's.
            ProvisionError: the program failed or does not fit its manifest.
        """
        if batch_size < 1:
            raise InputError(f"batch_size: expected at least 1, got {batch_size}")
        check_map("params", params, self._source.params)
        check_map("state", state, self._source.state)
        tail = self._output.shape[1:]
        result = np.zeros((len(x), *(int(dim) for dim in tail)), np.float32)
        with self._source.lock:
            for start in range(0, len(x), batch_size):
                rows = slice(start, start + batch_size)
                result[rows] = self._batch(params, state, x[rows])
        return result

    def _batch(
        self, params: TensorMap, state: TensorMap, x: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        batch = {"x": x}
        size = self._intake.size(batch)
        staged = self._intake.stage(batch, size)
        out = self._out.at(size)

        def bind(binding: Any) -> None:
            bind_map(binding.bind_input, self._in_params, params)
            bind_map(binding.bind_input, self._in_state, state)
            bind_arrays(binding.bind_input, staged)
            bind_arrays(binding.bind_output, out)

        key = (
            address(params.buffer),
            address(state.buffer),
            size,
            self._intake.generation,
            self._out.generation,
        )
        self._runner.run(key, bind)
        return out[self._output.name]
