"""Fourier transforms of pairs against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from protofleet.errors import ExportError
from protofleet.export.capture.functions import ProgramFunctions

fft = torch.fft


def _agree(compute, *inputs, tolerance=2e-6):
    """The same numbers and gradients, with complex tensors and with pairs of real ones."""
    expected_inputs = [x.clone().requires_grad_() for x in inputs]
    got_inputs = [x.clone().requires_grad_() for x in inputs]
    expected = compute(*expected_inputs)
    with ProgramFunctions():
        got = compute(*got_inputs)
        got = torch.view_as_real(got) if torch.is_complex(got) else got
    expected = expected.resolve_conj()
    expected = torch.view_as_real(expected) if expected.is_complex() else expected
    assert not got.is_complex()
    assert got.shape == expected.shape
    scale = float(expected.detach().abs().max()) + 1
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance * scale)
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, expected_inputs, grad)
    given = torch.autograd.grad(got, got_inputs, grad)
    for one, other in zip(given, wanted, strict=True):
        bound = tolerance * (float(other.abs().max()) + 1)
        torch.testing.assert_close(one, other, rtol=0, atol=bound)


@pytest.mark.parametrize("n", [*range(1, 34), 97, 128, 181, 250, 256, 509, 640, 1000, 1021, 1024])
def test_a_real_window_of_any_length(n):
    """Powers of two, primes and what lies between: by one product, in stages, from two tables."""
    torch.manual_seed(n)
    x = torch.randn(3, n)
    _agree(fft.rfft, x)
    _agree(lambda v: fft.irfft(fft.rfft(v), n=n).sin(), x)


@pytest.mark.parametrize("n", [2, 15, 64, 200, 509, 1018, 1021, 1024])
def test_complex_windows_there_and_back(n):
    torch.manual_seed(n)
    x = torch.randn(2, n)
    _agree(lambda v: fft.fft(fft.fft(v) * (0.5 - 1j)), x, tolerance=1e-5)
    _agree(lambda v: fft.ifft(fft.fft(v) * (0.5 - 1j)), x)


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
def test_axes_sizes_and_norms(norm):
    x = torch.randn(2, 12, 5)
    for size in (None, 7, 20):
        _agree(lambda v, size=size: fft.rfft(v, n=size, dim=1, norm=norm), x)
        _agree(lambda v, size=size: fft.ifft(v, n=size, dim=-2, norm=norm), x)
        _agree(lambda v, size=size: fft.irfft(v, n=size, dim=1, norm=norm), x)
    _agree(lambda v: fft.rfft2(v, norm=norm), x)
    _agree(lambda v: fft.irfft2(fft.fft2(v), norm=norm), x)
    _agree(lambda v: fft.ifftn(fft.rfftn(v, dim=(1, 2)), dim=(1, 2), norm=norm), x)
    _agree(lambda v: fft.ifftshift(fft.fftshift(fft.fft(v), dim=1)).abs(), x)


@pytest.mark.parametrize(
    "options",
    [
        {"n_fft": 16, "window": torch.hann_window(16)},
        {"n_fft": 16, "hop_length": 5, "win_length": 10, "center": False},
        {"n_fft": 20, "hop_length": 20, "window": torch.hamming_window(12), "win_length": 12},
        {"n_fft": 8, "hop_length": 3, "onesided": False, "normalized": True},
        {"n_fft": 16, "hop_length": 4, "pad_mode": "constant"},
    ],
)
def test_short_time_transforms(options):
    x = torch.randn(3, 67)
    _agree(lambda v: torch.stft(v, **options, return_complex=True), x)
    _agree(lambda v: v.stft(**options, return_complex=True).abs() ** 2, x)


def test_a_silent_window_has_length_zero_and_no_gradient():
    x = torch.zeros(2, 16, requires_grad=True)
    with ProgramFunctions():
        length = fft.rfft(x).abs()
    (grad,) = torch.autograd.grad(length.sum(), x)
    assert float(length.detach().max()) < 1e-15
    assert torch.equal(grad, torch.zeros_like(grad))


def test_no_constant_is_as_large_as_a_weight(monkeypatch):
    """Whatever the length: 64 KiB is the most that a program may hold."""
    largest = []
    real = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda a: (largest.append(a.nbytes), real(a))[1])
    with ProgramFunctions():
        for n in (1, 2, 127, 128, 181, 193, 256, 499, 503, 509, 997, 1006, 1018, 1021, 1024):
            fft.irfft(fft.rfft(torch.zeros(1, n)), n=n)
            fft.ifft(fft.fft(torch.zeros(1, n)))
    assert max(largest) <= 65536


def test_long_windows_are_refused_with_what_to_do():
    with ProgramFunctions(), pytest.raises(ExportError, match=r"rfft of 2048 .* at most 1024: cut"):
        fft.rfft(torch.zeros(2, 2048))
    with ProgramFunctions(), pytest.raises(ExportError, match=r"stft: expected examples by time"):
        torch.stft(torch.zeros(2, 3, 100), 16, return_complex=True)
