"""Tensor maps: named float32 arrays that are views into one contiguous buffer.

Everything that touches all parameters at once (optimisers, deltas, aggregation, transfer) is a
loop over ``TensorMap.buffer``; everything that needs a name uses the map as a mapping.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

Tensors = Mapping[str, NDArray[Any]]
"""Named arrays of any dtype, the form in which strategies keep state and content."""

TaskName = Literal["classification", "segmentation", "regression", "multilabel"]
"""What a model's outputs are: scores of classes that exclude each other, the same for each step of
an example, numbers, or logits of labels of which any may hold. ``protofleet.strategies.tasks`` has
what follows from it."""


def kind_of(task: TaskName) -> Literal["classes", "targets"]:
    """What a task's outputs are called one by one; manifests and data have their names so."""
    return "classes" if task in ("classification", "segmentation") else "targets"


_ALIGNMENT = 64  # one cache line: vector loads from the start of a buffer never split


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor's place in a packed buffer.

    Attributes:
        name: the tensor's name in the bundle.
        shape: its dimensions; ``()`` is a scalar.
        offset: index of its first element in the buffer, in elements.
    """

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of a packed float32 buffer, in order and without gaps."""

    specs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Self:
        """Pack tensors of the given shapes one behind the other, in the mapping's order.

        Equal shapes give the very same layout, so that a comparison seldom looks into one.
        """
        return cls._packed(tuple((name, tuple(shape)) for name, shape in shapes.items()))

    @classmethod
    @lru_cache(maxsize=256)
    def _packed(cls, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Self:
        specs: list[TensorSpec] = []
        offset = 0
        for name, shape in shapes:
            specs.append(TensorSpec(name=name, shape=shape, offset=offset))
            offset += specs[-1].size
        return cls(tuple(specs))

    @cached_property
    def size(self) -> int:
        """Number of float32 elements in the buffer."""
        return sum(spec.size for spec in self.specs)

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) over ``name dtype shape`` lines; it names the architecture."""
        lines = (f"{s.name} float32 {list(s.shape)}\n" for s in self.specs)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape, in order."""
        return {spec.name: spec.shape for spec in self.specs}


class TensorMap(Mapping[str, NDArray[np.float32]]):
    """Named float32 tensors that share one contiguous, cache-line-aligned buffer.

    Attributes:
        layout: names, shapes and offsets.
        buffer: ``(layout.size,) float32``, C-order; the mapping's values are views into it.
        address: where it begins.
    """

    __slots__ = ("_views", "address", "buffer", "layout")

    def __init__(self, layout: Layout, buffer: NDArray[np.float32]) -> None:
        if buffer.shape != (layout.size,) or buffer.dtype != np.float32:
            raise InputError(
                f"tensor map: expected a buffer of ({layout.size},) float32, "
                f"got {buffer.shape} {buffer.dtype}"
            )
        self.layout = layout
        self.buffer = buffer
        self.address = address(buffer)
        self._views = {
            s.name: buffer[s.offset : s.offset + s.size].reshape(s.shape) for s in layout.specs
        }

    @classmethod
    def zeros(cls, layout: Layout) -> Self:
        """A map of zeros."""
        return cls(layout, _aligned(np.zeros, layout.size))

    @classmethod
    def pack(cls, tensors: Tensors, layout: Layout | None = None) -> Self:
        """Copy ``tensors`` into a new buffer.

        Raises:
            InputError: a tensor of ``layout`` is absent, surplus, or of another shape.
        """
        layout = layout or Layout.of({name: value.shape for name, value in tensors.items()})
        check_names(tensors, layout)
        packed = cls(layout, _aligned(np.empty, layout.size))
        for name, view in packed.items():
            view[...] = tensors[name]
        return packed

    def copy(self) -> Self:
        """An independent, writable copy."""
        other = _aligned(np.empty, self.layout.size)
        other[...] = self.buffer
        return type(self)(self.layout, other)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


