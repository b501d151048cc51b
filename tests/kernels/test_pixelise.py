"""Pixelisation against loops over pixels, PyTorch, and numbers by hand."""

import numpy as np
import pytest
from oracles import pixelise as oracle

from protofleet.errors import InputError
from protofleet.kernels import pixelise


def pictures(*shape, seed=0):
    made = np.random.default_rng(seed).random(shape).astype(np.float32)
    made.flags.writeable = False
    return made


def boxes_of(rows):
    return np.array(rows, np.float32)


@pytest.mark.parametrize("size", [(8, 8), (16, 24), (13, 7), (1, 5), (28, 28)])
@pytest.mark.parametrize("factor", [1, 2, 3, 8, 100])
def test_a_whole_image_is_what_the_loops_give(size, factor):
    images = pictures(2, 3, *size)
    expected = oracle.pixelised(images, None, factor)
    found = pixelise(images, None, factor)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_boxes_are_what_the_loops_give():
    """Fractions of pixels, overlaps, boxes beyond the image, and some without an area."""
    rng = np.random.default_rng(1)
    images = pictures(12, 2, 20, 30)
    corners = rng.uniform(-10, 40, (12, 5, 2, 2))
    boxes = np.sort(corners, axis=2).reshape(12, 5, 4).astype(np.float32)
    boxes[::3, 1] = 0
    boxes[1::3, 2, 2] = boxes[1::3, 2, 0]
    boxes[2::3, 3] = boxes[2::3, 3, [2, 1, 0, 3]]
    expected = oracle.pixelised(images, boxes, 4)
    assert (expected != images).any()
    np.testing.assert_allclose(pixelise(images, boxes, 4), expected, atol=1e-6)


@pytest.mark.parametrize("size", [(32, 32), (37, 53), (224, 224)])
def test_resizing_is_pytorch_s(size):
    """But for its positions, which it has in float32."""
    torch = pytest.importorskip("torch")
    images, factor = pictures(2, 3, *size), 8
    low = tuple(max(1, length // factor) for length in size)
    resize = torch.nn.functional.interpolate
    small = resize(torch.tensor(images), size=low, mode="bilinear", align_corners=False)
    expected = resize(small, size=size, mode="nearest").numpy()
    np.testing.assert_allclose(pixelise(images, None, factor), expected, atol=1e-5)


def test_a_box_by_hand():
    """Columns 0 1 2 3 of four pixels become one: halfway between 1 and 2."""
    images = np.arange(4, dtype=np.float32)[np.newaxis].repeat(2, 0)[np.newaxis, np.newaxis]
    np.testing.assert_array_equal(pixelise(images, None, 4), np.full((1, 1, 2, 4), 1.5))
    box = boxes_of([[[2, 0, 4, 1]]])
    expected = [[[[0, 1, 2.5, 2.5], [0, 1, 2, 3]]]]
    np.testing.assert_array_equal(pixelise(images, box, 8), expected)


def test_images_without_a_box_stay_and_no_input_is_written():
    images = pictures(3, 1, 6, 6)
    found = pixelise(images, np.zeros((3, 2, 4), np.float32), 2)
    np.testing.assert_array_equal(found, images)
    assert not np.shares_memory(found, images)
    np.testing.assert_array_equal(pixelise(images, np.zeros((3, 0, 4), np.float32), 2), images)


def test_no_images_are_none():
    assert pixelise(np.zeros((0, 3, 8, 8), np.float32), None, 8).shape == (0, 3, 8, 8)
    empty = np.zeros((0, 1, 4), np.float32)
    assert pixelise(np.zeros((0, 3, 8, 8), np.float32), empty, 8).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    ("images", "boxes", "factor", "message"),
    [
        (np.zeros((2, 8, 8), np.float32), None, 2, "images: expected .* 4 dimensions"),
        (np.zeros((2, 1, 8, 8)), None, 2, "images: expected a float32"),
        (pictures(2, 1, 8, 8), np.zeros((1, 1, 4), np.float32), 2, r"\(2, k, 4\), got \(1, 1, 4\)"),
        (pictures(2, 1, 8, 8), np.zeros((2, 1, 5), np.float32), 2, r"\(2, k, 4\)"),
        (pictures(1, 1, 8, 8), boxes_of([[[0, 0, np.nan, 2]]]), 2, "boxes: expected finite"),
        (pictures(1, 1, 8, 8), None, 0, "factor of at least 1, got 0"),
    ],
)
def test_wrong_inputs_are_named(images, boxes, factor, message):
    with pytest.raises(InputError, match=message):
        pixelise(images, boxes, factor)
