"""Records a pure function as one flat graph with a symbolic batch size.

Two passes: the first records forward and backward operators under autograd, and what randomness is
asked for becomes an input; the second makes writes functional and breaks operators down to those
that have an ONNX form.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any, Protocol

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from protofleet.errors import ExportError
from protofleet.export.capture.decompositions import backward_table, forward_table
from protofleet.export.capture.lookups import KnownValues, rewritten
from protofleet.export.capture.noise import (
    NoiseRecorder,
    NoiseRequest,
    as_inputs,
    explicit_noise,
)
from protofleet.export.capture.source import SourceTracker, place_of
from protofleet.export.source_locations import is_users, runs_models


class PureFunction(Protocol):
    """What is traced: writes to nothing that it was given."""

    def __call__(self, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All results."""


_BATCH_SIZES = (2, 3, 7, 64, 1000)
# A prime: PyTorch compares sizes while it traces, and a batch as large as some layer is wide would
# be taken for that width.
_TRACED_BATCH = 1009


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recorded function.

    Attributes:
        graph: placeholders are the fixed tensors, the batch, then the noise.
        noise: what the trailing placeholders are, shapes as in ``Port.shape``.
        batch_symbol: the batch size in the shapes of ``node.meta["val"]``.
    """

    graph: fx.GraphModule
    noise: tuple[NoiseRequest, ...]
    batch_symbol: sympy.Symbol


def trace(
    function: PureFunction,
    model: nn.Module,
    fixed: Sequence[Tensor],
    batch: Sequence[Tensor],
    *,
    constants: Mapping[int, Tensor],
) -> Trace:
    """Record ``function((*fixed, *batch))`` with a symbolic leading axis of all of ``batch``.

    Args:
        function: may draw random numbers.
        model: whose parts errors name.
        fixed: tensors of fixed shape.
        batch: tensors whose leading axis is the batch.
        constants: values that never change, by their place in ``fixed``.

    Raises:
        ExportError: see ``capture``.
    """
    shapes = ShapeEnv()
    fake = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    # What one trace learnt about the batch size is not true of the next.
    FakeTensorMode.cache_clear()
    inputs = _fake_inputs(fake, fixed, batch)
    size: Any = inputs[len(fixed)].shape[0]
    # Read now: once a trace has pinned the size to a number, the expression is that number.
    symbol = size.node.expr
    tracker = SourceTracker(model, backward_table())
    with fake:
        first, asked = _recorded(function, tracker, inputs)
        noise = tuple(_request(one, symbol) for one in asked)
        drawn = [torch.zeros([_of_batch(d, size) for d in r.shape]) for r in noise]
        graph = _broken_down(first, inputs, drawn, constants)
    _check_guards(shapes, symbol)
    return Trace(graph=graph, noise=noise, batch_symbol=symbol)


def _request(asked: NoiseRequest, symbol: sympy.Symbol) -> NoiseRequest:
    """With the shape as in ``Port.shape``."""
    shape = shape_template(asked.shape, symbol, "noise")
    return NoiseRequest(shape=shape, distribution=asked.distribution)


def shape_template(shape: Sequence[Any], symbol: sympy.Symbol, what: str) -> tuple[int | str, ...]:
    """A shape as in ``Port.shape``: integers, ``"batch"`` or ``"batch*8"``.

    Raises:
        ExportError: a dimension is another function of the batch size.
    """
    return tuple(_dimension(d, symbol, what) for d in shape)


def _dimension(size: Any, symbol: sympy.Symbol, what: str) -> int | str:
    if isinstance(size, int):
        return size
    factor = sympy.simplify(size.node.expr / symbol)
    if not factor.is_Integer:
        raise ExportError(
            f"{what}: expected a size that is fixed or a multiple of the batch size, "
            f"got {size.node.expr} with {symbol} = batch size"
        )
    return "batch" if factor == 1 else f"batch*{factor}"


def _of_batch(size: int | str, batch: Any) -> Any:
    if isinstance(size, int):
        return size
    return batch * int(size.removeprefix("batch").removeprefix("*") or 1)


def _fake_inputs(
    fake: FakeTensorMode, fixed: Sequence[Tensor], batch: Sequence[Tensor]
) -> list[Tensor]:
    inputs = [_fake_tensor(fake, t, str(i), dynamic=False) for i, t in enumerate(fixed)]
    first, *rest = batch
    inputs.append(_fake_tensor(fake, first, "batch", dynamic=True))
    size = inputs[-1].shape[0]
    with fake:
        return inputs + [torch.zeros((size, *t.shape[1:]), dtype=t.dtype) for t in rest]


def _fake_tensor(fake: FakeTensorMode, value: Tensor, name: str, *, dynamic: bool) -> Tensor:
    sizes = [DimDynamic.STATIC] * value.dim()
    if dynamic:
        sizes[0] = DimDynamic.DYNAMIC
    shape = (_TRACED_BATCH, *value.shape[1:]) if dynamic else value.shape
    # A contiguous stand-in: strides of the user's tensor must not become part of the program.
    return fake.from_tensor(
        torch.empty(shape, dtype=value.dtype),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes),
        source=ConstantSource(f"protofleet_{name}"),
    )


def _recorded(
    function: PureFunction, tracker: SourceTracker, inputs: Sequence[Tensor]
) -> tuple[fx.GraphModule, Sequence[NoiseRequest]]:
    """Forward and backward, and the noise that the placeholders behind the inputs stand for."""
    recorder = NoiseRecorder()

    @runs_models
    def joint(*args: Tensor) -> tuple[Tensor, ...]:
        with tracker.tracking(), explicit_noise(recorder):
            return function(args)

    module = make_fx(joint)(*inputs)
    as_inputs(module.graph, len(recorder.requests))
    module.graph.eliminate_dead_code()
    module.recompile()
    return module, recorder.requests


def _broken_down(
    first: fx.GraphModule,
    inputs: Sequence[Tensor],
    noise: Sequence[Tensor],
    constants: Mapping[int, Tensor],
) -> fx.GraphModule:
    placeholders = first.graph.find_nodes(op="placeholder")
    known = KnownValues(first, {placeholders[i]: value for i, value in constants.items()})

    def flat(*args: Tensor) -> Any:
        with fx_traceback.preserve_node_meta(), enable_python_dispatcher():
            return _Placed(first, known).run(*args)

    pure = functionalize(flat, remove="mutations")
    second = make_fx(pure, decomposition_table=forward_table())(*inputs, *noise)
    _multiply_sizes(second.graph, inputs, placeholder=len(inputs) - 1)
    second.graph.eliminate_dead_code()
    return second


class _Placed(fx.Interpreter):
    """Runs a graph; what a decomposition refuses is told with the place that asked for it."""

    def __init__(self, graph: fx.GraphModule, known: KnownValues) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self._known = known
        self._node: fx.Node

    def run_node(self, n: fx.Node) -> Any:
        """As ``fx.Interpreter``."""
        self._node = n
        try:
            return super().run_node(n)
        except (ExportError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ExportError(f"{place_of(n)}: {reason}") from error

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As ``fx.Interpreter``, but for lookups by known places, and views of whatever strides."""
        result = rewritten(self._node, self._known, args)
        if result is not NotImplemented:
            return result
        try:
            return super().call_function(target, args, kwargs)
        except (RuntimeError, ValueError):
            if target is not torch.ops.aten.view.default:
                raise
            # What an operator is broken down to may leave its result in another order.
            x, size = args
            return x.contiguous().view(size)


