"""Weighted means in exact fractions."""

from fractions import Fraction


def weighted(buffers, weights):
    """Mean of every element over ``buffers``, as fractions."""
    total = sum(Fraction(weight) for weight in weights)
    return [
        sum(Fraction(float(x)) * Fraction(w) for x, w in zip(column, weights, strict=True)) / total
        for column in zip(*buffers, strict=True)
    ]
