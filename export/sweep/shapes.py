"""Operators that pad, resize, slice, move and order entries."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import SweepCase, function

_PADS, _SIZES, _PARTS = "padding", "resizing and pooling", "parts and lookups"
_MOVES, _ORDER = "shapes", "order and running values"
_SIGNAL, _IMAGE, _VOLUME = (3, 8), (2, 6, 5), (2, 4, 3, 4)


def _module(name: str, group: str, module: nn.Module, input_shape: tuple[int, ...]) -> SweepCase:
    return SweepCase(name=name, group=group, build=lambda: module, input_shape=input_shape)


def _padded(mode: str, widths: tuple[int, ...], input_shape: tuple[int, ...]) -> SweepCase:
    return function(
        f"F.pad, {mode}, {len(widths) // 2}-d",
        _PADS,
        lambda x: functional.pad(x, widths, mode=mode),
        input_shape,
    )


def _pads() -> tuple[SweepCase, ...]:
    by_rank = (((2, 1), _SIGNAL), ((2, 1, 1, 3), _IMAGE), ((1, 2, 2, 1, 1, 2), _VOLUME))
    functions = (
        _padded(mode, widths, shape)
        for mode in ("constant", "reflect", "replicate", "circular")
        for widths, shape in by_rank
    )
    return (
        *functions,
        function("F.pad, constant, value", _PADS, lambda x: functional.pad(x, (2, 1), value=0.5)),
        function("F.pad, negative", _PADS, lambda x: functional.pad(x, (-1, 2)), _SIGNAL),
        function(
            "F.pad, circular, negative",
            _PADS,
            lambda x: functional.pad(x, (-1, 2), mode="circular"),
            _SIGNAL,
        ),
        _module("ZeroPad2d", _PADS, nn.ZeroPad2d((1, 2, 0, 1)), _IMAGE),
        _module("ConstantPad1d", _PADS, nn.ConstantPad1d((3, 1), -1.5), _SIGNAL),
        _module("ReflectionPad2d", _PADS, nn.ReflectionPad2d(2), _IMAGE),
        _module("ReplicationPad1d", _PADS, nn.ReplicationPad1d((3, 1)), _SIGNAL),
        _module("CircularPad2d", _PADS, nn.CircularPad2d((2, 1, 1, 2)), _IMAGE),
        _module(
            "Conv1d, padding_mode='circular'",
            _PADS,
            nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"),
            _SIGNAL,
        ),
        _module(
            "Conv2d, padding_mode='reflect'",
            _PADS,
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
            _IMAGE,
        ),
    )


def _resized(name: str, input_shape: tuple[int, ...], **options: object) -> SweepCase:
    return function(
        f"interpolate, {name}",
        _SIZES,
        lambda x: functional.interpolate(x, **options),  # type: ignore[arg-type]
        input_shape,
    )


def _sampled(x: Tensor, mode: str) -> Tensor:
    """An image moved by a map that its own first numbers say."""
    grid = functional.affine_grid(
        x.flatten(1)[:, :6].reshape(-1, 2, 3), list(x.shape), align_corners=False
    )
    moved: Tensor = functional.grid_sample(x, grid, mode=mode, align_corners=False)
    return moved


_INTERPOLATIONS = (
    _resized("nearest, 1-d, scale 2", _SIGNAL, scale_factor=2),
    _resized("nearest, 2-d, size", _IMAGE, size=(9, 4)),
    _resized("nearest, 2-d, scale 1.5", _IMAGE, scale_factor=1.5),
    _resized("nearest, 3-d", _VOLUME, scale_factor=2),
    _resized("nearest-exact, 1-d", _SIGNAL, size=13, mode="nearest-exact"),
    _resized("nearest-exact, 2-d", _IMAGE, size=(4, 9), mode="nearest-exact"),
    _resized("linear", _SIGNAL, scale_factor=2, mode="linear"),
    _resized("linear, align_corners", _SIGNAL, size=13, mode="linear", align_corners=True),
    _resized("linear, smaller", _SIGNAL, size=5, mode="linear"),
    _resized("bilinear, scale 2", _IMAGE, scale_factor=2, mode="bilinear"),
    _resized("bilinear, size", _IMAGE, size=(9, 4), mode="bilinear"),
    _resized("bilinear, align_corners", _IMAGE, size=9, mode="bilinear", align_corners=True),
    _resized("bilinear, antialias", _IMAGE, size=(3, 4), mode="bilinear", antialias=True),
    _resized("bicubic", _IMAGE, scale_factor=2, mode="bicubic"),
    _resized("bicubic, align_corners", _IMAGE, size=(9, 4), mode="bicubic", align_corners=True),
    _resized("trilinear", _VOLUME, scale_factor=2, mode="trilinear"),
    _resized("area, 1-d", _SIGNAL, size=5, mode="area"),
    _resized("area, 2-d", _IMAGE, size=(4, 3), mode="area"),
    _module("Upsample", _SIZES, nn.Upsample(scale_factor=(2, 3), mode="bilinear"), _IMAGE),
    function("affine_grid, grid_sample", _SIZES, lambda x: _sampled(x, "bilinear"), _IMAGE),
    function("grid_sample, nearest", _SIZES, lambda x: _sampled(x, "nearest"), _IMAGE),
    _module("PixelShuffle", _SIZES, nn.PixelShuffle(2), (8, 3, 4)),
    _module("PixelUnshuffle", _SIZES, nn.PixelUnshuffle(2), (2, 4, 6)),
)

_POOLS = (
    _module("AdaptiveAvgPool1d", _SIZES, nn.AdaptiveAvgPool1d(5), _SIGNAL),
    _module("AdaptiveAvgPool2d", _SIZES, nn.AdaptiveAvgPool2d((4, 3)), _IMAGE),
    _module("AdaptiveAvgPool2d, 1", _SIZES, nn.AdaptiveAvgPool2d(1), _IMAGE),
    _module("AdaptiveAvgPool3d", _SIZES, nn.AdaptiveAvgPool3d((3, 2, 3)), _VOLUME),
    _module("AdaptiveMaxPool1d", _SIZES, nn.AdaptiveMaxPool1d(5), _SIGNAL),
    _module("AdaptiveMaxPool2d", _SIZES, nn.AdaptiveMaxPool2d((4, 3)), _IMAGE),
    _module("AdaptiveMaxPool3d", _SIZES, nn.AdaptiveMaxPool3d((3, 2, 3)), _VOLUME),
    _module("AvgPool1d", _SIZES, nn.AvgPool1d(3, 2), _SIGNAL),
    _module("AvgPool1d, padding", _SIZES, nn.AvgPool1d(3, 2, padding=1), _SIGNAL),
    _module(
        "AvgPool2d, ceil_mode, padding not counted",
        _SIZES,
        nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
        _IMAGE,
    ),
    _module("AvgPool2d, divisor", _SIZES, nn.AvgPool2d(2, divisor_override=3), _IMAGE),
    _module("AvgPool3d", _SIZES, nn.AvgPool3d(2), _VOLUME),
    _module("MaxPool1d", _SIZES, nn.MaxPool1d(2), _SIGNAL),
    _module("MaxPool1d, dilation", _SIZES, nn.MaxPool1d(3, 1, dilation=2), _SIGNAL),
    _module("MaxPool2d, padding", _SIZES, nn.MaxPool2d(3, 2, padding=1), _IMAGE),
    _module("MaxPool2d, ceil_mode", _SIZES, nn.MaxPool2d(2, ceil_mode=True), _IMAGE),
    _module("MaxPool2d, dilation", _SIZES, nn.MaxPool2d(2, 1, dilation=2), _IMAGE),
    _module("MaxPool3d", _SIZES, nn.MaxPool3d(2), _VOLUME),
    _module("LPPool1d", _SIZES, nn.LPPool1d(2, 3, 2), _SIGNAL),
    _module("LPPool2d", _SIZES, nn.LPPool2d(2, 2), _IMAGE),
    _module("ConvTranspose1d", _SIZES, nn.ConvTranspose1d(3, 4, 3, 2, 1, 1), _SIGNAL),
    _module("ConvTranspose2d", _SIZES, nn.ConvTranspose2d(2, 4, 3, 2, groups=2), _IMAGE),
)


def _fold(x: Tensor) -> Tensor:
    return functional.fold(functional.unfold(x, 3, padding=1), (6, 5), 3, padding=1)


def _assigned(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1:3] = x[:, :2]
    y[:, :, ::2] += x[:, :, 1::2]
    return y


_LOOKUPS = (
    function("x[:, :, [0, 5, 9]]", _PARTS, lambda x: x[:, :, [0, 5, 9]], (3, 10)),
    function("x[:, [2, 0], 1:4]", _PARTS, lambda x: x[:, [2, 0], 1:4]),
    function("x[:, [0, 1], [2, 3]]", _PARTS, lambda x: x[:, [0, 1], [2, 3]]),
    function("x[:, ::2]", _PARTS, lambda x: x[:, ::2]),
    function("x[..., 1:-1:2]", _PARTS, lambda x: x[..., 1:-1:2]),
    function("x[:, -1]", _PARTS, lambda x: x[:, -1]),
    function("index_select", _PARTS, lambda x: x.index_select(2, torch.tensor([3, 0, 3]))),
    function(
        "gather", _PARTS, lambda x: x.gather(2, torch.tensor([[[3, 0]]]).expand(x.shape[0], 4, 2))
    ),
    function(
        "gather by the data", _PARTS, lambda x: x.gather(2, x.argmax(1, keepdim=True)[:, :, :3] % 6)
    ),
    function(
        "x[torch.arange(B), i]",
        _PARTS,
        lambda x: x[torch.arange(x.shape[0]), x.mean(-1).argmax(1)],
    ),
    function("take_along_dim", _PARTS, lambda x: x.take_along_dim(x.argsort(-1)[..., :2], dim=-1)),
    function("masked_fill", _PARTS, lambda x: x.masked_fill(x > 0.5, -2.0)),
    function("where", _PARTS, lambda x: torch.where(x > 0, x, 0.1 * x)),
    function("narrow", _PARTS, lambda x: x.narrow(2, 1, 3)),
    function("select", _PARTS, lambda x: x.select(1, 2)),
    function("chunk", _PARTS, lambda x: torch.mul(*x.chunk(2, -1))),
    function("split", _PARTS, lambda x: torch.cat(torch.split(x, [1, 3, 2], -1)[::-1], -1)),
    function("unbind", _PARTS, lambda x: x.unbind(1)[0] * x.unbind(1)[3]),
    function("stack", _PARTS, lambda x: torch.stack((x, x.sin()), 2)),
    function("cat", _PARTS, lambda x: torch.cat((x, x * x), 1)),
    function("tril, triu", _PARTS, lambda x: x.tril() + 2 * x.triu(1)),
    function("Tensor.unfold", _PARTS, lambda x: x.unfold(2, 4, 2), _SIGNAL),
    function(
        "Tensor.unfold, overlapping, 2 axes",
        _PARTS,
        lambda x: x.unfold(2, 3, 1).unfold(3, 2, 2),
        _IMAGE,
    ),
    function("F.unfold", _PARTS, lambda x: functional.unfold(x, 3, padding=1, stride=2), _IMAGE),
    function("F.fold", _PARTS, _fold, _IMAGE),
    function("x[:, 1] = …", _PARTS, lambda x: x.clone().index_fill(1, torch.tensor([1]), 0.5)),
    function("slice assignment", _PARTS, _assigned),
    function(
        "scatter",
        _PARTS,
        lambda x: torch.zeros_like(x).scatter(2, x.argsort(-1)[..., :1], x[..., :1]),
    ),
    function("one_hot", _PARTS, lambda x: functional.one_hot(x.argmax(-1), 6) * x),
)


_SHAPES = (
    function("roll", _MOVES, lambda x: x.roll(2, -1)),
    function("roll, 2 axes", _MOVES, lambda x: x.roll((1, -2), (1, 2))),
    function("repeat", _MOVES, lambda x: x.repeat(1, 2, 3)),
    function("repeat_interleave", _MOVES, lambda x: x.repeat_interleave(3, dim=1)),
    function("expand", _MOVES, lambda x: x.unsqueeze(2).expand(-1, -1, 3, -1)),
    function("tile", _MOVES, lambda x: x.tile(1, 2, 1)),
    function("flip", _MOVES, lambda x: x.flip(1, 2)),
    function("rot90", _MOVES, lambda x: torch.rot90(x, 1, (1, 2))),
    function("movedim", _MOVES, lambda x: x.movedim(1, -1)),
    function("swapaxes", _MOVES, lambda x: x.swapaxes(1, 2)),
    function("permute", _MOVES, lambda x: x.permute(0, 3, 1, 2), _IMAGE),
    function("unflatten", _MOVES, lambda x: torch.unflatten(x, 2, (2, 3)).transpose(2, 3)),
    function("flatten", _MOVES, lambda x: x.transpose(1, 2).flatten(1)),
    function("squeeze, unsqueeze", _MOVES, lambda x: x.unsqueeze(1).squeeze(1)),
    function("einsum", _MOVES, lambda x: torch.einsum("bij,bkj->bik", x, x)),
    function("einsum, outer", _MOVES, lambda x: torch.einsum("bi,bj->bij", x[:, 0], x[:, 1])),
    function(
        "meshgrid",
        _MOVES,
        lambda x: x * torch.meshgrid(torch.arange(4.0), torch.linspace(0, 1, 6), indexing="ij")[1],
    ),
    function("broadcast_to", _MOVES, lambda x: x[:, :1].broadcast_to(x.shape)),
    function("view_as, reshape", _MOVES, lambda x: x.reshape(x.shape[0], -1).view(-1, 6, 4)),
    function("channel shuffle", _MOVES, nn.ChannelShuffle(2), (4, 3, 2)),
)

_ORDERED = (
    function("sort", _ORDER, lambda x: x.sort(-1)[0]),
    function("sort, descending, axis 1", _ORDER, lambda x: x.sort(1, descending=True)[0]),
    function("argsort, then lookup", _ORDER, lambda x: x.gather(2, x.argsort(-1))),
    function("topk", _ORDER, lambda x: x.topk(3, -1)[0]),
    function("topk, axis 1, smallest", _ORDER, lambda x: x.topk(2, 1, largest=False)[0]),
    function("cumsum", _ORDER, lambda x: x.cumsum(-1)),
    function("cumprod", _ORDER, lambda x: x.cumprod(1)),
    function("logcumsumexp", _ORDER, lambda x: x.logcumsumexp(-1)),
    function("diff", _ORDER, lambda x: x.diff(dim=-1)),
    function("max over an axis", _ORDER, lambda x: x.max(-1)[0]),
    function("min over an axis", _ORDER, lambda x: x.min(1)[0]),
    function("amax, amin", _ORDER, lambda x: x.amax((1, 2))[:, None] - x.amin(1)),
    function("median over an axis", _ORDER, lambda x: x.median(-1)[0]),
    function("kthvalue", _ORDER, lambda x: x.kthvalue(2, -1)[0]),
    function("cummax", _ORDER, lambda x: x.cummax(-1)[0]),
    function("argmax", _ORDER, lambda x: x.argmax(-1).float() + x[..., 0]),
    function("quantile", _ORDER, lambda x: x.quantile(0.3, dim=-1)),
)

CASES: tuple[SweepCase, ...] = (
    *_pads(),
    *_INTERPOLATIONS,
    *_POOLS,
    *_LOOKUPS,
    *_SHAPES,
    *_ORDERED,
)
