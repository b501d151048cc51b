"""Lookups and assignments by places that are known at export, such as ``x[:, :, [0, 5, 9]]``.

As fixed maps along an axis (``axis_maps``) they have gradients in both runtimes, of which TFLite
has no lookup but by rows. What a graph computes from constants alone is known as well.

Places that each example has of its own, as in ``x[torch.arange(B), last]``, are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from protofleet.export.capture.axis_maps import put, take

_aten = torch.ops.aten
_EXPAND = _aten.expand.default
_WIDER = (_EXPAND, _aten.unsqueeze.default, _aten.view.default)
_RANGES = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)
_LARGEST = 1 << 20
_ZEROS = (_aten.new_zeros.default, _aten.zeros.default, _aten.zeros_like.default)

Places = list[tuple[int, NDArray[np.int64]]]
"""Axis, and the places looked up on it."""


class KnownValues:
    """Places that depend on nothing but constants, of all lookups of a graph.

    Args:
        module: its attributes are constants.
        given: values of placeholders.
    """

    def __init__(self, module: fx.GraphModule, given: Mapping[fx.Node, Tensor]) -> None:
        self._module = module
        self._found: dict[fx.Node, Tensor | None] = dict(given)
        self._arrays: dict[fx.Node, NDArray[Any]] = {}
        with _disable_current_modes():
            for node in module.graph.nodes:
                if node.target in _RULES:
                    self._note(node)

    def of(self, node: Any) -> NDArray[Any] | None:
        """The places that an argument of a lookup stands for, or None."""
        return self._arrays.get(node)

    def _note(self, lookup: fx.Node) -> None:
        for node in lookup.all_input_nodes:
            source: Any = node
            while source.target is _EXPAND and self._value(source) is None:
                source = source.args[0]
            value = self._value(source)
            if value is not None and not value.is_floating_point():
                self._arrays[source] = value.numpy()

    def _value(self, node: fx.Node) -> Tensor | None:
        if node not in self._found:
            self._found[node] = self._computed(node)
        return self._found[node]

    def _computed(self, node: fx.Node) -> Tensor | None:
        if any(_writes(user, node) for user in node.users):
            return None
        if node.op == "get_attr":
            value: Tensor = getattr(self._module, str(node.target))
            return value
        inputs = {source: self._value(source) for source in node.all_input_nodes}
        if not _is_small(node) or any(value is None for value in inputs.values()):
            return None
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), inputs.__getitem__)
        target: Any = node.target
        result: Tensor = target(*args, **kwargs)
        return result


def _is_small(node: fx.Node) -> bool:
    """Whether a node is an operator with one result of a fixed, small size."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - no public name
        return False
    sizes = tuple(value.shape)
    return all(isinstance(n, int) for n in sizes) and math.prod(sizes) <= _LARGEST


