"""Networks of images that attend, pool or mix patches, as their authors write them.

Sources: CoAtNet (arXiv:2106.04803), CvT (arXiv:2103.15808), PVT (arXiv:2102.12122), LeViT
(arXiv:2104.01136), MobileViT (arXiv:2110.02178), EfficientFormer (arXiv:2206.01191), PoolFormer
(arXiv:2111.11418), MaxViT (arXiv:2204.01697), CaiT's layer scale and class attention
(arXiv:2103.17239), XCiT (arXiv:2106.09681), FocalNet
(arXiv:2203.11926), ConvNeXt V2 (arXiv:2301.00808), T2T-ViT (arXiv:2101.11986), DETR
(arXiv:2005.12872).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase
from protofleet.export.sweep.images import SqueezeExcite
from protofleet.export.sweep.vision import conv_norm

_SIDE = 32


def _pooled(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def _rows(x: Tensor) -> Tensor:
    """(B, C, H, W) → (B, H·W, C)."""
    return x.flatten(2).transpose(1, 2)


def _image(rows: Tensor, high: int, wide: int) -> Tensor:
    return rows.transpose(1, 2).reshape(rows.shape[0], -1, high, wide)


class _Mlp(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class DropPath(nn.Module):
    """Whole examples of a branch dropped while it trains, as timm has it."""

    def __init__(self, drop_prob: float = 0.1) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        """The branch, scaled by what is kept."""
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        random_tensor = x.new_empty(shape).bernoulli_(keep)
        return x * random_tensor.div_(keep)


class _RelativeAttention(nn.Module):
    """CoAtNet: scores and a learned bias by the distance of two places."""

    index: Tensor

    def __init__(self, width: int, side: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.side = heads, side
        self.table = nn.Parameter(torch.zeros((2 * side - 1) ** 2, heads))
        coords = torch.flatten(
            torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")), 1
        )
        relative = coords[:, :, None] - coords[:, None, :] + side - 1
        index = (relative[0] * (2 * side - 1) + relative[1]).flatten().unsqueeze(1)
        self.register_buffer("index", index)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (
            part.view(b, n, self.heads, -1).transpose(1, 2)
            for part in self.to_qkv(x).chunk(3, dim=-1)
        )
        dots = torch.matmul(q, k.transpose(-1, -2)) * (c // self.heads) ** -0.5
        bias = self.table.gather(0, self.index.repeat(1, self.heads))
        bias = bias.view(n, n, self.heads).permute(2, 0, 1).unsqueeze(0)
        out = torch.matmul(torch.softmax(dots + bias, dim=-1), v)
        result: Tensor = self.to_out(out.transpose(1, 2).reshape(b, n, c))
        return result


class _CoAtNet(nn.Module):
    """An inverted residual, then attention with relative positions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = conv_norm(3, width, 3, 2)
        self.mb = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.Conv2d(width, 32, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.GELU(),
            nn.Conv2d(32, 32, 3, 2, 1, groups=32, bias=False),
            nn.BatchNorm2d(32),
            nn.GELU(),
            SqueezeExcite(32, 4, nn.Sigmoid),
            nn.Conv2d(32, width, 1, bias=False),
        )
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = _RelativeAttention(width, 8), _Mlp(width)
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        rows = _rows(self.pool(x) + self.mb(x))
        rows = rows + self.attention(self.norm1(rows))
        rows = rows + self.mlp(self.norm2(rows))
        logits: Tensor = self.head(rows.mean(1))
        return logits


