"""Weights that a forward pass rewrites train on devices as in PyTorch, and stay in their bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import protofleet as pf
from protofleet.bundle import Bundle
from protofleet.errors import InputError
from protofleet.export.rewritten import rewritten_as_buffers
from protofleet.export.sweep.cases import CLASSES, SweepCase
from protofleet.export.sweep.prove import Proof, prove
from protofleet.strategies import build

pytestmark = pytest.mark.slow(seconds=2)


class _BoundConv(nn.Conv2d):
    """EEGNet's max-norm constraint as its widespread PyTorch version writes it."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.3)
        return super().forward(x)


class _BoundLinear(nn.Linear):
    """The same in place, with a bound that no weight reaches at the start."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.copy_(torch.renorm(self.weight.data, p=2, dim=0, maxnorm=3.0))
        return super().forward(x)


class _Clamped(nn.Linear):
    """Weights that may not be negative."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(min=0)
        return super().forward(x)


def _net() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4)),
        _BoundConv(1, 6, (4, 3), bias=False),
        nn.BatchNorm2d(6),
        nn.ELU(),
        nn.Flatten(),
        _Clamped(6 * 14, 8),
        nn.Tanh(),
        _BoundLinear(8, CLASSES),
    )


def test_steps_are_those_of_pytorch_in_both_runtimes() -> None:
    case = SweepCase(name="bounds", group="x", build=_net, input_shape=(4, 16), whole=True)
    proofs = prove(case).proofs
    assert all(isinstance(proof, Proof) for proof in proofs.values()), proofs


def test_the_bundle_tells_which_parameters_a_step_sets(tmp_path: Path) -> None:
    """The module is afterwards what it was."""
    model = _net()
    names = list(model.state_dict())
    report = pf.export_model(model, tmp_path / "m.pfb", strategy="fedavg", input_shape=(4, 16))
    assert not report.left_out
    state = {one.name for one in Bundle.open(tmp_path / "m.pfb", any_signer=True).manifest.state}
    assert {"1.weight_rewritten", "5.weight_rewritten", "7.weight_rewritten"} <= state
    assert list(model.state_dict()) == names
    with pytest.raises(InputError, match=r"'scaffold': .* got one that sets '1\.weight'"):
        build("scaffold", {}, Bundle.open(tmp_path / "m.pfb", any_signer=True).model())


def test_what_no_forward_pass_sets_has_no_buffer() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = list(model.state_dict())
    with rewritten_as_buffers(model, torch.zeros(2, 4)):
        assert list(model.state_dict()) == before
