"""Alignment with Prototypes (ALP), FedAli's layer, and the two operators it is made of.

Source: Ek, Lalanda, Portet et al., "FedAli: Personalized Federated Learning Alignment with
Prototype Layers for Generalized Mobile Services" (arXiv:2411.10595), section 3.1, appendix A, and
the authors' published TensorFlow code.

| symbol | name | shape | dtype |
|---|---|---|---|
| x | ``x`` | (B, Z, d), N = B·Z rows | float32 |
| P_local | ``local`` | (G, d) | float32 |
| P_global | ``global_`` | (G, d) | float32 |
| Q | plan, here ``exp(S/ε)·v`` up to a factor per row | (N, 2G) or (N, G) | float32 |
| β | ``beta`` | () | float32 |
| gamma, ε | ``gamma``, ``epsilon`` | attributes | float |

The operators are opaque nodes of a captured program; a device replaces them by
``protofleet.kernels``. Here they stand in ordinary PyTorch, independent of the kernels, as the
reference for parity.

Deviations:
    - The plan is kept as row and column scaling vectors instead of a matrix divided in place; the
      constants by which the reference divides in between cancel.
    - ``single_code`` writes colliding prototypes in row order, so that the last row always wins;
      TensorFlow leaves the order open.
"""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from protofleet.errors import InputError

AlpUpdate = Literal["bulk_code", "single_code", "paper_text", "paper_pseudo"]
ALP_UPDATES: tuple[str, ...] = get_args(AlpUpdate)
"""How the local prototypes follow the embeddings; the first is the default."""

_NORM_FLOOR = 1e-12


def l2_normalise(x: Tensor) -> Tensor:
    """Divide by the Euclidean norm of the last axis, with a floor of 1e-12 under the root."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True).clamp_min(_NORM_FLOOR))


def transport_plan(rows: Tensor, prototypes: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Optimal-transport plan (N, P) between rows (N, d) and prototypes (P, d).

    Sinkhorn on the cosine similarities, rows first and columns last, so that every column sums
    to 1 and the rows are balanced only approximately.
    """
    kernel = torch.exp(l2_normalise(rows) @ l2_normalise(prototypes).T / epsilon)
    column = torch.ones_like(kernel[0])
    row = torch.ones_like(kernel[:, 0])
    for _ in range(iterations):
        row = 1.0 / (kernel @ column)
        column = 1.0 / (row @ kernel)
    return row[:, None] * kernel * column


def _pulled(rows: Tensor, plan: Tensor, k: int, *, normalised: bool) -> Tensor:
    """Per prototype, the weighted sum (G, d) of its k best rows under its plan column."""
    weights, best = plan.topk(k, dim=0)
    if normalised:
        weights = weights / weights.sum(0, keepdim=True)
    return torch.einsum("kg,kgd->gd", weights, rows[best])


def _single_update(rows: Tensor, plan: Tensor, local: Tensor, gamma: float) -> Tensor:
    """Every row overwrites its best prototype; of colliding rows the last one wins."""
    best = plan.argmax(1)
    order = torch.arange(len(rows), device=rows.device)
    writer = torch.full((len(local),), -1, device=rows.device, dtype=order.dtype)
    writer = writer.scatter_reduce(0, best, order, "amax")
    moved = gamma * local + (1 - gamma) * rows[writer.clamp_min(0)]
    return torch.where((writer >= 0)[:, None], moved, local)


