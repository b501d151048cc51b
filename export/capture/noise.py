"""Explicit randomness: every random operator of a model draws from arrays that are passed in.

A program's randomness enters through ``noise`` ports, so that every backend and every rerun
agrees. Two kinds of arrays are enough: uniform on [0, 1) and standard normal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.fx import traceback as fx_traceback
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from protofleet.errors import ExportError
from protofleet.export.capture.override_python import plain_python

Distribution = Literal["uniform", "normal"]
Draw = Callable[[Sequence[Any], Distribution], Tensor]
"""Gives an array of a shape (integers, or symbolic ones while tracing) and distribution."""

_aten = torch.ops.aten
_KEY = "protofleet_noise"
_TINY = 2.0**-25  # half of the smallest uniform number above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRequest:
    """One random array that a model asks for, in the order of its forward pass."""

    shape: tuple[Any, ...]
    distribution: Distribution


class NoiseRecorder:
    """A ``Draw`` whose answers are nodes of the graph that is traced; ``as_inputs`` finds them."""

    def __init__(self) -> None:
        self.requests: list[NoiseRequest] = []

    def __call__(self, shape: Sequence[Any], distribution: Distribution) -> Tensor:
        """Note the request; zeros of its shape."""
        number = len(self.requests)
        self.requests.append(NoiseRequest(shape=tuple(shape), distribution=distribution))
        with fx_traceback.annotate({_KEY: number}):
            return torch.zeros(tuple(shape))


def as_inputs(graph: fx.Graph, count: int) -> None:
    """Append a placeholder for each request, used where its answer was."""
    answers = {
        node.meta["custom"][_KEY]: node
        for node in graph.find_nodes(op="call_function", target=_aten.zeros.default)
        if _KEY in node.meta.get("custom", {})
    }
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for number in range(count):
        with graph.inserting_before(first):
            drawn = graph.placeholder(f"noise_{number}")
        if (answer := answers.get(number)) is not None:  # one that nothing uses is not recorded
            drawn.meta = dict(answer.meta)
            answer.replace_all_uses_with(drawn)
            graph.erase_node(answer)


@contextmanager
def explicit_noise(draw: Draw) -> Iterator[None]:
    """Inside, random operators use ``draw`` instead of a generator.

    Attention is computed by its plain formula: a fused kernel hides its dropout, and PyTorch's fast
    path for encoders in evaluation gathers what no mask hides, which has no fixed size.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with plain_python(), sdpa_kernel(SDPBackend.MATH), _NoiseMode(draw):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _NoiseMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, draw: Draw) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draw = draw

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        sampler = _SAMPLERS.get(func)
        if sampler is not None:
            return sampler(self._draw, *args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ExportError(
                f"random operator {func} has no explicit form: "
                "draw from torch.rand or torch.randn and compute the rest"
            )
        return func(*args, **(kwargs or {}))


def _bernoulli_p(draw: Draw, like: Tensor, p: float = 0.5, **_: Any) -> Tensor:
    return (draw(like.shape, "uniform") < p).to(like.dtype)


def _bernoulli(draw: Draw, probabilities: Tensor, **_: Any) -> Tensor:
    return (draw(probabilities.shape, "uniform") < probabilities).to(probabilities.dtype)


def _bernoulli_tensor(draw: Draw, like: Tensor, p: Tensor, **_: Any) -> Tensor:
    return (draw(like.shape, "uniform") < p).to(like.dtype)


def _native_dropout(draw: Draw, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:  # noqa: FBT001 - the operator's signature
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    keep = draw(x.shape, "uniform") < 1 - p
    return x * keep / (1 - p), keep


def _exponential(draw: Draw, like: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    # Above 0, whose logarithm would be infinite.
    return (-torch.log1p(-draw(like.shape, "uniform"))).clamp(min=_TINY) / rate


def _rrelu(  # noqa: PLR0913, PLR0917 - the operator's signature
    draw: Draw,
    x: Tensor,
    noise: Tensor,
    low: float = 1 / 8,
    high: float = 1 / 3,
    training: bool = False,  # noqa: FBT001, FBT002 - as above
    generator: None = None,  # noqa: ARG001 - as above
) -> Tensor:
    if not training:
        return functional.leaky_relu(x, (low + high) / 2)
    slope = draw(x.shape, "uniform") * (high - low) + low
    noise.copy_(torch.where(x <= 0, slope, torch.ones_like(x)))
    return x * noise


def _rand(draw: Draw, size: Sequence[Any], **_: Any) -> Tensor:
    return draw(size, "uniform").clone()


def _randn(draw: Draw, size: Sequence[Any], **_: Any) -> Tensor:
    return draw(size, "normal").clone()


def _rand_like(draw: Draw, like: Tensor, **_: Any) -> Tensor:
    return draw(like.shape, "uniform").clone()


def _randn_like(draw: Draw, like: Tensor, **_: Any) -> Tensor:
    return draw(like.shape, "normal").clone()


def _uniform(draw: Draw, like: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return draw(like.shape, "uniform") * (high - low) + low


def _normal(draw: Draw, like: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return draw(like.shape, "normal") * std + mean


def _randint(draw: Draw, high: int, size: Sequence[Any], **_: Any) -> Tensor:
    return (draw(size, "uniform") * high).to(torch.int64)


def _randint_low(draw: Draw, low: int, high: int, size: Sequence[Any], **_: Any) -> Tensor:
    return (draw(size, "uniform") * (high - low)).to(torch.int64) + low


def _in_place(sampler: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fill(draw: Draw, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return target.copy_(sampler(draw, target, *args, **kwargs))

    return fill


_SAMPLERS: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli.default: _bernoulli,
    _aten.bernoulli.p: _bernoulli_p,
    _aten.bernoulli.Tensor: _bernoulli_tensor,
    _aten.bernoulli_.float: _in_place(_bernoulli_p),
    _aten.bernoulli_.Tensor: _in_place(_bernoulli_tensor),
    _aten.exponential.default: _exponential,
    _aten.exponential_.default: _in_place(_exponential),
    _aten.native_dropout.default: _native_dropout,
    _aten.rrelu_with_noise.default: _rrelu,
    _aten.rand.default: _rand,
    _aten.rand_like.default: _rand_like,
    _aten.randn.default: _randn,
    _aten.randn_like.default: _randn_like,
    _aten.randint.default: _randint,
    _aten.randint.low: _randint_low,
    _aten.uniform.default: _uniform,
    _aten.uniform_.default: _in_place(_uniform),
    _aten.normal_.default: _in_place(_normal),
    _aten.normal_functional.default: _normal,
}
