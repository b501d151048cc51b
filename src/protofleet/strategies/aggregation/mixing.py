"""Nearest-neighbour mixing (NNM): before a rule, each client becomes the mean of those nearest it.

Source: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by Mixing: A Recipe for
Optimal Byzantine ML under Heterogeneity" (arXiv:2302.01772), algorithm 2. Of n clients of which f
may lie each is replaced by the mean of its n - f nearest, itself one of them. Where clients' data
differ, honest clients differ too, and a rule that looks for outliers throws them out; mixed, they
differ less.

Of equal distances the lower client is the nearer one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.aggregation.aggregator import Aggregator, Terms, Vector
from protofleet.strategies.aggregation.robust import (
    RobustSettings,
    Squares,
    Weigh,
    blocks,
    combination,
    squared_distances,
)

Matrix = NDArray[np.float64]
"""``(n + 1, n + 1)``, rows with sum 1: the server's vector stays, the clients' are mixed."""


def mixed(rule: Aggregator, settings: RobustSettings) -> Aggregator:
    """The rule after mixing, if the settings ask for it."""
    if not settings.mixing:
        return rule

    def combine(old: Vector, terms: Terms) -> Vector | None:
        squares = squared_distances(rule.name, old, terms)
        if squares is None:
            return None
        matrix = mixing_matrix(squares, settings.count(len(squares) - 1))
        if rule.weigh is not None:
            coefficients = _weigh_mixed(rule.weigh, squares, matrix)
            return combination(rule.name, old, terms, coefficients)
        combined = np.empty(old.size, np.float32)
        for part, values in blocks(rule.name, old, terms):
            mixtures = (matrix[1:, 1:] @ values).astype(np.float32)
            combined[part] = rule.combine(old[part], [(one, 1.0) for one in mixtures])
        return combined

    return replace(rule, combine=combine, weigh=None)


def mixing_matrix(squares: Squares, liars: int) -> Matrix:
    """Who becomes the mean of whom where so many of the clients may lie."""
    clients = len(squares) - 1
    kept = clients - liars
    nearest = np.argsort(squares[1:, 1:], axis=1, kind="stable")[:, :kept]
    matrix = np.zeros_like(squares)
    matrix[0, 0] = 1
    matrix[1 + np.arange(clients)[:, None], 1 + nearest] = 1 / kept
    return matrix


def _weigh_mixed(weigh: Weigh, squares: Squares, matrix: Matrix) -> NDArray[np.float64]:
    """Coefficients of the clients as they came, from the distances of their mixtures."""
    # With rows of sum 1 these stand in for the mixtures' products: what differs cancels out.
    products = -0.5 * (matrix @ squares @ matrix.T)
    diagonal = np.diag(products)
    apart = np.maximum(diagonal[:, None] + diagonal - 2 * products, 0)
    np.fill_diagonal(apart, 0)
    return weigh(apart) @ matrix
