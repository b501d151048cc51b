"""The two sides of the parity check that run in PyTorch: the module, and its captured graph.

Beside its results the module says how close its prototype assignments were to a tie, which another
float order would break.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from protofleet.errors import ExportError
from protofleet.export.capture import CapturedProgram, evaluate, model_tensors
from protofleet.export.capture.alp_nodes import node_attributes
from protofleet.export.capture.noise import Distribution, Draw, explicit_noise
from protofleet.export.capture.override_python import DataInPlace
from protofleet.export.classifier import ClassifierView
from protofleet.export.models.alp import assignment_scores, members, transport_plan
from protofleet.export.parity.inputs import Arrays, draw_inputs
from protofleet.strategies.training import REWRITTEN

_SAME = 1e-5

_SYMBOLIC = (
    torch.ops.onnx_symbolic._symbolic.default,  # noqa: SLF001 - its name
    torch.ops.onnx_symbolic._symbolic_multi_out.default,  # noqa: SLF001 - as above
)
_ALP: dict[Any, Any] = {
    "AlpAblationInfer": torch.ops.protofleet.alp_ablation_infer,
    "AlpAblationTrain": torch.ops.protofleet.alp_ablation_train,
    "AlpInfer": torch.ops.protofleet.alp_infer,
    "AlpTrain": torch.ops.protofleet.alp_train,
}


class Reference:
    """The user's module, on a copy of its own, as a function of the program's inputs.

    Attributes:
        params: ports of the parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        program: CapturedProgram,
        *,
        dtype: torch.dtype = torch.float32,
        tokens: int | None = None,
    ) -> None:
        self._model = _copied(model).train(program.objective is not None)
        self._program, self._dtype, self._tokens = program, dtype, tokens
        tensors = model_tensors(self._model)
        keys = (*tensors.params, *tensors.buffers)
        self._rewritten = tensors.rewritten
        self._model.to(dtype)
        named = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        # Views into the copy: writing to them sets the module's tensors.
        self._tensors = {key: named[key].detach() for key in keys}
        self.params = [port.name for port in program.inputs if port.role == "param"]
        self._initial = {key: value.numpy().copy() for key, value in self._tensors.items()}

    def draw(self, size: int, rng: np.random.Generator) -> Arrays:
        """Inputs by port name."""
        words = getattr(self._model, "vocabulary", None) if self._tokens is None else self._tokens
        return draw_inputs(self._program, self._initial, size, rng, vocabulary=words)

    def examples(self, rng: np.random.Generator) -> Tensor:
        """Two examples, (2, …)."""
        feed = self.draw(2, rng)
        (name,) = (p.name for p in self._program.inputs if (p.role, p.key) == ("input", "x"))
        return torch.from_numpy(feed[name])

    def __call__(self, feed: Arrays) -> tuple[Arrays, float]:
        """Expected outputs by port name, and the closest decision of an ALP layer."""
        program, batch = self._program, {}
        noise: dict[int, Tensor] = {}
        for port in program.inputs:
            if port.role in ("param", "state"):
                self._tensors[port.key].copy_(self._tensor(feed[port.name]))
            elif port.role == "input":
                batch[port.key] = self._tensor(feed[port.name])
            else:
                noise[int(port.key)] = self._tensor(feed[port.name])
        self._model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(program.objective is not None):
            with explicit_noise(_replay(noise)), _alp_margins() as margins, DataInPlace():
                loss, outputs = self._evaluated(batch)
            for name in self._rewritten:
                self._tensors[name + REWRITTEN].copy_(self._tensors[name])
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]
        return self._results(loss, outputs), min(margins, default=1.0)

    def _evaluated(self, batch: Mapping[str, Tensor]) -> tuple[Tensor | None, dict[str, Tensor]]:
        program = self._program
        try:
            return evaluate(
                ClassifierView(self._model, program.parts),
                program.objective,
                batch,
                features=program.features,
                layers=program.layers,
            )
        except IndexError as error:
            raise ExportError(
                f"model: fails on examples of random numbers: {error}; if it looks up rows by "
                "numbers of its examples, an attribute 'vocabulary' of the model says below which "
                "they lie"
            ) from error

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


def _copied(model: nn.Module) -> nn.Module:
    """A copy of its own.

    A tensor that a module computes and keeps, as ``torch.nn.utils.weight_norm`` does, has a
    history, with which it cannot be copied.
    """
    kept = [v for module in model.modules() for v in vars(module).values()]
    computed = {id(v): v.detach().clone() for v in kept if isinstance(v, Tensor) and not v.is_leaf}
    return copy.deepcopy(model, computed)


