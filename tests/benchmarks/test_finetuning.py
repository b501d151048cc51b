"""The ways to fine-tune change no output at the start, and train what their names say."""

from __future__ import annotations

import copy

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from protofleet.benchmarks import finetuning
from protofleet.cli.bench import bench
from protofleet.export.freezing import freeze
from protofleet.export.models import build_model

_MODELS = {
    "hart": lambda: build_model("hart", classes=3, width=32, kernels=[3], head_width=16),
    "transformer": finetuning.Transformer,
}


@pytest.mark.parametrize("way", finetuning.WAYS)
@pytest.mark.parametrize("name", _MODELS)
def test_a_way_begins_with_the_trained_model(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyTorch's fused path looks for weights of the layers that are replaced.
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)
    torch.manual_seed(0)
    model: nn.Module = _MODELS[name]().eval()
    changed = copy.deepcopy(model)
    trained = freeze(changed, finetuning.WAYS[way](changed))
    x = torch.randn(2, 128, 6)
    torch.testing.assert_close(changed.eval()(x), model(x))
    every = dict(changed.named_parameters())
    assert any(one.startswith("head") for one in trained)
    assert (len(trained) == len(every)) is (way == "all layers")
    parts = ("up.weight", "down.weight", "adapter.0.weight", "adapter.2.bias")
    assert {one for one in every if one.endswith(parts)} <= set(trained)


@pytest.mark.full_size
def test_the_command_measures_every_way() -> None:
    done = CliRunner().invoke(bench, ["finetuning", "--quick"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for way in finetuning.WAYS:
        assert f"Transformer of 6 blocks, batch 64: {way} " in done.output
