"""FedSub's server: similarity of clients, and the index that picks the number of clusters."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.benchmarks.kernels.comparison import KernelCase, Peer, Sides
from protofleet.kernels import davies_bouldin, shared_class_similarity


def _index(n: int, width: int) -> Sides:
    from sklearn.metrics import davies_bouldin_score  # noqa: PLC0415 - only this case pays

    rng = np.random.default_rng(0)
    points = rng.standard_normal((n, width), dtype=np.float32)
    labels = rng.permutation(np.arange(n) % (n // 4))
    theirs = partial(davies_bouldin_score, points, labels)
    np.testing.assert_allclose(davies_bouldin(points, labels), theirs(), rtol=1e-5)
    return Sides(
        ours=partial(davies_bouldin, points, labels),
        peers=(Peer(name="scikit-learn", run=theirs),),
    )


def _similarity(clients: int, classes: int, width: int) -> Sides:
    import torch  # noqa: PLC0415 - seconds and memory that other cases need not pay

    rng = np.random.default_rng(0)
    prototypes = rng.standard_normal((clients, classes, width), dtype=np.float32)
    present = rng.random((clients, classes)) < 0.7
    tensor, owns = torch.from_numpy(prototypes), torch.from_numpy(present)

    def in_torch() -> Any:
        unit = torch.nn.functional.normalize(tensor, dim=2, eps=1e-6) * owns[:, :, None]
        shared = owns.float() @ owns.float().T
        return torch.einsum("ucd,vcd->uv", unit, unit) / shared.clamp(min=1)

    by_class = partial(_by_class, prototypes, present)
    ours = partial(shared_class_similarity, prototypes, present)
    np.testing.assert_allclose(ours(), in_torch().numpy(), atol=1e-5)
    np.testing.assert_allclose(ours(), by_class(), atol=1e-5)
    return Sides(
        ours=ours,
        peers=(Peer(name="PyTorch", run=in_torch), Peer(name="NumPy by class", run=by_class)),
    )


def _by_class(prototypes: NDArray[np.float32], present: NDArray[np.bool_]) -> Any:
    sums = np.zeros((len(present), len(present)), np.float32)
    for y, own in enumerate(present.T):
        rows = prototypes[own, y]
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
        sums[np.ix_(own, own)] += rows @ rows.T
    counts = present.astype(np.float32)
    return sums / np.maximum(counts @ counts.T, 1)


CASES = (
    *(
        KernelCase(
            kernel="Davies-Bouldin",
            case=f"n={n} k={n // 4} d={width}",
            size=n * width,
            unit="values",
            prepare=partial(_index, n, width),
            quick=(n, width) == (36, 3),
            threads=(1,),
        )
        for n, width in ((36, 3), (105, 3), (105, 192), (1000, 3), (1000, 192))
    ),
    *(
        KernelCase(
            kernel="class similarity",
            case=f"U={clients} C={classes} d={width}",
            size=clients,
            unit="clients",
            prepare=partial(_similarity, clients, classes, width),
            quick=clients == 36,
        )
        for clients, classes, width in ((36, 6, 3), (100, 2, 8), (105, 12, 192), (500, 12, 192))
    ),
)
"""WISDM has 36 users and 3 features, DREAMT 100 and 8; wider ones show how time grows."""
