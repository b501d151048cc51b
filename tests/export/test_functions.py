"""Mathematical functions and random activations as programs of both formats."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from protofleet.errors import ExportError
from protofleet.export.capture import capture
from tests.export.both_formats import worst_error

pytestmark = pytest.mark.slow(seconds=10)


class _Functions(nn.Module):
    """Every function of the numbers -0.9 to 0.9, or 0.6 to 1.5, with the modules' noise."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.slopes = nn.RReLU()
        self.head = nn.Linear(6 * 24, 3)

    def forward(self, x):
        x = 0.9 * torch.tanh(x * self.scale)
        y = x.abs() + 0.6
        odd = (x.sin(), x.tan(), x.asin(), x.acos(), x.atan(), torch.atan2(x, y), x.sinh())
        even = (x.cosh(), x.asinh(), (y + 1).acosh(), x.atanh(), x.exp2(), y.log2(), y.log10())
        rounded = (x * (3 * x).trunc(), x * (3 * x).round(), (3 * x).fmod(0.7), (3 * x) % 0.7)
        rounded += (x * torch.div(x, 0.3, rounding_mode="floor"), x * x.sign(), 0.4**x)
        drawn = functional.gumbel_softmax(x) if self.training else x.softmax(1)
        random = (self.slopes(x), drawn, y.log1p())
        return self.head(torch.cat((*odd, *even, *rounded, *random), 1))


class _Places(nn.Module):
    """What language models do with positions, masks and caches, (B, 5, 6) → (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        y = torch.cat((torch.empty(0), self.mix(x)), 1)
        counts = (x[..., 0] > 0).int().cumsum(1).type(torch.int32)
        hidden = counts > 2
        hidden[:, 0] = False
        last = (torch.arange(5) * ~hidden).argmax(-1)
        examples = torch.arange(x.shape[0])
        z = torch.where(hidden[..., None], 0.0, y)
        z[examples, last] = y[torch.arange(0, x.shape[0]), -1 - last]
        return self.head(z.sum(1) + y[examples, last] * counts[:, -1:])


@pytest.mark.parametrize(("model", "shape"), [(_Functions, (6,)), (_Places, (5, 6))])
def test_functions_agree_in_both_formats(model, shape):
    torch.manual_seed(0)
    assert worst_error(model(), shape) < 1e-5


class _Asks(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.fft.rfft(x).tanh().real, "tanh of complex numbers"),
        (torch.fft.hfft, "torch.fft.hfft: has no form .* use torch.fft.rfft"),
        (lambda x: torch.fft.rfft(x, n=4096).abs(), "rfft of 4096 numbers: expected windows"),
        (lambda x: torch.fft.fft(x, dim=0).real, "over the batch"),
    ],
)
def test_what_is_refused_is_told_with_module_and_line(function, message):
    with pytest.raises(
        ExportError, match=rf"_Asks\), .*{__name__.rsplit('.', 1)[-1]}\.py:\d+: .*{message}"
    ):
        capture(_Asks(function), None, {"x": torch.zeros(2, 6)})
