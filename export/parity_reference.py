"""The two sides of the parity check that run in PyTorch: the module, and its captured graph."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from protofleet.export.alp_margin import alp_margins
from protofleet.export.capture import CapturedProgram, evaluate, model_tensors
from protofleet.export.noise import NoiseReplay, explicit_noise
from protofleet.export.parity_inputs import Arrays, draw_inputs


class Reference:
    """The user's module, on a copy of its own, as a function of the program's inputs.

    Attributes:
        params: ports of the parameters.
    """

    def __init__(
        self, model: nn.Module, program: CapturedProgram, *, dtype: torch.dtype = torch.float32
    ) -> None:
        self._model = copy.deepcopy(model).train(program.objective is not None)
        self._program, self._dtype = program, dtype
        tensors = model_tensors(self._model)
        keys = (*tensors.params, *tensors.state)
        self._model.to(dtype)
        named = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        # Views into the copy: writing to them sets the module's tensors.
        self._tensors = {key: named[key].detach() for key in keys}
        self.params = [port.name for port in program.inputs if port.role == "param"]
        self._initial = {key: value.numpy().copy() for key, value in self._tensors.items()}

    def draw(self, size: int, rng: np.random.Generator) -> Arrays:
        """Inputs by port name."""
        words = getattr(self._model, "vocabulary", None)
        return draw_inputs(self._program, self._initial, size, rng, vocabulary=words)

    def __call__(self, feed: Arrays) -> tuple[Arrays, float]:
        """Expected outputs by port name, and the closest decision of an ALP layer."""
        program, batch, noise = self._program, {}, []
        for port in program.inputs:
            if port.role in ("param", "state"):
                self._tensors[port.key].copy_(self._tensor(feed[port.name]))
            elif port.role == "input":
                batch[port.key] = self._tensor(feed[port.name])
            else:
                noise.append(self._tensor(feed[port.name]))
        self._model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(program.objective is not None):
            with explicit_noise(NoiseReplay(noise)), alp_margins() as margins:
                loss, outputs = evaluate(
                    self._model, program.objective, batch, features=program.features
                )
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]
        return self._results(loss, outputs), min(margins, default=1.0)

    def _results(self, loss: Tensor | None, outputs: Mapping[str, Tensor]) -> Arrays:
        params = dict(self._model.named_parameters())
        results: Arrays = {}
        for port in self._program.outputs:
            if port.role == "loss" and loss is not None:
                value: Tensor | None = loss
            elif port.role == "grad":
                value = params[port.key].grad
                value = torch.zeros_like(params[port.key]) if value is None else value
            else:
                value = self._tensors[port.key] if port.role == "state" else outputs[port.key]
            if value is not None:
                results[port.name] = value.detach().numpy().copy()
        return results

    def _tensor(self, value: NDArray[Any]) -> Tensor:
        return _in(self._dtype, torch.from_numpy(value))


def run_in_double(program: CapturedProgram, feed: Arrays) -> Arrays:
    """The captured graph's outputs by port name, every operator in double precision."""
    inputs = [torch.from_numpy(feed[port.name]) for port in program.inputs]
    placeholders = [_in(torch.float64, v) for v in (*_constants(program), *inputs)]
    with torch.no_grad():
        results = _Double(program.graph).run(*placeholders)
    ports = zip(program.outputs, results, strict=True)
    return {port.name: value.numpy() for port, value in ports}


def _constants(program: CapturedProgram) -> list[Tensor]:
    placeholders = program.graph.graph.find_nodes(op="placeholder")
    return [program.constants[n.name] for n in placeholders if n.name in program.constants]


class _Double(fx.Interpreter):
    """Asks for double precision where the graph asks for single."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operator."""
        args, kwargs = tree_map(
            lambda v: torch.float64 if v is torch.float32 else v, (args, kwargs)
        )
        return super().call_function(target, args, kwargs)


def _in(dtype: torch.dtype, value: Tensor) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value
