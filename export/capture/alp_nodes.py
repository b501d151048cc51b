"""ALP's operators in a captured graph: single nodes, which every writer spells out its own way.

Nodes ``AlpTrain``, ``AlpInfer``, ``AlpAblationTrain`` and ``AlpAblationInfer`` of domain
``protofleet``, version 1, with the arguments of ``protofleet.export.models.alp``, where symbols and
source stand.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx
from torch.onnx.ops import symbolic, symbolic_multi_out

DOMAIN = "protofleet"
VERSION = 1


def alp_train_node(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    local: Tensor,
    global_: Tensor,
    variant: str,
    gamma: float,
    epsilon: float,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Decomposition of ``protofleet::alp_train``: one ONNX node."""
    chosen, new_local = symbolic_multi_out(
        f"{DOMAIN}::AlpTrain",
        (x, local, global_),
        {"variant": variant, "gamma": gamma, "epsilon": epsilon, "iterations": iterations},
        dtypes=(x.dtype, local.dtype),
        shapes=(x.shape, local.shape),
        version=VERSION,
    )
    return chosen, new_local


def alp_infer_node(x: Tensor, local: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Decomposition of ``protofleet::alp_infer``: one ONNX node."""
    return symbolic(
        f"{DOMAIN}::AlpInfer",
        (x, local),
        {"epsilon": epsilon, "iterations": iterations},
        dtype=x.dtype,
        shape=x.shape,
        version=VERSION,
    )


def alp_ablation_train_node(  # noqa: PLR0913, PLR0917 - the operator's signature
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
    """Decomposition of ``protofleet::alp_ablation_train``: one ONNX node."""
    chosen, new_local = symbolic_multi_out(
        f"{DOMAIN}::AlpAblationTrain",
        (x, local, global_),
        {
            "variant": variant,
            "banks": banks,
            "assignment": assignment,
            "gamma": gamma,
            "epsilon": epsilon,
            "iterations": iterations,
        },
        dtypes=(x.dtype, local.dtype),
        shapes=(x.shape, local.shape),
        version=VERSION,
    )
    return chosen, new_local


def alp_ablation_infer_node(x: Tensor, prototypes: Tensor, assignment: str) -> Tensor:
    """Decomposition of ``protofleet::alp_ablation_infer``: one ONNX node."""
    return symbolic(
        f"{DOMAIN}::AlpAblationInfer",
        (x, prototypes),
        {"assignment": assignment},
        dtype=x.dtype,
        shape=x.shape,
        version=VERSION,
    )


def node_attributes(node: fx.Node) -> dict[str, Any]:
    """Attributes of a captured ALP node by name, e.g. ``epsilon``."""
    kwargs: Any = node.kwargs
    pools = {"f": kwargs["attr_floats"], "i": kwargs["attr_ints"], "s": kwargs["attr_strs"]}
    described = zip(kwargs["attr_keys"], kwargs["attr_types"], kwargs["attr_pos"], strict=True)
    return {key: pools[kind][place[0]] for key, kind, place in described}
