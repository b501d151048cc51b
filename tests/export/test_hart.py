"""HART against its description, written down once more with other operators."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from protofleet.export.models import build_model
from protofleet.export.models.alp import alp_infer

_BETA = 0.2


def _norm(x, layer):
    """Layer normalisation with epsilon 1e-6."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + 1e-6).sqrt() * layer.weight + layer.bias


def _dense(x, layer):
    return x @ layer.weight.T + layer.bias


def _attention(x, layer):
    """Three heads with keys of 48, one after the other."""
    queries, keys, values = (
        _dense(x, part).split(48, dim=2) for part in (layer.query, layer.key, layer.value)
    )
    mixed = [
        torch.softmax(q @ k.mT / 48**0.5, dim=2) @ v
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    assert len(mixed) == 3
    return _dense(torch.cat(mixed, dim=2), layer.out)


def _convolution(x, layer):
    """Reshaped, not transposed, to rows of eight; group g of four has kernel g."""
    rows = x.reshape(-1, 4, 8)
    out = torch.empty_like(rows)
    for g, kernel in enumerate(torch.softmax(layer.kernel, dim=1)):
        row = rows[:, g : g + 1]
        out[:, g] = functional.conv1d(row, kernel[None, None], padding=len(kernel) // 2)[:, 0]
    return out.reshape(x.shape)


def _aligned(tokens, layer):
    gate = _dense(alp_infer(tokens, layer.local_prototypes, 0.05, 3), layer.glu)
    mixed = _BETA * gate[..., :192] * torch.sigmoid(gate[..., 192:]) + (1 - _BETA) * tokens
    return mixed / mixed.norm(dim=2, keepdim=True)


def _block(x, block):
    tokens = _norm(x, block.norm)
    if block.align is not None:
        tokens = _aligned(tokens, block.align)
    first = _attention(tokens[..., :48], block.accelerometer)
    middle = _convolution(tokens[..., 48:144], block.convolution)
    last = _attention(tokens[..., 144:], block.gyroscope)
    x = x + torch.cat((first, middle, last), dim=2)
    hidden = functional.silu(_dense(_norm(x, block.mlp_norm), block.mlp[0]))
    return x + _dense(hidden, block.mlp[3])


def _patches(x, layer):
    """A convolution of length and stride 16 over three axes."""
    kernel = layer.weight.reshape(96, 16, 3).permute(0, 2, 1)
    return functional.conv1d(x.mT, kernel, layer.bias, stride=16).mT


def _hart(x, model):
    sensors = (model.accelerometer_patches, model.gyroscope_patches)
    parts = [_patches(x[..., 3 * i : 3 * i + 3], layer) for i, layer in enumerate(sensors)]
    tokens = torch.cat(parts, dim=2) + model.position
    assert tokens.shape[1:] == (8, 192)
    for block in model.blocks:
        tokens = _block(tokens, block)
    features = _norm(tokens, model.norm).mean(1)
    return _dense(functional.silu(_dense(features, model.head[0])), model.head[3])


@pytest.mark.parametrize("prototypes", [(), (32, 16, 8, 8, 4, 4)], ids=["plain", "with ALP"])
def test_hart_is_its_description(prototypes):
    """All six blocks at full width; small tokens, so that the epsilon of the norms shows."""
    torch.manual_seed(0)
    model = build_model("hart", prototypes=prototypes, fidelity="default").double().eval()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(0.05 * torch.randn_like(value))
        model.position.mul_(0.02)
        x = 0.01 * torch.randn(4, 128, 6, dtype=torch.float64)
        expected = _hart(x, model)
        torch.testing.assert_close(model(x), expected, rtol=1e-6, atol=1e-9)
    assert [len(block.convolution.kernel[0]) for block in model.blocks] == [3, 7, 15, 31, 31, 31]
