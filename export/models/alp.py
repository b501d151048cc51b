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

The operators are opaque nodes of a captured program; a device replaces ``alp_train`` and
``alp_infer`` by ``protofleet.kernels``. Here they stand in ordinary PyTorch, independent of the
kernels, as the reference for parity. ``alp_ablation_train`` and ``alp_ablation_infer`` are what the
paper's Table 4 takes away, and run as the ordinary operators that they are made of.

A single embedding (one example of one token) is a tie: its columns sum to one, so that its row of
the plan is all ones. The lowest index wins, in every runtime.

Deviations:
    - The plan is kept as row and column scaling vectors instead of a matrix divided in place; the
      constants by which the reference divides in between cancel.
    - ``single_code`` writes colliding prototypes in row order, so that the last row always wins;
      TensorFlow leaves the order open.
    - What Table 4's rows without local or global prototypes, and those by cosine or Euclidean
      distance, compute in detail is not published: ``AlignmentConfig`` says what they do here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from protofleet.errors import InputError

AlpUpdate = Literal["bulk_code", "single_code", "paper_text", "paper_pseudo"]
ALP_UPDATES: tuple[str, ...] = get_args(AlpUpdate)
"""How the local prototypes follow the embeddings; the first is the default."""

Banks = Literal["both", "local", "global"]
Assignment = Literal["transport", "cosine", "euclidean"]

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


def assignment_scores(
    rows: Tensor, prototypes: Tensor, assignment: str, epsilon: float, iterations: int
) -> Tensor:
    """How well rows (N, d) and prototypes (P, d) fit, (N, P): a row's largest value is best."""
    if assignment == "transport":
        return transport_plan(rows, prototypes, epsilon, iterations)
    if assignment == "cosine":
        return l2_normalise(rows) @ l2_normalise(prototypes).T
    squares = rows.square().sum(1, keepdim=True) + prototypes.square().sum(1)
    return 2 * rows @ prototypes.T - squares


def best_columns(scores: Tensor, assignment: str = "transport") -> Tensor:
    """The best column of every row, (N,); the first of a single row's plan, which is a tie."""
    if assignment == "transport" and len(scores) == 1:
        return torch.zeros(1, dtype=torch.int64)
    return scores.argmax(1)


def _pulled(rows: Tensor, plan: Tensor, k: int, *, normalised: bool) -> Tensor:
    """Per prototype, the weighted sum (G, d) of its k best rows under its plan column."""
    weights, best = plan.topk(k, dim=0)
    if normalised:
        weights = weights / weights.sum(0, keepdim=True)
    return torch.einsum("kg,kgd->gd", weights, rows[best])


def _single_update(rows: Tensor, best: Tensor, local: Tensor, gamma: float) -> Tensor:
    """Every row overwrites its best prototype (N,); of colliding rows the last one wins."""
    order = torch.arange(len(rows), device=rows.device)
    writer = torch.full((len(local),), -1, device=rows.device, dtype=order.dtype)
    writer = writer.scatter_reduce(0, best, order, "amax")
    moved = gamma * local + (1 - gamma) * rows[writer.clamp_min(0)]
    return torch.where((writer >= 0)[:, None], moved, local)


