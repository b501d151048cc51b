"""Tensors as one vector: without a copy where they lie so."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.errors import InputError
from protofleet.tensors import Layout, Packed, blobs, vector_of

_TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.float32(9).reshape(()),
    "empty": np.zeros((0, 4), np.float32),
    "n": np.arange(4, dtype=np.int64),
}


@pytest.mark.parametrize(
    ("names", "shared"), [(("a", "b"), True), (("b", "a"), False), (("a", "empty", "b"), False)]
)
def test_a_vector_is_a_view_where_the_tensors_lie_in_its_order(names, shared):
    blob = blobs.encode(_TENSORS)
    tensors, _ = blobs.decode(blob, max_bytes=len(blob))
    chosen = {name: tensors[name] for name in names}
    vector = vector_of(chosen, Layout.of({name: _TENSORS[name].shape for name in names}))
    expected = np.concatenate([_TENSORS[name].reshape(-1) for name in names])
    assert vector.dtype == np.float32
    assert np.array_equal(vector, expected)
    assert np.shares_memory(vector, np.frombuffer(blob, np.uint8)) == shared
    assert not vector.flags.writeable


def test_parts_of_an_array_that_are_not_whole_are_copied():
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"left": whole[:, :2], "right": whole[:, 2:]}
    vector = vector_of(tensors, Layout.of({"left": (3, 2), "right": (3, 2)}))
    assert vector.tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    assert whole.flags.writeable


def test_another_shape_is_named():
    with pytest.raises(InputError, match="tensor 'a': expected"):
        vector_of({"a": np.zeros(2, np.float32)}, Layout.of({"a": ()}))


def test_a_blobs_tensors_are_one_vector_unless_one_was_put_in_anothers_place():
    """However many there are besides those of the layout."""
    blob = blobs.encode(_TENSORS)
    tensors, _ = blobs.decode(blob, max_bytes=len(blob))
    layout = Layout.of({"a": (), "b": (2, 3)})
    assert isinstance(tensors, Packed)
    assert tensors.adjacent(layout).tolist() == [9, 0, 1, 2, 3, 4, 5]
    assert tensors.adjacent(Layout.of({"b": (2, 3), "a": ()})) is None
    assert tensors.adjacent(Layout.of({"a": (), "b": (6,)})) is None
    assert tensors.adjacent(Layout.of({"a": (), "missing": (2, 3)})) is None
    assert tensors.adjacent(Layout.of({"n": (4,)})) is None
    tensors["b"] = np.ones((2, 3), np.float32)
    assert tensors.adjacent(layout) is None