def _writes(user: fx.Node, node: fx.Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    return schema is not None and schema.is_mutable and user.args[:1] == (node,)


def rewritten(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    """A node's result by fixed maps, or NotImplemented.

    Args:
        node: of the graph that is run.
        known: places of that graph.
        args: what its arguments are in this run.
    """
    rule = _RULES.get(node.target)
    return NotImplemented if rule is None else rule(node, known, args)


def _places(node: fx.Node, known: KnownValues, x: Tensor) -> Places | None:
    """The places by axis; None unless all are known and on neighbouring axes of fixed size."""
    indices: Any = node.args[1]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    places: Places = []
    for axis in axes:
        value, size = known.of(indices[axis]), x.shape[axis]
        if value is None or value.dtype == np.bool_ or not isinstance(size, int):
            return None
        places.append((axis, np.where(value < 0, value + size, value)))
    return places


def _apart(places: Places) -> list[tuple[int, list[int]]] | None:
    """A list of places for each axis, if the lookup takes all combinations of them in order."""
    shape = _common(places)
    last, lists = -1, []
    for axis, value in places:
        wide = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
        own = [k for k, size in enumerate(wide.shape) if size != 1]
        if own and own[0] <= last:
            return None
        last = own[-1] if own else last
        lists.append((axis, wide.flatten().tolist()))
    return lists


def _common(places: Places) -> tuple[int, ...]:
    return np.broadcast_shapes(*(value.shape for _, value in places))


def _flat(places: Places, x: Tensor) -> list[int]:
    """Places on the one axis that all axes looked up on make together."""
    sizes = [int(x.shape[axis]) for axis, _ in places]
    arrays = np.broadcast_arrays(*(value for _, value in places))
    found: list[int] = np.asarray(np.ravel_multi_index(arrays, sizes)).flatten().tolist()
    return found


def _merged(x: Tensor, places: Places) -> Tensor:
    """With these axes as one."""
    first, last = places[0][0], places[-1][0]
    return x.reshape(
        *x.shape[:first], math.prod(int(n) for n in x.shape[first : last + 1]), *x.shape[last + 1 :]
    )


def _shape(x: Tensor, places: Places) -> list[Any]:
    """Of what is looked up."""
    return [*x.shape[: places[0][0]], *_common(places), *x.shape[places[-1][0] + 1 :]]


def _index(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    x: Tensor = args[0]
    places = _places(node, known, x)
    if places is None:
        return _index_each(node, args)
    apart, found = _apart(places), x
    if apart is None:
        found = take(_merged(x, places), places[0][0], _flat(places, x))
    else:
        for axis, listed in apart:
            found = take(found, axis, listed)
    return found.reshape(_shape(x, places))


def _index_each(node: fx.Node, args: tuple[Any, ...]) -> Any:
    """``x[torch.arange(B), places]``."""
    x, indices = args
    if not _begins_with_examples(node, x):
        return NotImplemented
    if len(indices) == 1:
        return x.clone()
    return x.gather(1, _own_places(x, indices[1])).reshape(*indices[1].shape, *x.shape[2:])


def _index_put_each(node: fx.Node, args: tuple[Any, ...]) -> Any:
    """``x[torch.arange(B), places] = values``, or added to what is there."""
    x, indices, values, *rest = args
    adds = bool(rest and rest[0])
    if not _begins_with_examples(node, x):
        return NotImplemented
    if len(indices) == 1:
        return x + values if adds else values.expand(x.shape)
    places = _own_places(x, indices[1])
    source = values.expand(*indices[1].shape, *x.shape[2:]).reshape(places.shape)
    if adds:
        return x.scatter_add(1, places, source)
    # Of several for one place none is sure to stay.
    return x.scatter(1, places, source) if places.shape[1] == 1 else NotImplemented


def _begins_with_examples(node: fx.Node, x: Tensor) -> bool:
    """Whether a lookup takes places of every example, its own ones on axis 1, or none there."""
    indices: Any = node.args[1]
    if None in indices or len(indices) > 2 or not _is_range(indices[0], x):
        return False
    ranks = {index.meta["val"].dim() for index in indices}
    own = indices[-1].meta["val"]
    return (
        len(ranks) == 1
        and _is_of_each(own, x)
        and own.dtype in {torch.int64, torch.int32}
        and (len(indices) == 1 or isinstance(x.shape[1], int))
        and (len(indices) == 2 or own.dim() == 1)
    )


def _is_range(node: fx.Node, x: Tensor) -> bool:
    """Whether a value is the number of each example of ``x`` on its first axis."""
    while node.target in _WIDER and _is_of_each(node.meta["val"], x):
        node = node.all_input_nodes[0]
    if node.target not in _RANGES or not _is_of_each(node.meta["val"], x):
        return False
    numbers: Any = node.args
    return (len(numbers) == 1 or numbers[0] == 0) and numbers[2:] in {(), (1,)}


def _is_of_each(value: Tensor, x: Tensor) -> bool:
    """Whether a value's first axis is the batch, as that of ``x``."""
    sizes: list[Any] = [*value.shape[:1], *x.shape[:1]]
    symbolic = all(isinstance(size, torch.SymInt) for size in sizes)
    return symbolic and len({size.node.expr for size in sizes}) == 1


def _own_places(x: Tensor, places: Tensor) -> Tensor:
    """``(B, …)`` places on axis 1 as ``(B, m, *rest)``, from 0."""
    size, rest = int(x.shape[1]), x.shape[2:]
    counted = torch.where(places < 0, places + size, places).long()
    rows = counted.reshape(x.shape[0], math.prod(places.shape[1:]), *(1 for _ in rest))
    return rows.expand(-1, -1, *rest)


def _index_put(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    x, _, values, *rest = args
    places = _places(node, known, x)
    if places is None:
        return _index_put_each(node, args)
    values = values.expand(_shape(x, places))
    if not (rest and rest[0]):
        return _assigned(x, places, values)
    added = _spread(x, places, values)
    source: Any = node.args[0]
    return added if source.target in _ZEROS else x + added


def _spread(x: Tensor, places: Places, values: Tensor) -> Tensor:
    """Zeros like ``x`` with the values added at their places."""
    first, last = places[0][0], places[-1][0]
    before, behind = x.shape[:first], x.shape[last + 1 :]
    apart = _apart(places)
    if apart is None:
        flat = _flat(places, x)
        rows = values.reshape(*before, len(flat), *behind)
        size = math.prod(int(n) for n in x.shape[first : last + 1])
        return put(rows, first, flat, size).reshape(x.shape)
    found = values.reshape(*before, *(len(listed) for _, listed in apart), *behind)
    for axis, listed in apart:
        found = put(found, axis, listed, int(x.shape[axis]))
    return found


def _assigned(x: Tensor, places: Places, values: Tensor) -> Tensor:
    """``x`` with the values in their places; of several for one place the last stays."""
    first, flat = places[0][0], _flat(places, x)
    merged = _merged(x, places)
    rows = values.reshape(*merged.shape[:first], len(flat), *merged.shape[first + 1 :])
    size = int(merged.shape[first])
    sources = list(range(size))
    for number, place in enumerate(flat):
        sources[place] = size + number
    return take(torch.cat((merged, rows), first), first, sources).reshape(x.shape)


def _index_select(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    x, axis, _ = args
    places = known.of(node.args[2])
    if places is None or not isinstance(x.shape[axis], int):
        return NotImplemented
    return take(x, axis, places.tolist())


def _index_add(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    x, axis, _, values = args
    places = known.of(node.args[2])
    if places is None or node.kwargs or not isinstance(x.shape[axis], int):
        return NotImplemented
    return x + put(values, axis, places.tolist(), int(x.shape[axis]))


def _in_place(rule: Callable[..., Any]) -> Callable[..., Any]:
    def write(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
        result = rule(node, known, args)
        return result if result is NotImplemented else args[0].copy_(result)

    return write


def _index_fill(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    x, axis, _, value = args
    places = known.of(node.args[2])
    if places is None or not isinstance(x.shape[axis], int):
        return NotImplemented
    filled = [False] * int(x.shape[axis])
    for place in places.tolist():
        filled[place] = True
    shape = [1] * x.dim()
    shape[axis] = len(filled)
    return torch.where(torch.tensor(filled).reshape(shape), value, x)


def _index_copy(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    x, axis, _, values = args
    axis %= x.dim()
    places = known.of(node.args[2])
    if places is None or not isinstance(x.shape[axis], int):
        return NotImplemented
    return _assigned(x, [(axis, places)], values)


def _same_for_all(node: Any, known: KnownValues, axis: int) -> list[int] | None:
    """Places that a ``gather`` takes from every row alike."""
    while known.of(node) is None and isinstance(node, fx.Node) and node.target is _EXPAND:
        node = node.args[0]
    value = known.of(node)
    if value is None:
        return None
    rows = np.moveaxis(value, axis, -1).reshape(-1, value.shape[axis])
    places: list[int] = rows[0].tolist()
    return places if (rows == rows[0]).all() else None


def _gather(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    x, axis, index, *_ = args
    axis %= x.dim()
    places = _same_for_all(node.args[2], known, axis)
    others = [k for k in range(x.dim()) if k != axis]
    if places is None or any(x.shape[k] != index.shape[k] for k in others):
        return NotImplemented
    return take(x, axis, places)


def _scatter_add(node: fx.Node, known: KnownValues, args: tuple[Any, ...]) -> Any:
    x, axis, _, values = args
    axis %= x.dim()
    places = _same_for_all(node.args[2], known, axis)
    others = [k for k in range(x.dim()) if k != axis]
    if places is None or any(x.shape[k] != values.shape[k] for k in others):
        return NotImplemented
    return x + put(values, axis, places, int(x.shape[axis]))


_RULES: dict[Any, Callable[..., Any]] = {
    _aten.index.Tensor: _index,
    _aten._unsafe_index.Tensor: _index,  # noqa: SLF001 - its name
    _aten.index_put.default: _index_put,
    _aten._unsafe_index_put.default: _index_put,  # noqa: SLF001 - as above
    _aten.index_put_.default: _in_place(_index_put),
    _aten._index_put_impl_.default: _in_place(_index_put),
    _aten.index_select.default: _index_select,
    _aten.index_add.default: _index_add,
    _aten.index_add_.default: _in_place(_index_add),
    _aten.index_fill.int_Scalar: _index_fill,
    _aten.index_fill_.int_Scalar: _in_place(_index_fill),
    _aten.index_copy.default: _index_copy,
    _aten.index_copy_.default: _in_place(_index_copy),
    _aten.gather.default: _gather,
    _aten.scatter_add.default: _scatter_add,
    _aten.scatter_add_.default: _in_place(_scatter_add),
}