def _multiply_sizes(graph: fx.Graph, inputs: Sequence[Tensor], *, placeholder: int) -> None:
    """Compute every size that is a multiple of the batch size as just that multiple."""
    source = graph.find_nodes(op="placeholder")[placeholder]
    size: Any = inputs[placeholder].shape[0]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        batch = graph.call_function(torch.ops.aten.sym_size.int, (source, 0))
        batch.meta["val"] = size
    known: dict[int, fx.Node] = {1: batch}
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node is batch or not isinstance(value, torch.SymInt):
            continue
        factor = sympy.simplify(value.node.expr / size.node.expr)
        if not factor.is_Integer:
            continue
        if int(factor) not in known:
            with graph.inserting_after(batch):
                known[int(factor)] = graph.call_function(operator.mul, (batch, int(factor)))
            known[int(factor)].meta["val"] = value
        node.replace_all_uses_with(known[int(factor)])
        graph.erase_node(node)


def _check_guards(shapes: ShapeEnv, symbol: sympy.Symbol) -> None:
    """Refuse a trace that took a branch which another batch size would not take.

    Inequalities inside PyTorch choose between implementations of one operator; they are its own.
    """
    for guard in shapes.guards:
        line = _users_line(guard.sloc.framework_loc)
        if not line and not isinstance(guard.expr, sympy.Eq):
            continue
        if any(guard.expr.subs(symbol, size) == sympy.false for size in _BATCH_SIZES):
            raise ExportError(
                f"{line or 'model'}: the batch size decides what is computed ({guard.expr} where "
                f"{symbol} is the batch size), but a program must run with any batch size: take it "
                "from x.shape[0], not from len(x), and do not compare it"
            )


def _users_line(place: object) -> str:
    if not isinstance(place, FrameSummary) or not is_users(place.filename):
        return ""
    return f"{place.filename}:{place.lineno}"
