"""Finds the convolutions that a TFLite program writes as matrix products of shifted images.

``export.tflite`` does so because a filter that is an input is slow in TFLite's own convolution; one
that is a constant is fast there, and needs no copies. How the images are shifted is not read from
the operators: they are run on an image of numbered pixels, and what arrives is compared with what a
convolution would read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from protofleet.export.quantise.graph import Operation, TfliteGraph

_SHIFTS = {"CONCATENATION", "RESHAPE", "STRIDED_SLICE", "TRANSPOSE"}
_COUNTABLE = 1 << 24  # float32 numbers every pixel below exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """What a convolution without padding reads.

    Attributes:
        places: ``(K, 3)``: row, column and channel of each entry, in units of the dilation.
        size: rows and columns of the window.
        stride, dilation: between windows and between entries.
        out: rows and columns of the result.
    """

    places: NDArray[np.int64]
    size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    out: tuple[int, int]


def name_convolutions(graph: TfliteGraph) -> None:
    """Replace dense layers on shifted images by convolutions."""
    for layer in [one for one in graph.operations if one.name == "FULLY_CONNECTED"]:
        weights = graph.constants.get(layer.inputs[1])
        found = None if weights is None else _image_of(graph, layer.inputs[0])
        if weights is None or found is None or graph.signature(layer.outputs[0]).count(-1) > 1:
            continue
        columns = _columns(graph, *found, layer.inputs[0])
        window = None if columns is None else _window(columns, graph.shape(found[0]))
        if window is not None:
            _replace(graph, layer, found[0], weights, window)
    graph.sweep()


def _image_of(graph: TfliteGraph, tensor: int) -> tuple[int, list[Operation]] | None:
    """The image (1, H, W, C) that ``tensor`` holds shifted copies of, and what shifts it."""
    producers = graph.producers()
    found: list[Operation] = []
    pending, sources = [tensor], set()
    while pending:
        one = producers.get(pending[-1])
        current = pending.pop()
        is_image = len(graph.shape(current)) == 4 and current != tensor
        if one is None or one.name not in _SHIFTS or (is_image and one.name != "STRIDED_SLICE"):
            sources.add(current)
        elif one not in found:
            found.append(one)
            pending += [t for t in one.inputs if t not in graph.constants]
    is_shifted = any(one.name == "STRIDED_SLICE" for one in found)
    if not is_shifted or len(sources) != 1 or len(graph.shape(min(sources))) != 4:
        return None
    return sources.pop(), [one for one in graph.operations if one in found]


def _columns(
    graph: TfliteGraph, image: int, shifts: list[Operation], wanted: int
) -> NDArray[np.int64] | None:
    """Which pixels each row of the layer's input holds for one image, ``(rows, K)``.

    None if two images do not come one after the other.
    """
    _, *shape = graph.shape(image)
    count = int(np.prod(shape))
    if 2 * count > _COUNTABLE or graph.signature(image)[0] != -1:
        return None
    numbered = np.arange(2 * count, dtype=np.float32).reshape(2, *shape)
    value = graph.compute(shifts, [wanted], {image: numbered})[wanted]
    both = np.asarray(value.reshape(-1, value.shape[-1]), np.int64)
    first, second = np.array_split(both, 2)
    return first if np.array_equal(first + count, second) else None


def _window(columns: NDArray[np.int64], shape: tuple[int, ...]) -> _Window | None:
    """The convolution that reads these pixels of an image (1, H, W, C); None if there is none."""
    if columns[0].min() != 0:
        return None
    _, _, wide, channels = shape
    places = np.stack(np.unravel_index(columns[0], shape[1:]), axis=1)
    starts = np.stack(np.unravel_index(columns[:, np.argmin(columns[0])], shape[1:]), axis=1)
    (size_y, gap_y), (size_x, gap_x) = (_steps(places[:, axis]) for axis in (0, 1))
    (high, step_y), (across, step_x) = (_steps(starts[:, axis]) for axis in (0, 1))
    y = step_y * np.arange(high)[:, None] * wide * channels
    corners = (y + step_x * np.arange(across) * channels).reshape(-1, 1)
    if len(columns) != high * across or not np.array_equal(columns, corners + columns[0]):
        return None
    if len(np.unique(columns[0])) != size_y * size_x * channels:
        return None
    return _Window(
        places=places // [gap_y, gap_x, 1],
        size=(size_y, size_x),
        stride=(step_y, step_x),
        dilation=(gap_y, gap_x),
        out=(high, across),
    )


def _steps(coordinates: NDArray[Any]) -> tuple[int, int]:
    """How many coordinates there are, and how far apart."""
    distinct = np.unique(coordinates)
    return len(distinct), int(distinct[1] - distinct[0]) if len(distinct) > 1 else 1


def _replace(
    graph: TfliteGraph,
    layer: Operation,
    image: int,
    weights: NDArray[np.float32],
    window: _Window,
) -> None:
    filters = np.zeros((len(weights), *window.size, graph.shape(image)[-1]), np.float32)
    filters[:, window.places[:, 0], window.places[:, 1], window.places[:, 2]] = weights
    bias = graph.new_constant(np.zeros(len(weights), np.float32))
    result = graph.new_tensor((-1, *window.out, len(weights)))
    convolution = graph.new_operation(
        "CONV_2D", [image, graph.new_constant(filters), bias], [result]
    )
    convolution.record.builtinOptionsType = schema.BuiltinOptions.Conv2DOptions
    convolution.record.builtinOptions = schema.Conv2DOptionsT(
        padding=schema.Padding.VALID,
        strideH=window.stride[0],
        strideW=window.stride[1],
        dilationHFactor=window.dilation[0],
        dilationWFactor=window.dilation[1],
    )
    place = graph.operations.index(layer)
    graph.operations[place : place + 1] = [convolution, graph.new_reshape(result, layer.outputs[0])]