class _ConvAttention(nn.Module):
    """CvT: projections by depthwise convolutions; keys and values at half the resolution."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.ModuleDict(
            {
                name: nn.Sequential(
                    nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
                    nn.BatchNorm2d(width),
                    nn.Flatten(2),
                )
                for name, stride in (("q", 1), ("k", 2), ("v", 2))
            }
        )
        self.linear = nn.ModuleDict({name: nn.Linear(width, width) for name in "qkv"})
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.linear[name](self.projections[name](x).transpose(1, 2))
            .unflatten(-1, (self.heads, -1))
            .transpose(1, 2)
            for name in "qkv"
        )
        attn = torch.einsum("bhlk,bhtk->bhlt", [q, k]) * x.shape[1] ** -0.5
        mixed = torch.einsum("bhlt,bhtv->bhlv", [attn.softmax(dim=-1), v])
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return x + _image(result, x.shape[2], x.shape[3])


class _SpatialReduction(nn.Module):
    """PVT: keys and values of an image made smaller by a strided convolution."""

    def __init__(self, width: int, heads: int = 2, ratio: int = 2) -> None:
        super().__init__()
        self.num_heads, self.scale = heads, (width // heads) ** -0.5
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, width * 2)
        self.sr, self.norm = nn.Conv2d(width, width, ratio, ratio), nn.LayerNorm(width)
        self.proj, self.norm1, self.norm2 = (
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.mlp, self.drop_path = _Mlp(width), DropPath(0.1)

    def _attend(self, x: Tensor, high: int, wide: int) -> Tensor:
        b, n, c = x.shape
        q = self.q(x).reshape(b, n, self.num_heads, -1).permute(0, 2, 1, 3)
        small = self.sr(x.permute(0, 2, 1).reshape(b, c, high, wide)).reshape(b, c, -1)
        kv = self.kv(self.norm(small.permute(0, 2, 1)))
        k, v = kv.reshape(b, -1, 2, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        result: Tensor = self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))
        return result

    def forward(self, x: Tensor) -> Tensor:
        _, _, high, wide = x.shape
        rows = _rows(x)
        rows = rows + self.drop_path(self._attend(self.norm1(rows), high, wide))
        rows = rows + self.drop_path(self.mlp(self.norm2(rows)))
        return _image(rows, high, wide)


class _LeVit(nn.Module):
    """LeViT: normalised linear layers, narrow keys, biases by distance, hard swish."""

    idxs: Tensor

    def __init__(self, width: int = 24, key: int = 8, heads: int = 2, side: int = 4) -> None:
        super().__init__()
        convs = [conv_norm(3, 8, 3, 2), nn.Hardswish(), conv_norm(8, 16, 3, 2), nn.Hardswish()]
        self.stem = nn.Sequential(*convs, conv_norm(16, width, 3, 2))
        self.heads, self.sizes = heads, [key, key, 2 * key]
        self.qkv = nn.Linear(width, heads * 4 * key, bias=False)
        self.bn = nn.BatchNorm1d(heads * 4 * key)
        self.proj = nn.Sequential(nn.Hardswish(), nn.Linear(heads * 2 * key, width))
        points = list(itertools.product(range(side), range(side)))
        offsets: dict[tuple[int, int], int] = {}
        index = [
            offsets.setdefault((abs(p[0] - q[0]), abs(p[1] - q[1])), len(offsets))
            for p in points
            for q in points
        ]
        self.biases = nn.Parameter(torch.zeros(heads, len(offsets)))
        self.register_buffer("idxs", torch.LongTensor(index).view(len(points), len(points)))
        self.head, self.dist = (
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, CLASSES)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = _rows(self.stem(x))
        b, n, _ = x.shape
        qkv = self.qkv(x)
        qkv = self.bn(qkv.flatten(0, 1)).reshape_as(qkv).view(b, n, self.heads, -1)
        q, k, v = (part.permute(0, 2, 1, 3) for part in qkv.split(self.sizes, dim=3))
        attn = (q @ k.transpose(-2, -1)) * self.sizes[0] ** -0.5 + self.biases[:, self.idxs]
        mixed = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, -1)
        x = (x + self.proj(mixed)).mean(1)
        logits: Tensor = (self.head(x) + self.dist(x)) / 2
        return logits


class _MobileVitBlock(nn.Module):
    """MobileViT: attention between the pixels at the same place of 2 by 2 patches."""

    def __init__(self, width: int = 12, inner: int = 16, patch: int = 2) -> None:
        super().__init__()
        self.local = nn.Sequential(conv_norm(width, width), nn.Conv2d(width, inner, 1))
        layer = nn.TransformerEncoderLayer(
            inner, 2, 32, activation=functional.silu, batch_first=True, norm_first=True
        )
        self.inner = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.back, self.fuse = conv_norm(inner, width, 1), conv_norm(2 * width, width)
        self.p = patch

    def forward(self, x: Tensor) -> Tensor:
        y = self.local(x)
        b, c, h, w = y.shape
        p, nh, nw = self.p, h // self.p, w // self.p
        y = y.reshape(b * c * nh, p, nw, p).transpose(1, 2).reshape(b, c, nh * nw, p * p)
        y = self.inner(y.transpose(1, 3).reshape(b * p * p, nh * nw, c))
        y = y.contiguous().view(b, p * p, nh * nw, c).transpose(1, 3)
        y = y.reshape(b * c * nh, nw, p, p).transpose(1, 2).reshape(b, c, h, w)
        fused: Tensor = self.fuse(torch.cat((x, self.back(y)), 1))
        return fused


class _PoolFormerBlock(nn.Module):
    """PoolFormer: a pool less the identity mixes; branches are scaled by channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, width), nn.GroupNorm(1, width)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        self.mlp = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1)
        )
        self.scale1, self.scale2 = (
            nn.Parameter(1e-2 * torch.ones(width), requires_grad=True) for _ in range(2)
        )
        self.drop_path = DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.drop_path(self.scale1.unsqueeze(-1).unsqueeze(-1) * (self.pool(y) - y))
        result: Tensor = x + self.drop_path(self.scale2[:, None, None] * self.mlp(self.norm2(x)))
        return result