def members(variant: str, x: Tensor, count: int) -> int:
    """How many embeddings of (B, Z, d) a prototype moves towards."""
    # The reference counts samples, the paper tokens.
    if variant == "bulk_code":
        return max(1, len(x) // count)
    return -(-len(x) * x.shape[1] // count)


def _bulk_update(x: Tensor, plan: Tensor, local: Tensor, *, variant: str, gamma: float) -> Tensor:
    """Every prototype moves towards the k embeddings that its plan column weighs most."""
    rows, k = x.flatten(0, 1), members(variant, x, len(local))
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
    chosen = global_[best_columns(plan[:, count:])].reshape(x.shape)
    if variant == "single_code":
        return chosen, _single_update(rows, best_columns(plan[:, :count]), local, gamma)
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
    return local[best_columns(plan)].reshape(x.shape)


@alp_infer.register_fake
def _(x: Tensor, local: Tensor, epsilon: float, iterations: int) -> Tensor:  # noqa: ARG001 - as above
    return torch.empty_like(x)


@torch.library.custom_op("protofleet::alp_ablation_train", mutates_args=())
def alp_ablation_train(  # noqa: PLR0913, PLR0917 - as of ``alp_train``, and what is taken away
    x: Tensor,
    local: Tensor,
    global_: Tensor,
    variant: str,
    banks: str,
    assignment: str,
    gamma: float,
    epsilon: float,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """``alp_train`` with fewer prototypes, or without the plan; no gradient.

    Args:
        x: embeddings, (B, Z, d) float32.
        local: local prototypes, (G, d) float32; not written.
        global_: global prototypes, (G, d) float32.
        variant: one of ``ALP_UPDATES``.
        banks: which prototypes take part, as in ``AlignmentConfig``.
        assignment: as in ``AlignmentConfig``.
        gamma: share of its old value that a prototype keeps.
        epsilon: temperature of the plan.
        iterations: Sinkhorn iterations.

    Returns:
        The chosen prototype of every token, (B, Z, d), and the new local ones, (G, d).
    """
    rows, count = x.flatten(0, 1), len(local)
    active = {"both": torch.cat((local, global_)), "local": local, "global": global_}[banks]
    scores = assignment_scores(rows, active, assignment, epsilon, iterations)
    own, others = scores[:, :count], scores[:, -count:]
    bank = local if banks == "local" else global_
    chosen = bank[best_columns(others, assignment)].reshape(x.shape)
    if variant == "single_code":
        return chosen, _single_update(rows, best_columns(own, assignment), local, gamma)
    if assignment == "transport":
        return chosen, _bulk_update(x, own, local, variant=variant, gamma=gamma)
    nearest = own.topk(members(variant, x, count), dim=0).indices
    return chosen, gamma * local + (1 - gamma) * rows[nearest].mean(0)


@alp_ablation_train.register_fake
def _(  # noqa: PLR0913, PLR0917 - as above
    x: Tensor,
    local: Tensor,
    global_: Tensor,  # noqa: ARG001 - the operator's signature
    variant: str,  # noqa: ARG001 - as above
    banks: str,  # noqa: ARG001 - as above
    assignment: str,  # noqa: ARG001 - as above
    gamma: float,  # noqa: ARG001 - as above
    epsilon: float,  # noqa: ARG001 - as above
    iterations: int,  # noqa: ARG001 - as above
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(local)


@torch.library.custom_op("protofleet::alp_ablation_infer", mutates_args=())
def alp_ablation_infer(x: Tensor, prototypes: Tensor, assignment: str) -> Tensor:
    """The nearest of the prototypes (G, d) for every embedding of (B, Z, d); no gradient.

    ``assignment`` is cosine or euclidean: an embedding's prototype depends on no other embedding.
    """
    scores = assignment_scores(x.flatten(0, 1), prototypes, assignment, 1.0, 0)
    return prototypes[best_columns(scores, assignment)].reshape(x.shape)


@alp_ablation_infer.register_fake
def _(x: Tensor, prototypes: Tensor, assignment: str) -> Tensor:  # noqa: ARG001 - as above
    return torch.empty_like(x)


@dataclass(frozen=True, kw_only=True)
class AlignmentConfig:
    """How alignment layers work; the defaults are FedAli's, the rest of it the rows of its Table 4.

    Attributes:
        alp_update: how local prototypes are updated, one of ``ALP_UPDATES``.
        gamma: share of its old value that a prototype keeps at an update.
        alp_banks: which prototypes take part in the plan. ``"both"``: training takes global ones
            and moves local ones, inference takes local ones. ``"local"``: there are no global ones;
            training and inference take local ones, as they were before the update.
            ``"global"``: training and inference take global ones; what the server clusters is
            moved by the columns of the global ones.
        alp_assignment: ``"transport"``, by the plan; ``"cosine"`` or ``"euclidean"``: an embedding
            takes the prototype of the largest cosine or the least distance, and a prototype moves
            to the plain mean of the embeddings that are nearest to it, as many as by the plan.
        alp_glu: pass prototypes through the gated linear unit before they are mixed in.

    Raises:
        InputError: an unknown update, bank or assignment, or ``paper_pseudo``, which weighs by the
            plan, without one.
    """

    alp_update: str = "bulk_code"
    gamma: float = 0.999
    alp_banks: str = "both"
    alp_assignment: str = "transport"
    alp_glu: bool = True

    def __post_init__(self) -> None:
        for name, known in (
            ("alp_update", ALP_UPDATES),
            ("alp_banks", get_args(Banks)),
            ("alp_assignment", get_args(Assignment)),
        ):
            if (value := getattr(self, name)) not in known:
                raise InputError(f"{name}: expected one of {', '.join(known)}, got '{value}'")
        if self.alp_update == "paper_pseudo" and self.alp_assignment != "transport":
            raise InputError(
                "alp_update 'paper_pseudo' weighs by the plan: expected alp_assignment "
                f"'transport', got '{self.alp_assignment}'"
            )

    @property
    def ablated(self) -> bool:
        """Whether the assignment is another than FedAli's."""
        return self.alp_banks != "both" or self.alp_assignment != "transport"


_FEDALI = AlignmentConfig()


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
        config: how the layer works.
        generator: draws prototypes and weights; None: ``generator_beside()``. Layers of one model
            share one.
    """

    epsilon = 0.05
    iterations = 3
    local_prototypes: Tensor
    global_prototypes: Tensor

    def __init__(
        self,
        width: int,
        count: int,
        config: AlignmentConfig = _FEDALI,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        # A plan balances over all tokens of a batch (docs/export-internals.md).
        self.mixes_samples = config.alp_assignment == "transport"
        generator = generator or generator_beside()
        for name in ("local_prototypes", "global_prototypes"):
            self.register_buffer(name, torch.randn(count, width, generator=generator))
        self.glu: nn.Linear | None = None
        if config.alp_glu:
            with torch.random.fork_rng(devices=[]):
                self.glu = nn.Linear(width, 2 * width)
            nn.init.xavier_uniform_(self.glu.weight, generator=generator)
            nn.init.zeros_(self.glu.bias)

    def forward(self, x: Tensor, beta: Tensor) -> Tensor:
        """Mix x with its prototypes; ``beta`` () float32 is the prototypes' share."""
        return l2_normalise(beta * self.gated(self.chosen(x.detach())) + (1 - beta) * x)

    def gated(self, prototypes: Tensor) -> Tensor:
        """What is mixed in of prototypes (…, d)."""
        if self.glu is None:
            return prototypes
        value, gate = self.glu(prototypes).chunk(2, dim=-1)
        mixed: Tensor = value * torch.sigmoid(gate)
        return mixed

    def chosen(self, x: Tensor) -> Tensor:
        """The prototypes of embeddings (B, Z, d); in training mode the local ones move."""
        chosen, moved = self._matched(x) if self.training else (self._inferred(x), None)
        if moved is not None:
            with torch.no_grad():
                self.local_prototypes.copy_(moved)
        return chosen

    @property
    def inferring(self) -> Tensor:
        """The prototypes (G, d) that inference takes."""
        is_global = self.config.alp_banks == "global"
        return self.global_prototypes if is_global else self.local_prototypes

    def _inferred(self, x: Tensor) -> Tensor:
        by = self.config.alp_assignment
        found: Tensor = (
            alp_infer(x, self.inferring, self.epsilon, self.iterations)
            if by == "transport"
            else alp_ablation_infer(x, self.inferring, by)
        )
        return found

    def _matched(self, x: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        operands = x, self.local_prototypes, self.global_prototypes, config.alp_update
        numbers = config.gamma, self.epsilon, self.iterations
        found: tuple[Tensor, Tensor] = (
            alp_ablation_train(*operands, config.alp_banks, config.alp_assignment, *numbers)
            if config.ablated
            else alp_train(*operands, *numbers)
        )
        return found