def _bulk_update(x: Tensor, plan: Tensor, local: Tensor, *, variant: str, gamma: float) -> Tensor:
    """Every prototype moves towards the k embeddings that its plan column weighs most."""
    batch, count = len(x), len(local)
    rows = x.flatten(0, 1)
    # The reference counts samples, the paper tokens.
    k = max(1, batch // count) if variant == "bulk_code" else -(-len(rows) // count)
    if variant == "paper_pseudo":
        pulled = _pulled(l2_normalise(rows), plan, k, normalised=False)
    else:
        pulled = _pulled(rows, plan, k, normalised=True)
    return gamma * local + (1 - gamma) * pulled


@torch.library.custom_op("protofleet::alp_train", mutates_args=())
def alp_train(  # noqa: PLR0913, PLR0917 - the operator's signature is the contract with the kernels
    x: Tensor,
    local: Tensor,
    global_: Tensor,
    variant: str,
    gamma: float,
    epsilon: float,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Assign global prototypes to embeddings and move the local ones; no gradient.

    Args:
        x: embeddings, (B, Z, d) float32.
        local: local prototypes, (G, d) float32; not written.
        global_: global prototypes, (G, d) float32.
        variant: one of ``ALP_UPDATES``.
        gamma: share of its old value that a prototype keeps.
        epsilon: temperature of the plan.
        iterations: Sinkhorn iterations.

    Returns:
        The chosen global prototype of every token, (B, Z, d), and the new local ones, (G, d).
    """
    rows, count = x.flatten(0, 1), len(local)
    plan = transport_plan(rows, torch.cat((local, global_)), epsilon, iterations)
    chosen = global_[plan[:, count:].argmax(1)].reshape(x.shape)
    if variant == "single_code":
        return chosen, _single_update(rows, plan[:, :count], local, gamma)
    return chosen, _bulk_update(x, plan[:, :count], local, variant=variant, gamma=gamma)


@alp_train.register_fake
def _(  # noqa: PLR0913, PLR0917 - as above
    x: Tensor,
    local: Tensor,
    global_: Tensor,  # noqa: ARG001 - the operator's signature
    variant: str,  # noqa: ARG001 - as above
    gamma: float,  # noqa: ARG001 - as above
    epsilon: float,  # noqa: ARG001 - as above
    iterations: int,  # noqa: ARG001 - as above
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(local)


@torch.library.custom_op("protofleet::alp_infer", mutates_args=())
def alp_infer(x: Tensor, local: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Assign local prototypes (G, d) to embeddings (B, Z, d); no gradient.

    The plan balances columns over the whole batch: a token's prototype depends on the others.
    """
    plan = transport_plan(x.flatten(0, 1), local, epsilon, iterations)
    return local[plan.argmax(1)].reshape(x.shape)


@alp_infer.register_fake
def _(x: Tensor, local: Tensor, epsilon: float, iterations: int) -> Tensor:  # noqa: ARG001 - as above
    return torch.empty_like(x)


def generator_beside(extra: int = 0) -> torch.Generator:
    """A generator for parts that a model has beside others, which take no draw away from those.

    It follows from the state of PyTorch's own, which stays as it is: for one seed all other parts
    start with the same bits, whether these are there or not.

    Args:
        extra: tells generators apart that are made without a draw in between.
    """
    state = hashlib.sha256(torch.get_rng_state().numpy().tobytes() + extra.to_bytes(8, "little"))
    return torch.Generator().manual_seed(int.from_bytes(state.digest()[:8], "little"))


class Alignment(nn.Module):
    """ALP layer: pulls tokens towards prototypes, (B, Z, d) → (B, Z, d) of unit norm.

    In training mode tokens are matched with the global prototypes and the local ones are updated
    in place, as batch normalisation updates its statistics; in evaluation mode they are matched
    with the local ones.

    Args:
        width: d.
        count: G, the number of local and of global prototypes.
        update: one of ``ALP_UPDATES``.
        gamma: share of its old value that a prototype keeps at an update.
        generator: draws prototypes and weights; None: ``generator_beside()``. Layers of one model
            share one.

    Raises:
        InputError: ``update`` is unknown.
    """

    epsilon = 0.05
    iterations = 3
    local_prototypes: Tensor
    global_prototypes: Tensor

    def __init__(
        self,
        width: int,
        count: int,
        *,
        update: str = "bulk_code",
        gamma: float = 0.999,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if update not in ALP_UPDATES:
            raise InputError(
                f"ALP update: expected one of {', '.join(ALP_UPDATES)}, got '{update}'"
            )
        self.update, self.gamma = update, gamma
        generator = generator or generator_beside()
        for name in ("local_prototypes", "global_prototypes"):
            self.register_buffer(name, torch.randn(count, width, generator=generator))
        with torch.random.fork_rng(devices=[]):
            self.glu = nn.Linear(width, 2 * width)
        nn.init.xavier_uniform_(self.glu.weight, generator=generator)
        nn.init.zeros_(self.glu.bias)

    def forward(self, x: Tensor, beta: Tensor) -> Tensor:
        """Mix x with its prototypes; ``beta`` () float32 is the prototypes' share."""
        gated: Tensor = self.glu(self._chosen(x.detach()))
        value, gate = gated.chunk(2, dim=-1)
        return l2_normalise(beta * value * torch.sigmoid(gate) + (1 - beta) * x)

    def _chosen(self, x: Tensor) -> Tensor:
        if not self.training:
            nearest: Tensor = alp_infer(x, self.local_prototypes, self.epsilon, self.iterations)
            return nearest
        chosen: Tensor
        moved: Tensor
        chosen, moved = alp_train(
            x,
            self.local_prototypes,
            self.global_prototypes,
            self.update,
            self.gamma,
            self.epsilon,
            self.iterations,
        )
        with torch.no_grad():
            self.local_prototypes.copy_(moved)
        return chosen
