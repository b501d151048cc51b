"""Activations, arithmetic, comparisons, reductions and spectra."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import SweepCase, function

_TABLE = (4, 6)
_SERIES = (3, 10)


def _activation(module: type[nn.Module], *args: object, **kwargs: object) -> SweepCase:
    given = [*map(str, args), *(f"{k}={v}" for k, v in kwargs.items())]
    return SweepCase(
        name=f"nn.{module.__name__}" + (f"({', '.join(given)})" if given else ""),
        group="activations",
        build=lambda: module(*args, **kwargs),
        input_shape=_TABLE,
    )


def _positive(x: Tensor) -> Tensor:
    return x.abs() + 0.5


def _inside(x: Tensor) -> Tensor:
    """Between -0.9 and 0.9, where inverse functions are defined."""
    return 0.9 * torch.tanh(x)


class _Gumbel(nn.Module):
    """Random while it trains only, as programs for inference have to be."""

    def forward(self, x: Tensor) -> Tensor:
        """Shares along the last axis."""
        if self.training:
            return functional.gumbel_softmax(x, dim=-1)
        return functional.softmax(x, dim=-1)


class _Bounds(nn.Module):
    """Clamped by tensors, which are trained too."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.full((6,), -0.5))
        self.high = nn.Parameter(torch.full((6,), 0.7))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` between two vectors."""
        return torch.clamp(x, self.low, self.high)


_ACTIVATIONS = (
    _activation(nn.ReLU),
    _activation(nn.ReLU6),
    _activation(nn.Hardtanh),
    _activation(nn.Hardtanh, -0.3, 1.2),
    _activation(nn.ELU),
    _activation(nn.ELU, alpha=0.7),
    _activation(nn.CELU, alpha=1.3),
    _activation(nn.SELU),
    _activation(nn.GELU),
    _activation(nn.GELU, approximate="tanh"),
    _activation(nn.SiLU),
    _activation(nn.Mish),
    _activation(nn.Softplus),
    _activation(nn.Softplus, beta=2.0, threshold=1.0),
    _activation(nn.Softsign),
    _activation(nn.Softshrink),
    _activation(nn.Hardshrink),
    _activation(nn.Tanhshrink),
    _activation(nn.Hardswish),
    _activation(nn.Hardsigmoid),
    _activation(nn.LeakyReLU),
    _activation(nn.LeakyReLU, 0.2),
    _activation(nn.PReLU),
    _activation(nn.PReLU, 4),
    _activation(nn.RReLU),
    _activation(nn.GLU),
    _activation(nn.GLU, dim=1),
    _activation(nn.LogSigmoid),
    _activation(nn.Sigmoid),
    _activation(nn.Tanh),
    _activation(nn.Threshold, 0.1, -0.4),
    _activation(nn.Softmax, dim=-1),
    _activation(nn.Softmax, dim=1),
    _activation(nn.LogSoftmax, dim=-1),
    _activation(nn.LogSoftmax, dim=1),
    _activation(nn.Softmin, dim=1),
    function("torch.clamp, two numbers", "activations", lambda x: x.clamp(-0.4, 0.9), _TABLE),
    function("torch.clamp, one number", "activations", lambda x: x.clamp(min=-0.4), _TABLE),
    SweepCase(name="torch.clamp, tensors", group="activations", build=_Bounds, input_shape=_TABLE),
)

_ARITHMETIC = tuple(
    function(f"torch.{name}", "arithmetic", apply, _TABLE)
    for name, apply in {
        "sign": lambda x: x * torch.sign(x + 0.2) + torch.sign(x),
        "abs": torch.abs,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "expm1": torch.expm1,
        "log": lambda x: torch.log(_positive(x)),
        "log1p": lambda x: torch.log1p(_positive(x)),
        "log2": lambda x: torch.log2(_positive(x)),
        "log10": lambda x: torch.log10(_positive(x)),
        "sqrt": lambda x: torch.sqrt(_positive(x)),
        "rsqrt": lambda x: torch.rsqrt(_positive(x)),
        "reciprocal": lambda x: torch.reciprocal(_positive(x)),
        "square": torch.square,
        "pow, a whole number": lambda x: x**3 + x**2 + _positive(x) ** -2,
        "pow, a fraction": lambda x: _positive(x) ** 0.37 + _positive(x) ** 1.5,
        "pow, a tensor": lambda x: _positive(x) ** x,
        "pow, of a number": lambda x: 2.0**x,
        "sin": torch.sin,
        "cos": torch.cos,
        "tan": lambda x: torch.tan(_inside(x)),
        "asin": lambda x: torch.asin(_inside(x)),
        "acos": lambda x: torch.acos(_inside(x)),
        "atan": torch.atan,
        "atan2": lambda x: torch.atan2(x[:, :2], x[:, 2:]),
        "sinh": torch.sinh,
        "cosh": torch.cosh,
        "asinh": torch.asinh,
        "acosh": lambda x: torch.acosh(_positive(x) + 1),
        "atanh": lambda x: torch.atanh(_inside(x)),
        "erf": torch.erf,
        "erfc": torch.erfc,
        "sinc": torch.sinc,
        "logit": lambda x: torch.logit(0.5 + 0.5 * _inside(x)),
        "xlogy": lambda x: torch.xlogy(x, _positive(x)),
        "floor": lambda x: x * torch.floor(3 * x),
        "ceil": lambda x: x * torch.ceil(3 * x),
        "round": lambda x: x * torch.round(3 * x),
        "round, decimals": lambda x: x * torch.round(x, decimals=1),
        "trunc": lambda x: x * torch.trunc(3 * x),
        "frac": lambda x: torch.frac(3 * x),
        "fmod": lambda x: torch.fmod(3 * x, 1.7),
        "remainder": lambda x: torch.remainder(3 * x, 1.7),
        "div, floor and trunc": lambda x: (
            x * torch.div(x, 0.3, rounding_mode="floor")
            + x * torch.div(x, 0.4, rounding_mode="trunc")
        ),
        "minimum, maximum": lambda x: torch.minimum(x, x.flip(1)) * torch.maximum(x, x * x),
        "fmin, fmax": lambda x: torch.fmin(x, x.flip(1)) * torch.fmax(x, x * x),
        "lerp": lambda x: (
            torch.lerp(x[:, :2], x[:, 2:], 0.3) * torch.lerp(x[:, 1:3], x[:, 2:], x[:, :2])
        ),
        "addcmul, addcdiv": lambda x: (
            torch.addcmul(x, x, torch.tanh(x), value=0.5)
            + torch.addcdiv(x, x, _positive(x), value=2.0)
        ),
        "hypot": lambda x: torch.hypot(x[:, :2], x[:, 2:]),
        "logaddexp": lambda x: torch.logaddexp(x[:, :2], x[:, 2:]),
        "nan_to_num": lambda x: torch.nan_to_num(x, 0.5) + torch.nan_to_num(torch.log(x)),
        "isnan, isinf, isfinite": lambda x: torch.where(
            torch.isfinite(x) & ~torch.isnan(x) & ~torch.isinf(x), x, torch.zeros_like(x)
        ),
        "where": lambda x: torch.where(x > 0.1, x * x, 0.3 * x),
        "masked_fill": lambda x: x.masked_fill(x < -0.3, 0.5),
        "comparisons": lambda x: x * ((x > 0.1).float() + (x <= -0.2).float() + (x != 0).float()),
        "logical and, or, xor, not": lambda x: (
            x * ((x > 0) ^ (x.flip(1) > 0) | ~(x < 1) & torch.logical_xor(x > 0, x > 1))
        ),
        "deg2rad": lambda x: torch.sin(torch.deg2rad(30 * x)),
        "outer products, einsum": lambda x: torch.einsum("bij,bkj->bik", x, x.tanh()),
        "matmul": lambda x: x @ x.transpose(1, 2).tanh(),
    }.items()
)

_REDUCTIONS = tuple(
    function(f"torch.{name}", "reductions", apply, _SERIES)
    for name, apply in {
        "sum": lambda x: x.sum(-1),
        "mean": lambda x: x.mean((1, 2)).unsqueeze(1),
        "std": lambda x: x.std(-1),
        "std, biased": lambda x: x.std(-1, unbiased=False),
        "var": lambda x: x.var(1),
        "var, biased": lambda x: x.var((1, 2), correction=0, keepdim=True),
        "var_mean": lambda x: torch.cat(torch.var_mean(x, -1), 1),
        "std_mean": lambda x: torch.cat(torch.std_mean(x, -1), 1),
        "norm, p=1": lambda x: x.norm(p=1, dim=-1),
        "norm, p=2": lambda x: x.norm(dim=-1),
        "norm, p=3": lambda x: x.norm(p=3, dim=1),
        "norm, p=inf": lambda x: x.norm(p=float("inf"), dim=-1),
        "linalg.vector_norm": lambda x: torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True),
        "prod": lambda x: x.prod(1),
        "amax": lambda x: x.amax(-1),
        "amin": lambda x: x.amin((1, 2)).unsqueeze(1),
        "aminmax": lambda x: torch.cat(torch.aminmax(x, dim=-1), 1),
        "logsumexp": lambda x: x.logsumexp(-1),
        "all, any": lambda x: x * ((x > -1).all(1, keepdim=True) | (x > 1).any(-1, keepdim=True)),
        "count_nonzero": lambda x: x.mean(-1) * (x > 0).count_nonzero(-1),
        "nansum, nanmean": lambda x: x.nansum(-1) + x.nanmean(-1),
        "cdist, p=2": lambda x: torch.cdist(x, 2 * x.tanh() + 0.1),
        "cdist, p=1": lambda x: torch.cdist(x, 2 * x.tanh() + 0.1, p=1),
        "trace of products": lambda x: torch.einsum("bij,bij->b", x, x.sin()).unsqueeze(1),
        "cov of channels": lambda x: (
            (x - x.mean(-1, keepdim=True)) @ (x - x.mean(-1, keepdim=True)).mT
        ),
    }.items()
) + tuple(
    function(f"F.{name}", "reductions", apply, _SERIES)
    for name, apply in {
        "normalize": functional.normalize,
        "normalize, last axis": lambda x: functional.normalize(x, dim=-1),
        "normalize, p=1": lambda x: functional.normalize(x, p=1.0, dim=-1),
        "cosine_similarity": lambda x: functional.cosine_similarity(x, x.flip(1) + 1, dim=-1),
        "pairwise_distance": lambda x: functional.pairwise_distance(x, x.flip(1) + 1),
    }.items()
)

_RANDOM = (
    SweepCase(name="F.gumbel_softmax", group="reductions", build=_Gumbel, input_shape=_SERIES),
)

CASES: tuple[SweepCase, ...] = (*_ACTIVATIONS, *_ARITHMETIC, *_REDUCTIONS, *_RANDOM)
