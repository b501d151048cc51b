"""Prototypes class by class and client by client, in plain Python numbers."""

from fractions import Fraction


def class_means(features, y, num_classes):
    """Exact means as fractions, None for a class without rows, and counts."""
    rows = {
        label: [f for f, c in zip(features, y, strict=True) if c == label]
        for label in range(num_classes)
    }
    means = [
        [
            sum(map(Fraction, map(float, column))) / len(rows[c])
            for column in zip(*rows[c], strict=True)
        ]
        if rows[c]
        else None
        for c in range(num_classes)
    ]
    return means, [len(rows[c]) for c in range(num_classes)]


def weighted_rows(prototypes, weights, old, divisor=None):
    """Σ_i w_ij π_ij over Σ_i w_ij, or over ``divisor``; ``old`` where no client has the class.

    ``prototypes``: ``[client][class][column]``; ``weights``: ``[client][class]``.
    """
    merged = []
    for j, kept in enumerate(old):
        total = sum(w[j] for w in weights)
        if not total:
            merged.append([float(value) for value in kept])
            continue
        merged.append(
            [
                float(
                    sum(
                        Fraction(w[j]) * Fraction(float(p[j][k]))
                        for p, w in zip(prototypes, weights, strict=True)
                    )
                    / (divisor or total)
                )
                for k in range(len(kept))
            ]
        )
    return merged