def _replay(noise: Mapping[int, Tensor]) -> Draw:
    """Hands out the noise by its number; what no result depends on has no port, and is zero."""
    numbers = itertools.count()

    def draw(shape: Sequence[Any], _distribution: Distribution) -> Tensor:
        given = noise.get(next(numbers))
        return torch.zeros(tuple(shape)) if given is None else given

    return draw


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
    """Asks for double precision where the graph asks for single; runs what writers spell out."""

    def run_node(self, n: fx.Node) -> Any:
        """As ``fx.Interpreter``, and ALP's nodes by the operators that they stand for."""
        if n.target not in _SYMBOLIC:
            return super().run_node(n)
        tensors, name, *_ = n.args
        given: Any = self.map_nodes_to_values(tensors, n)
        return _ALP[str(name)](*given, **node_attributes(n))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operator."""
        args, kwargs = tree_map(
            lambda v: torch.float64 if v is torch.float32 else v, (args, kwargs)
        )
        return super().call_function(target, args, kwargs)


def _in(dtype: torch.dtype, value: Tensor) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


@contextmanager
def _alp_margins() -> Iterator[list[float]]:
    """Collect, per ALP call inside, the smallest margin of its decisions.

    That is the relative gap between a chosen plan value and the best that was not chosen, in
    double precision.
    """
    found: list[float] = []
    with _MarginMode(found):
        yield found


class _MarginMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: list[float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if margin := _MARGINS.get(func):
            self._found.append(margin(*args))
        return func(*args, **(kwargs or {}))


def _train_margin(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    local: Tensor,
    global_: Tensor,
    variant: str,
    gamma: float,
    epsilon: float,
    iterations: int,
) -> float:
    how = variant, "both", "transport", gamma, epsilon, iterations
    return _ablation_train_margin(x, local, global_, *how)


def _infer_margin(x: Tensor, local: Tensor, epsilon: float, iterations: int) -> float:
    plan = transport_plan(x.flatten(0, 1).double(), local.double(), epsilon, iterations)
    return _gap(plan.T, local, k=1) if len(plan) > 1 else 1.0


def _ablation_train_margin(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    local: Tensor,
    global_: Tensor,
    variant: str,
    banks: str,
    assignment: str,
    _gamma: float,
    epsilon: float,
    iterations: int,
) -> float:
    rows, count = x.flatten(0, 1).double(), len(local)
    active = {"both": torch.cat((local, global_)), "local": local, "global": global_}[banks]
    plan = _positive(rows, active.double(), assignment, epsilon, iterations)
    if assignment == "transport" and len(rows) == 1:
        return 1.0
    choice = _gap(plan[:, -count:].T, local if banks == "local" else global_, k=1)
    if variant == "single_code":
        return min(choice, _gap(plan[:, :count].T, local, k=1))
    return min(choice, _gap(plan[:, :count], rows, k=members(variant, x, count)))


def _ablation_infer_margin(x: Tensor, prototypes: Tensor, assignment: str) -> float:
    rows = x.flatten(0, 1).double()
    return _gap(_positive(rows, prototypes.double(), assignment, 1.0, 0).T, prototypes, k=1)


def _positive(
    rows: Tensor, prototypes: Tensor, assignment: str, epsilon: float, iterations: int
) -> Tensor:
    """What is decided by, (N, P), in a form whose relative gaps say how close a decision is."""
    scores = assignment_scores(rows, prototypes, assignment, epsilon, iterations)
    if assignment == "transport":
        return scores
    return torch.exp(scores) if assignment == "cosine" else -1.0 / scores


_MARGINS: dict[Any, Callable[..., float]] = {
    torch.ops.protofleet.alp_train.default: _train_margin,
    torch.ops.protofleet.alp_infer.default: _infer_margin,
    torch.ops.protofleet.alp_ablation_train.default: _ablation_train_margin,
    torch.ops.protofleet.alp_ablation_infer.default: _ablation_infer_margin,
}


def _gap(plan: Tensor, candidates: Tensor, *, k: int) -> float:
    """Smallest relative difference, over columns, between the k-th and the next largest value.

    Args:
        plan: (n, m); the n candidates compete in every column.
        candidates: (n, d), what is chosen. Two that are equal may change places unseen: class
            tokens of different samples are, in the first block.
        k: number of candidates chosen per column.
    """
    if len(plan) <= k:
        return 1.0
    top = plan.topk(k + 1, dim=0)
    last, following = top.values[k - 1], top.values[k]
    difference = (candidates[top.indices[k - 1]] - candidates[top.indices[k]]).abs().amax(-1)
    same = difference <= _SAME * candidates.abs().max()
    gaps = torch.where(same, torch.ones_like(last), (last - following) / last)
    return float(gaps.min())
