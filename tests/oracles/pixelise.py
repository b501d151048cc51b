"""Pixelisation, one pixel at a time, from the definition of bilinear and nearest resizing."""

import math

import numpy as np


def pixelised(images, boxes, factor):
    """Images ``(n, C, H, W)`` with every box ``(left, top, right, bottom)`` in larger pixels."""
    out = np.array(images, np.float64)
    n, channels, height, width = out.shape
    for i in range(n):
        own = [(0, 0, width, height)] if boxes is None else [tuple(box) for box in boxes[i]]
        for left, top, right, bottom in own:
            columns = range(max(0, math.floor(left)), min(width, math.ceil(right)))
            rows = range(max(0, math.floor(top)), min(height, math.ceil(bottom)))
            if right <= left or bottom <= top or not rows or not columns:
                continue
            for c in range(channels):
                part = out[i, c, rows.start : rows.stop, columns.start : columns.stop]
                part[...] = _mosaic(part.copy(), factor)
    return out


def _mosaic(part, factor):
    height, width = part.shape
    low_height, low_width = max(1, height // factor), max(1, width // factor)
    small = np.zeros((low_height, low_width))
    for r in range(low_height):
        for c in range(low_width):
            y = (r + 0.5) * height / low_height - 0.5
            x = (c + 0.5) * width / low_width - 0.5
            small[r, c] = _between(part, max(y, 0.0), max(x, 0.0))
    big = np.zeros_like(part)
    for r in range(height):
        for c in range(width):
            big[r, c] = small[int(r * low_height / height), int(c * low_width / width)]
    return big


def _between(part, y, x):
    height, width = part.shape
    total = 0.0
    for r in (math.floor(y), math.floor(y) + 1):
        for c in (math.floor(x), math.floor(x) + 1):
            weight = (1 - abs(y - r)) * (1 - abs(x - c))
            total += weight * part[min(r, height - 1), min(c, width - 1)]
    return total
