"""Spectra of sensor windows: Fourier transforms, as a model asks for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from protofleet.export.sweep.cases import SweepCase, function


def _of(name: str, apply: Callable[[Tensor], Tensor], *shape: int) -> SweepCase:
    return function(name, "spectra", apply, shape)


class _Spectrogram(nn.Module):
    """Log power of overlapping Hann windows."""

    window: Tensor

    def __init__(self, size: int, hop: int) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T) → (B, bins, frames)."""
        spectrum = torch.stft(
            x, self.size, self.hop, window=self.window, return_complex=True, normalized=True
        )
        return torch.log1p(spectrum.abs() ** 2)


class _FourierMixing(nn.Module):
    """Tokens mixed as in FNet: the real part of a transform over tokens and channels."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        mixed: Tensor = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return mixed


class _GlobalFilter(nn.Module):
    """A trained filter in the frequency domain, as in GFNet."""

    def __init__(self, length: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(length // 2 + 1, channels, 2))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        spectrum = torch.fft.rfft(x, dim=1, norm="ortho")
        filtered = spectrum * torch.view_as_complex(self.weight)
        signal: Tensor = torch.fft.irfft(filtered, n=x.shape[1], dim=1, norm="ortho")
        return signal


CASES: tuple[SweepCase, ...] = (
    _of("torch.fft.rfft, abs", lambda x: torch.fft.rfft(x).abs(), 3, 32),
    _of("torch.fft.rfft, power", lambda x: torch.fft.rfft(x, norm="ortho").abs().square(), 128),
    _of("torch.fft.rfft, 250 numbers", lambda x: torch.fft.rfft(x, norm="ortho").abs(), 250),
    _of("torch.fft.rfft, 256 numbers", lambda x: torch.fft.rfft(x, norm="ortho").abs(), 256),
    _of("torch.fft.rfft, 1000 numbers", lambda x: torch.fft.rfft(x, norm="ortho").abs(), 1000),
    _of("torch.fft.rfft, 1021 numbers", lambda x: torch.fft.rfft(x, norm="ortho").abs(), 1021),
    _of("torch.fft.rfft, 1024 numbers", lambda x: torch.fft.rfft(x, norm="ortho").abs(), 1024),
    _of("torch.fft.rfft, n and axis", lambda x: torch.fft.rfft(x, n=20, dim=1).abs(), 16, 3),
    _of(
        "torch.fft.rfft, real and imag",
        lambda x: torch.cat((torch.fft.rfft(x).real, torch.fft.rfft(x).imag), -1),
        3,
        20,
    ),
    _of("torch.fft.rfft, angle", lambda x: torch.fft.rfft(x)[..., 1:-1].angle(), 3, 16),
    _of(
        "torch.fft.rfft, view_as_real",
        lambda x: torch.view_as_real(torch.fft.rfft(x)).flatten(-2),
        3,
        15,
    ),
    _of("torch.fft.fft", lambda x: torch.fft.fft(x).real + torch.fft.fft(x).imag, 3, 24),
    _of("torch.fft.ifft", lambda x: torch.fft.ifft(torch.fft.fft(x) * 1j).imag, 3, 24),
    _of("torch.fft.irfft", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5).sin(), 3, 24),
    _of(
        "torch.fft.irfft, 512 numbers",
        lambda x: torch.fft.irfft(torch.fft.rfft(x), n=512).sin(),
        512,
    ),
    _of("torch.fft.fft2", lambda x: torch.fft.fft2(x).abs(), 6, 8),
    _of("torch.fft.rfft2, irfft2", lambda x: torch.fft.irfft2(torch.fft.rfft2(x)).sin(), 6, 8),
    _of(
        "torch.fft.fftshift",
        lambda x: torch.fft.fftshift(torch.fft.fft(x), dim=-1).abs()[..., :6],
        3,
        11,
    ),
    _of(
        "cross spectrum",
        lambda x: (torch.fft.rfft(x[:, :1]) * torch.fft.rfft(x[:, 1:]).conj())[..., 1:-1].angle(),
        3,
        14,
    ),
    _of(
        "autocorrelation",
        lambda x: torch.fft.irfft(torch.fft.rfft(x, n=40).abs() ** 2)[..., :20],
        3,
        20,
    ),
    _of(
        "torch.polar, torch.complex",
        lambda x: torch.view_as_real(
            torch.polar(x.abs(), x.sin()) / torch.complex(x.cos() + 2, x)
        ).flatten(1),
        4,
        5,
    ),
    SweepCase(
        name="torch.stft, 64 of 320",
        group="spectra",
        build=lambda: _Spectrogram(64, 16),
        input_shape=(320,),
    ),
    SweepCase(
        name="torch.stft, 400 and 160 of 1600",
        group="spectra",
        build=lambda: _Spectrogram(400, 160),
        input_shape=(1600,),
    ),
    _of(
        "torch.stft, no window",
        lambda x: torch.stft(x, 20, 7, center=False, return_complex=True, onesided=False).abs(),
        75,
    ),
    SweepCase(name="FNet mixing", group="spectra", build=_FourierMixing, input_shape=(10, 8)),
    SweepCase(
        name="GFNet filter",
        group="spectra",
        build=lambda: _GlobalFilter(12, 4),
        input_shape=(12, 4),
    ),
)
