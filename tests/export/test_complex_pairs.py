"""Complex arithmetic of pairs against PyTorch's own."""

# ruff: noqa: ARG005 - all functions take the same three

from __future__ import annotations

import pytest
import torch

from protofleet.errors import ExportError
from protofleet.export.capture.functions import ProgramFunctions


def _filled(out, some, others):
    out[:, :2] = some[:, :2] * 2
    out[:, 2, 1:] = others[:, 0, 1:]
    return out


_FUNCTIONS = {
    "sum and difference": lambda z, w, x: z + w - x + 2 - w * 3,
    "from the left": lambda z, w, x: (1 - z) * 2 + x * z + (x - w),
    "products and quotients": lambda z, w, x: z * w / (w + 3) / (x.abs() + 1),
    "reciprocal": lambda z, w, x: 1 / (w + 4),
    "Python's complex numbers": lambda z, w, x: z * 1j + (2 - 1j) * w + x * 1j,
    "conjugate": lambda z, w, x: z.conj() * w + torch.conj(w).resolve_conj(),
    "parts": lambda z, w, x: z.real * w.imag + torch.real(w) - torch.imag(z),
    "length and angle": lambda z, w, x: z.abs() + torch.abs(w) + torch.angle(z) * w.angle(),
    "powers": lambda z, w, x: z**2 + w.pow(3) + torch.square(z),
    "sign": lambda z, w, x: torch.sgn(z) * w.sgn(),
    "exponential": lambda z, w, x: torch.exp(z * 0.3),
    "products of matrices": lambda z, w, x: z @ w.mT + torch.matmul(w, z.mH),
    "einsum": lambda z, w, x: (
        torch.einsum("bij,bkj->bik", z, w) + torch.einsum("bii->b", z @ w.mT)[:, None, None]
    ),
    "slices": lambda z, w, x: z[:, 1:, ::2] * w[..., 1:, 1:3],
    "joined": lambda z, w, x: torch.cat((z, w), -1) + torch.stack((z, w)).sum(0).repeat(1, 1, 2),
    "turned": lambda z, w, x: z.permute(0, 2, 1).flatten(1) + w.reshape(2, -1).flip(-1).roll(1, -1),
    "reduced": lambda z, w, x: z.mean(-1) + w.sum(-1),
    "split": lambda z, w, x: z.chunk(2, -1)[0] * w.split(2, -1)[1],
    "as real": lambda z, w, x: torch.view_as_real(z) * torch.view_as_real(-w),
    "polar": lambda z, w, x: torch.polar(z.abs(), w.angle()) * torch.complex(x, x.sin()),
    "shape": lambda z, w, x: z * z.shape[1] * z.ndim * len(w) * z.size(-1) * z.numel(),
    "written to": lambda z, w, x: _filled(torch.zeros(2, 3, 4, dtype=torch.cfloat), z, w),
    "written to, as another": lambda z, w, x: _filled(torch.zeros_like(z), w, x),
    "made complex": lambda z, w, x: x.to(torch.complex64) * z + x.type(torch.cfloat) + x.cfloat(),
    "other dtypes": lambda z, w, x: z.to(torch.complex64) if z.is_complex() else w,
}


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_equal_to_pytorch(name):
    """Numbers and gradients."""
    torch.manual_seed(0)
    given = [torch.randn(2, 3, 4, requires_grad=True) for _ in range(5)]

    def compute():
        a, b, c, d, x = given
        result = _FUNCTIONS[name](torch.complex(a, b), torch.complex(c, d), x)
        return torch.view_as_real(result) if torch.is_complex(result) else result

    with ProgramFunctions():
        got = compute()
    expected = compute()
    torch.testing.assert_close(got, expected)
    weight = torch.randn_like(expected)
    wanted, found = (
        torch.autograd.grad((value * weight).sum(), given, materialize_grads=True)
        for value in (expected, got)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def _refused(compute, match):
    with ProgramFunctions(), pytest.raises(ExportError, match=match):
        compute(torch.complex(torch.ones(2, 3), torch.ones(2, 3)))


def test_what_has_no_real_form_is_refused_by_name():
    _refused(lambda z: z.tanh(), r"^tanh of complex numbers: .* take \.real, \.imag or \.abs\(\)")
    _refused(torch.linalg.svd, r"linalg_svd of complex numbers")
    _refused(lambda z: z.add_(1), "add_ of complex numbers")
    _refused(lambda z: z**0.5, r"power of 0\.5: expected 1, 2, 3")
    _refused(lambda z: z.to(torch.float32), r"to torch\.float32: take \.real")


def test_complex_tensors_from_elsewhere_are_refused_with_what_to_do():
    kept = torch.ones(3, dtype=torch.complex64)
    _refused(lambda z: z * kept, r"keep its real and its imaginary part, and join them in forward")
    _refused(lambda _: torch.rand(3, dtype=torch.complex64), r"rand: gives complex numbers")