class _ToRows(nn.Module):
    """EfficientFormer: pools mix images first, attention the rows at the end."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = _RelativeAttention(width, 4), _Mlp(width)
        self.gamma = nn.ParameterList([nn.Parameter(1e-1 * torch.ones(width)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        rows = _rows(x)
        rows = rows + self.gamma[0] * self.attention(self.norm1(rows))
        rows = rows + self.gamma[1] * self.mlp(self.norm2(rows))
        return _image(rows, x.shape[2], x.shape[3])


class _MaxVitBlock(nn.Module):
    """MaxViT: attention within blocks, then over a grid of places that lie apart."""

    def __init__(self, width: int, size: int = 4) -> None:
        super().__init__()
        self.size = size
        self.block, self.grid = (
            nn.Sequential(nn.LayerNorm(width), _RelativeAttention(width, size)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        p = self.size
        blocks = x.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1)
        flat = blocks.reshape(-1, p * p, c)
        flat = flat + self.block(flat)
        x = flat.view(b, h // p, w // p, p, p, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)
        grid = x.reshape(b, c, p, h // p, p, w // p).permute(0, 3, 5, 2, 4, 1)
        flat = grid.reshape(-1, p * p, c)
        flat = flat + self.grid(flat)
        result: Tensor = (
            flat.view(b, h // p, w // p, p, p, c).permute(0, 5, 3, 1, 4, 2).reshape(b, c, h, w)
        )
        return result


class _ClassAttention(nn.Module):
    """CaiT: the class token alone asks; LayerScale."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True, bias=True)
        self.norm, self.gamma_1 = nn.LayerNorm(width), nn.Parameter(1e-1 * torch.ones(width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = _rows(self.patches(x)) + self.pos_embed
        cls_tokens = self.cls_token.expand(x.shape[0], -1, -1)
        u = self.norm(torch.cat((cls_tokens, x), dim=1))
        cls_tokens = cls_tokens + self.gamma_1 * self.attn(u[:, :1], u, u, need_weights=False)[0]
        logits: Tensor = self.head(torch.cat((cls_tokens, x), dim=1)[:, 0])
        return logits


class _CrossCovariance(nn.Module):
    """XCiT: attention between channels, of normalised queries and keys, with a temperature."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.temperature = heads, nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv, self.proj = nn.Linear(width, width * 3, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows = _rows(x)
        b, n, c = rows.shape
        qkv = self.qkv(rows).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = (part.transpose(-2, -1) for part in (qkv[0], qkv[1], qkv[2]))
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        attn = (q @ k.transpose(-2, -1)) * self.temperature
        mixed = (attn.softmax(dim=-1) @ v).permute(0, 3, 1, 2).reshape(b, n, c)
        return x + _image(self.proj(mixed), x.shape[2], x.shape[3])


class _FocalModulation(nn.Module):
    """FocalNet: contexts of growing reach, gated, modulate the query."""

    def __init__(self, width: int, levels: int = 2) -> None:
        super().__init__()
        self.f, self.levels, self.width = nn.Linear(width, 2 * width + levels + 1), levels, width
        self.h, self.proj = nn.Conv2d(width, width, 1), nn.Linear(width, width)
        self.focal = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, k, 1, k // 2, groups=width, bias=False), nn.GELU()
            )
            for k in (3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.f(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous()
        q, ctx, gates = torch.split(y, [self.width, self.width, self.levels + 1], 1)
        everything = torch.zeros_like(ctx)
        for level in range(self.levels):
            ctx = self.focal[level](ctx)
            everything = everything + ctx * gates[:, level : level + 1]
        whole = functional.gelu(ctx.mean(2, keepdim=True).mean(3, keepdim=True))
        everything = everything + whole * gates[:, self.levels :]
        result: Tensor = self.proj((q * self.h(everything)).permute(0, 2, 3, 1))
        return x + result.permute(0, 3, 1, 2)


class _ConvNextV2(nn.Module):
    """ConvNeXt V2: responses normalised globally, channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma, self.beta = (nn.Parameter(torch.zeros(1, 1, 1, 2 * width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.pwconv1(self.norm(self.dwconv(x).permute(0, 2, 3, 1))))
        gx = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
        y = self.pwconv2(self.gamma * (y * nx) + self.beta + y)
        result: Tensor = x + y.permute(0, 3, 1, 2)
        return result


class _TokensToToken(nn.Module):
    """T2T: soft splits by unfolding, a transformer between them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.split0, self.split1 = (
            nn.Unfold((7, 7), stride=4, padding=2),
            nn.Unfold(3, stride=2, padding=1),
        )
        self.project0, self.project1 = nn.Linear(147, width), nn.Linear(9 * width, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, norm_first=True)
        self.inner = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.inner(self.project0(self.split0(x).transpose(1, 2)))
        b, n, c = rows.shape
        side = int(n**0.5)
        image = rows.transpose(1, 2).reshape(b, c, side, side)
        rows = self.project1(self.split1(image).transpose(1, 2))
        logits: Tensor = self.head(rows.mean(dim=1))
        return logits


class _Detr(nn.Module):
    """DETR: PyTorch's own ``nn.Transformer`` with learned queries, steps first."""

    def __init__(self, width: int = 16, queries: int = 4) -> None:
        super().__init__()
        self.backbone, self.conv = conv_norm(3, 16, 3, 4), nn.Conv2d(16, width, 2, 2)
        self.transformer = nn.Transformer(width, 2, 1, 1, 32, dropout=0.1)
        self.query_pos = nn.Parameter(torch.rand(queries, width))
        self.row_embed, self.col_embed = (nn.Parameter(torch.rand(8, width // 2)) for _ in range(2))
        self.linear_class = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(self.backbone(x))
        high, wide = h.shape[-2:]
        pos = torch.cat(
            [
                self.col_embed[:wide].unsqueeze(0).repeat(high, 1, 1),
                self.row_embed[:high].unsqueeze(1).repeat(1, wide, 1),
            ],
            dim=-1,
        )
        source = pos.flatten(0, 1).unsqueeze(1) + 0.1 * h.flatten(2).permute(2, 0, 1)
        target = self.query_pos.unsqueeze(1).repeat(1, x.shape[0], 1)
        logits: Tensor = self.linear_class(self.transformer(source, target).transpose(0, 1)).mean(1)
        return logits


def _stemmed(*layers: nn.Module, width: int = 16, stride: int = 4) -> nn.Module:
    return _pooled(nn.Conv2d(3, width, stride, stride), *layers, width=width)


def _image_case(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    shape = (3, _SIDE, _SIDE)
    return SweepCase(name=name, group="architectures", build=build, input_shape=shape, whole=True)


CASES: tuple[SweepCase, ...] = (
    _image_case("CoAtNet", _CoAtNet),
    _image_case("CvT", lambda: _stemmed(_ConvAttention(16))),
    _image_case("PVT", lambda: _stemmed(_SpatialReduction(16))),
    _image_case("LeViT", _LeVit),
    _image_case("MobileViT", lambda: _pooled(conv_norm(3, 12, 3, 4), _MobileVitBlock(), width=12)),
    _image_case("PoolFormer", lambda: _stemmed(_PoolFormerBlock(16), _PoolFormerBlock(16))),
    _image_case(
        "EfficientFormer",
        lambda: _stemmed(_PoolFormerBlock(16), nn.AvgPool2d(2), _ToRows(16)),
    ),
    _image_case("MaxViT", lambda: _stemmed(_MaxVitBlock(16))),
    _image_case("CaiT", _ClassAttention),
    _image_case("XCiT", lambda: _stemmed(_CrossCovariance(16), nn.BatchNorm2d(16))),
    _image_case("FocalNet", lambda: _stemmed(_FocalModulation(16))),
    _image_case("ConvNeXt V2", lambda: _stemmed(_ConvNextV2(16))),
    _image_case("T2T-ViT", _TokensToToken),
    _image_case("DETR", _Detr),
)