def _aligned(make: Callable[..., NDArray[np.uint8]], size: int) -> NDArray[np.float32]:
    """A buffer of ``size`` floats, at the start of a cache line, in memory that ``make`` gives."""
    raw = make(size * 4 + _ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % _ALIGNMENT
    return raw[start : start + size * 4].view(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A model's values: its parameters and its buffers.

    Attributes:
        params: trained tensors.
        buffers: the tensors without gradients (prototypes, batch-norm statistics, ``beta``); ports,
            manifests and files call them ``state``.
    """

    params: TensorMap
    buffers: TensorMap

    def copy(self) -> Self:
        """An independent, writable copy."""
        return replace(self, params=self.params.copy(), buffers=self.buffers.copy())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayer:
    """A dense layer or convolution of a model.

    Attributes:
        name: ``<name>.weight`` is a parameter, ``<name>.bias`` may be one.
        before: the layer whose units are its inputs, in order; None: none is.
        hidden: whether it has a ReLU or its like, whose activations the programs can tell.
    """

    name: str
    before: str | None = None
    hidden: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A bundle's initial values, and what their names mean.

    Attributes:
        params, buffers: as in ``Network``.
        num_classes: C; 0 where the task has no classes.
        input_shape: of one example.
        task: what the outputs are.
        head: names of the head's parameters; empty: the bundle names none.
        trained_prototypes: the head has a prototype or direction for each class, and a training has
            moved them: they are no longer of length 1, as they are drawn.
        features: width d of the features that the head takes; 0: the bundle has none.
        layers: dense layers and convolutions in the order of a forward pass.
        no_layers: what there is in the place of hidden layers and a dense head; empty: both are,
            whether ``layers`` tells of them or not.
    """

    params: TensorMap
    buffers: TensorMap
    num_classes: int
    input_shape: tuple[int, ...]
    task: TaskName = "classification"
    head: tuple[str, ...] = ()
    trained_prototypes: bool = False
    features: int = 0
    layers: tuple[ModelLayer, ...] = ()
    no_layers: str = ""

    @property
    def network(self) -> Network:
        """The values as a network; they are not to be written."""
        return Network(params=self.params, buffers=self.buffers)


class Packed(dict[str, NDArray[Any]]):
    """Named arrays that are views into one piece of memory, and where each lies in it.

    Args:
        body: the memory, ``(bytes,) uint8``.
        places: first byte of each, and the one behind its last; more than the arrays' may be named.
        arrays: views into ``body`` of these places.
    """

    __slots__ = ("_body", "_places")

    def __init__(
        self,
        body: NDArray[np.uint8],
        places: Mapping[str, tuple[int, int]],
        arrays: Tensors,
    ) -> None:
        super().__init__(arrays)
        self._body, self._places = body, places

    def adjacent(self, layout: Layout) -> NDArray[np.float32] | None:
        """One view of all tensors of ``layout``, if they lie one behind the other in its order.

        None also where one is absent or has another shape or dtype.
        """
        first = end = -1
        for name, shape in layout.shapes.items():
            array, (begin, behind) = self.get(name), self._places.get(name, (-1, -1))
            if array is None or array.base is not self._body or array.shape != shape:
                return None
            if array.dtype != np.float32 or begin != (begin if end < 0 else end):
                return None
            first, end = begin if first < 0 else first, behind
        return None if first < 0 else self._body[first:end].view(np.float32)


def vector_of(tensors: Tensors, layout: Layout) -> NDArray[np.float32]:
    """All numbers one behind the other: a view where they lie so already, else a copy.

    Args:
        tensors: float32.
        layout: their names, in the order of the vector.

    Returns:
        ``(layout.size,) float32``, read-only.

    Raises:
        InputError: a tensor of ``layout`` is absent, surplus, or of another shape.
    """
    vector = tensors.adjacent(layout) if isinstance(tensors, Packed) else None
    if vector is not None and len(tensors) == len(layout.shapes) and vector.flags.aligned:
        return vector
    check_names(tensors, layout)
    vector = _adjacent([tensors[name] for name in layout.shapes])
    if vector is None:
        vector = TensorMap.pack(tensors, layout).buffer
    vector.flags.writeable = False
    return vector


def _adjacent(arrays: Sequence[NDArray[Any]]) -> NDArray[np.float32] | None:
    """One view of all, if they lie one behind the other in the memory of one array."""
    base = arrays[0].base if arrays else None
    if not isinstance(base, np.ndarray) or not base.flags.c_contiguous:
        return None
    first = end = address(arrays[0])
    for array in arrays:
        if array.base is not base or array.dtype != np.float32 or address(array) != end:
            return None
        if not array.flags.c_contiguous:
            return None
        end += array.nbytes
    start = first - address(base)
    return base.reshape(-1).view(np.uint8)[start : start + end - first].view(np.float32)


def address(array: NDArray[Any]) -> int:
    """Address of the array's first element."""
    data: int = array.__array_interface__["data"][0]
    return data


def check_names(tensors: Tensors, layout: Layout) -> None:
    """Raise InputError unless ``tensors`` has exactly the names and shapes of ``layout``."""
    surplus = tensors.keys() - layout.shapes.keys()
    if surplus:
        raise InputError(f"tensor '{min(surplus)}': not in the layout")
    for name, shape in layout.shapes.items():
        if name not in tensors:
            raise InputError(f"tensor '{name}': expected {shape} float32, got nothing")
        if tensors[name].shape != shape:
            raise InputError(
                f"tensor '{name}': expected {shape} float32, "
                f"got {tensors[name].shape} {tensors[name].dtype}"
            )
