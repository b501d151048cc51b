"""The start of FedHP's server: the hyperspherical loss with its gradient, and the whole descent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from protofleet.benchmarks.kernels.comparison import KernelCase, Peer, Sides
from protofleet.kernels import hyperspherical_prototypes, uniform_loss


def _loss(classes: int, width: int) -> Sides:
    import torch  # noqa: PLC0415 - seconds and memory that other cases need not pay

    rng = np.random.default_rng(0)
    prototypes = rng.random((classes, width), dtype=np.float32)
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    leaf = torch.tensor(prototypes, requires_grad=True)
    twice = 2.0 * torch.eye(classes)

    def theirs() -> tuple[Any, Any]:
        loss = (leaf @ leaf.T - twice).max(dim=1)[0].mean()
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    loss, gradient = uniform_loss(prototypes)
    other_loss, other_gradient = (part.numpy() for part in theirs())
    np.testing.assert_allclose(loss, other_loss, rtol=1e-5)
    # Rounding may choose another of two equally near prototypes in a few rows.
    apart = np.linalg.norm(gradient - other_gradient)
    if apart > 0.05 * np.linalg.norm(gradient):
        raise AssertionError(f"hyperspherical gradients are {apart} apart")
    return Sides(
        ours=partial(uniform_loss, prototypes), peers=(Peer(name="PyTorch autograd", run=theirs),)
    )


def _descent(classes: int, width: int) -> Sides:
    import torch  # noqa: PLC0415

    start = torch.from_numpy(np.random.default_rng(0).random((classes, width), dtype=np.float32))
    twice = 2.0 * torch.eye(classes)

    def theirs(steps: int = 1000) -> Any:
        leaf = start.clone().requires_grad_()
        optimiser = torch.optim.SGD([leaf], lr=0.1, momentum=0.9, weight_decay=1e-4)
        for _ in range(steps):
            with torch.no_grad():
                leaf.div_(leaf.norm(dim=1, keepdim=True))
            optimiser.zero_grad()
            loss: Any = (leaf @ leaf.T - twice).max(dim=1)[0].mean()
            loss.backward()
            optimiser.step()
        return torch.nn.functional.normalize(leaf.detach())

    def ours(steps: int = 1000) -> Any:
        return hyperspherical_prototypes(classes, width, rng=np.random.default_rng(0), steps=steps)

    # After many steps rounding decides which of equally near prototypes pulls.
    np.testing.assert_allclose(ours(10), theirs(10).numpy(), atol=1e-4)
    return Sides(ours=ours, peers=(Peer(name="PyTorch autograd", run=theirs),))


def _case(
    kernel: str, prepare: Callable[[int, int], Sides], classes: int, width: int, *, quick: bool
) -> KernelCase:
    return KernelCase(
        kernel=kernel,
        case=f"C={classes} d={width}",
        size=classes * width,
        unit="values",
        prepare=partial(prepare, classes, width),
        quick=quick,
    )


CASES = (
    *(
        _case("hyperspherical loss + gradient", _loss, classes, width, quick=classes == 10)
        for classes, width in ((10, 1024), (100, 128), (100, 1024), (1000, 128), (1000, 1024))
    ),
    *(
        _case("hyperspherical prototypes", _descent, classes, width, quick=False)
        for classes, width in ((10, 1024), (10, 1600), (100, 1024))
    ),
)
"""FedHP sends 1024 features on MNIST and 1600 on CIFAR-10 and SVHN, each with 10 classes."""
