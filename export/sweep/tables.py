"""Architectures of tables, as their authors write them: rows of numbers or of categories.

Sources: TabNet (arXiv:1908.07442) with sparsemax (arXiv:1602.02068), FT-Transformer
(arXiv:2106.11959), NODE (arXiv:1909.06312), SAINT (arXiv:2106.01342), DCN V2 (arXiv:2008.13535),
AutoInt (arXiv:1810.11921), MLP-PLR (arXiv:2203.05556), DeepFM (arXiv:1703.04247), TabTransformer
(arXiv:2012.06678), variable selection (arXiv:1912.09363), choice of columns (arXiv:1901.09346), KAN
(arXiv:2404.19756).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase

_COLUMNS, _CATEGORIES = 10, 40


def _sparsemax(z: Tensor, dim: int = -1) -> Tensor:
    """The projection onto the simplex, which has zeros."""
    z = z - z.max(dim=dim, keepdim=True)[0]
    ordered = torch.sort(z, dim=dim, descending=True)[0]
    shape = [1] * z.dim()
    shape[dim] = -1
    numbers = torch.arange(1, z.size(dim) + 1, dtype=z.dtype, device=z.device).view(shape)
    cumulated = ordered.cumsum(dim)
    support = (1 + numbers * ordered > cumulated).to(z.dtype)
    k = support.sum(dim=dim, keepdim=True)
    tau = (cumulated.gather(dim, k.long() - 1) - 1) / k
    return torch.clamp(z - tau, min=0)


class _GhostNorm(nn.Module):
    """BatchNorm of the batch's virtual parts; of as many as one here."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(width, momentum=0.02)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.bn(x)
        return result


class _GluLayer(nn.Module):
    """A linear layer that the steps share, normed by each."""

    def __init__(self, before: int, after: int, shared: nn.Linear | None) -> None:
        super().__init__()
        self.fc = shared or nn.Linear(before, 2 * after, bias=False)
        self.bn, self.after = _GhostNorm(2 * after), after

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.fc(x))
        return torch.mul(x[:, : self.after], torch.sigmoid(x[:, self.after :]))


class _TabNet(nn.Module):
    """Steps that each choose columns by sparsemax, with priors of what was used before."""

    def __init__(self, steps: int = 2, width: int = 8) -> None:
        super().__init__()
        self.initial_bn = nn.BatchNorm1d(_COLUMNS, momentum=0.01)
        shared = nn.Linear(_COLUMNS, 4 * width, bias=False)
        self.width, wide = width, 2 * width
        self.firsts = nn.ModuleList(_GluLayer(_COLUMNS, wide, shared) for _ in range(steps + 1))
        self.seconds = nn.ModuleList(_GluLayer(wide, wide, None) for _ in range(steps + 1))
        self.att = nn.ModuleList(
            nn.Sequential(nn.Linear(width, _COLUMNS, bias=False), _GhostNorm(_COLUMNS))
            for _ in range(steps)
        )
        self.final = nn.Linear(width, CLASSES, bias=False)

    def _transform(self, x: Tensor, step: int) -> Tensor:
        first = self.firsts[step](x)
        second: Tensor = (first + self.seconds[step](first)) * math.sqrt(0.5)
        return second

    def forward(self, x: Tensor) -> Tensor:
        x = self.initial_bn(x)
        prior = torch.ones(x.shape).to(x.device)
        att = self._transform(x, 0)[:, self.width :]
        outputs = []
        for step, attention in enumerate(self.att):
            mask = _sparsemax(torch.mul(attention(att), prior))
            prior = torch.mul(1.3 - mask, prior)
            out = self._transform(torch.mul(mask, x), step + 1)
            outputs.append(functional.relu(out[:, : self.width]))
            att = out[:, self.width :]
        logits: Tensor = self.final(torch.sum(torch.stack(outputs, dim=0), dim=0))
        return logits


class _Tokenizer(nn.Module):
    """FT-Transformer's: each column has a vector, and the class token comes first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(_COLUMNS + 1, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(_COLUMNS, width).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones(len(x), 1, device=x.device)
        rows = self.weight[None] * torch.cat([ones, x], dim=1)[:, :, None]
        return rows + torch.cat([torch.zeros(1, self.bias.shape[1]), self.bias])[None]


def _reglu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return a * functional.relu(b)


class _FtTransformer(nn.Module):
    """Tokens of columns, attention split by reshapes, ReGLU, the class token read at the end."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.tokenizer, self.heads = _Tokenizer(width), heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.linear0, self.linear1 = nn.Linear(width, 48), nn.Linear(24, width)
        self.head = nn.Linear(width, CLASSES)

    def _split(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        x = x.reshape(b, n, self.heads, d // self.heads).transpose(1, 2)
        return x.reshape(b * self.heads, n, d // self.heads)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokenizer(x)
        b, n, d = x.shape
        q, k, v = (self._split(one(x)) for one in (self.wq, self.wk, self.wv))
        attention = functional.softmax(q @ k.transpose(1, 2) / math.sqrt(k.shape[-1]), dim=-1)
        mixed = functional.dropout(attention, 0.1, self.training) @ v
        mixed = mixed.reshape(b, self.heads, n, -1).transpose(1, 2).reshape(b, n, d)
        x = x + self.wo(mixed)
        x = x + self.linear1(_reglu(self.linear0(self.norm(x))))
        logits: Tensor = self.head(functional.relu(self.last_norm(x[:, 0])))
        return logits


class _Node(nn.Module):
    """NODE: oblivious trees that choose columns softly, by sparsemax in place of entmax."""

    codes: Tensor

    def __init__(self, trees: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.choices = nn.Parameter(torch.rand(_COLUMNS, trees, depth))
        self.thresholds = nn.Parameter(0.1 * torch.randn(trees, depth))
        self.log_temperatures = nn.Parameter(torch.zeros(trees, depth))
        self.response = nn.Parameter(torch.randn(trees, CLASSES, 2**depth))
        bits = (torch.arange(2**depth)[None] // 2 ** torch.arange(depth)[:, None]) % 2
        codes = bits.to(torch.float32)
        self.register_buffer("codes", torch.stack([codes, 1 - codes], dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        selectors = _sparsemax(self.choices, dim=0)
        values = torch.einsum("bi,ind->bnd", x, selectors)
        logits = (values - self.thresholds) * torch.exp(-self.log_temperatures)
        both = torch.stack([-logits, logits], dim=-1)
        bins = torch.clip(0.5 * both + 0.5, 0, 1)
        matches = torch.einsum("btds,dcs->btdc", bins, self.codes)
        weights = torch.prod(matches, dim=-2)
        return torch.einsum("bnd,ncd->bnc", weights, self.response).mean(dim=1)


class _Saint(nn.Module):
    """SAINT: attention over columns, then over the rows of the batch, as the repository has it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.tokenizer, count = _Tokenizer(width), _COLUMNS + 1
        self.columns = nn.MultiheadAttention(width, 2, batch_first=True)
        self.rows = nn.MultiheadAttention(width * count, 2, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width * count)
        self.head = nn.Linear(width * count, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokenizer(x)
        y = self.norm1(x)
        x = (x + self.columns(y, y, y)[0]).flatten(1).unsqueeze(0)
        y = self.norm2(x)
        x = x + self.rows(y, y, y)[0]
        logits: Tensor = self.head(x.squeeze(0))
        return logits


class _CrossV2(nn.Module):
    """DCN V2: low-rank crosses gated by experts, beside a deep part."""

    def __init__(self, rank: int = 4, experts: int = 2, layers: int = 2) -> None:
        super().__init__()
        shape = (experts, _COLUMNS, rank)
        self.u, self.v = (
            nn.ParameterList([nn.Parameter(0.3 * torch.randn(shape)) for _ in range(layers)])
            for _ in range(2)
        )
        self.c = nn.ParameterList(torch.eye(rank).repeat(experts, 1, 1) for _ in range(layers))
        self.gating = nn.ModuleList(nn.Linear(_COLUMNS, 1, bias=False) for _ in range(experts))
        self.bias = nn.ParameterList(torch.zeros(_COLUMNS, 1) for _ in range(layers))
        self.deep = nn.Sequential(nn.Linear(_COLUMNS, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(_COLUMNS + 16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x_0 = x.unsqueeze(2)
        x_l = x_0
        for i in range(len(self.u)):
            outputs, scores = [], []
            for expert, gate in enumerate(self.gating):
                scores.append(gate(x_l.squeeze(2)))
                v_x = torch.tanh(torch.matmul(self.v[i][expert].t(), x_l))
                v_x = torch.tanh(torch.matmul(self.c[i][expert], v_x))
                uv_x = torch.matmul(self.u[i][expert], v_x)
                outputs.append((x_0 * (uv_x + self.bias[i])).squeeze(2))
            weights = torch.stack(scores, 1).softmax(1)
            x_l = torch.matmul(torch.stack(outputs, 2), weights) + x_l
        logits: Tensor = self.head(torch.cat([x_l.squeeze(2), self.deep(x)], dim=-1))
        return logits


class _AutoInt(nn.Module):
    """AutoInt over embedded categories: heads are stacked on a new axis."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_CATEGORIES, width)
        self.wq, self.wk, self.wv, self.wr = (
            nn.Parameter(torch.empty(width, width)) for _ in range(4)
        )
        for weight in (self.wq, self.wk, self.wv, self.wr):
            nn.init.normal_(weight, mean=0.0, std=0.2)
        self.heads, self.head = heads, nn.Linear(_COLUMNS * width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inputs = self.embedding(x)
        q, k, v = (
            torch.tensordot(inputs, w, dims=([-1], [0])) for w in (self.wq, self.wk, self.wv)
        )
        size = q.shape[-1] // self.heads
        q, k, v = (torch.stack(torch.split(y, size, dim=2)) for y in (q, k, v))
        scores = functional.softmax(torch.einsum("bnik,bnjk->bnij", q, k), dim=-1)
        mixed = torch.cat(torch.split(torch.matmul(scores, v), 1), dim=-1)
        result = functional.relu(torch.squeeze(mixed, 0) + torch.tensordot(inputs, self.wr, dims=1))
        logits: Tensor = self.head(torch.flatten(result, start_dim=1))
        return logits


class _MlpPlr(nn.Module):
    """MLP-PLR: periodic, linear by column, ReLU."""

    def __init__(self, frequencies: int = 6, width: int = 8) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(torch.normal(0.0, 0.5, (_COLUMNS, frequencies)))
        self.weight = nn.Parameter(0.2 * torch.randn(_COLUMNS, 2 * frequencies, width))
        self.bias = nn.Parameter(torch.zeros(_COLUMNS, width))
        self.mlp = nn.Sequential(
            nn.Linear(_COLUMNS * width, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        v = 2 * torch.pi * self.coefficients[None] * x[..., None]
        v = torch.cat([torch.cos(v), torch.sin(v)], -1)
        v = (v[..., None, :] @ self.weight).squeeze(-2) + self.bias[None]
        logits: Tensor = self.mlp(functional.relu(v).flatten(1, 2))
        return logits


class _DeepFm(nn.Module):
    """DeepFM over categories whose columns have tables of their own, side by side in one."""

    offsets: Tensor

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.arange(_COLUMNS) * _CATEGORIES)
        self.linear = nn.EmbeddingBag(_COLUMNS * _CATEGORIES, CLASSES, mode="sum")
        self.embedding = nn.Embedding(_COLUMNS * _CATEGORIES, width)
        nn.init.xavier_uniform_(self.embedding.weight.data)
        self.mlp = nn.Sequential(
            nn.Linear(_COLUMNS * width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offsets.unsqueeze(0)
        e = self.embedding(x)
        pairs = 0.5 * (e.sum(dim=1) ** 2 - (e**2).sum(dim=1)).sum(dim=1, keepdim=True)
        logits: Tensor = self.linear(x) + pairs + self.mlp(e.view(-1, e.shape[1] * e.shape[2]))
        return logits


class _TabTransformer(nn.Module):
    """Categories as words with a vector that says which column, and a transformer of PyTorch's."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(_CATEGORIES, width - 4) for _ in range(_COLUMNS))
        self.column = nn.Parameter(0.1 * torch.randn(_COLUMNS, 4))
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.mlp = nn.Sequential(
            nn.Linear(_COLUMNS * width, 32), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(32, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.stack([table(x[:, n]) for n, table in enumerate(self.tables)], dim=1)
        column = self.column.unsqueeze(0).expand(x.shape[0], -1, -1)
        logits: Tensor = self.mlp(self.encoder(torch.cat((rows, column), -1)).flatten(1))
        return logits


class _GatedResidual(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(before, 12), nn.Linear(12, 12)
        self.gate, self.norm = nn.Linear(12, 2 * after), nn.LayerNorm(after)
        self.skip = nn.Linear(before, after) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc2(functional.elu(self.fc1(x)))
        result: Tensor = self.norm(functional.glu(self.gate(h), dim=-1) + self.skip(x))
        return result


class _VariableSelection(nn.Module):
    """TFT: a network for each column, weighed by one that sees all."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.columns = nn.ModuleList(_GatedResidual(1, width) for _ in range(_COLUMNS))
        self.weights, self.last = _GatedResidual(_COLUMNS, _COLUMNS), _GatedResidual(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.weights(x), dim=-1).unsqueeze(-1)
        parts = [net(x[:, n : n + 1]) for n, net in enumerate(self.columns)]
        logits: Tensor = self.head(self.last((torch.stack(parts, 1) * weights).sum(dim=1)))
        return logits


class _GumbelChoice(nn.Module):
    """A few columns chosen by gumbel softmax while it trains, by the largest score after."""

    def __init__(self, chosen: int = 4) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(chosen, _COLUMNS))
        self.mlp = nn.Sequential(nn.Linear(chosen, 16), nn.LeakyReLU(0.2), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            choice = functional.gumbel_softmax(self.scores, tau=0.7, hard=True)
        else:
            choice = functional.one_hot(self.scores.argmax(-1), _COLUMNS).to(x.dtype)
        logits: Tensor = self.mlp(x @ choice.T)
        return logits


class _Kan(nn.Module):
    """KAN: B-splines of learned coefficients on every edge, on a fixed grid."""

    grid: Tensor

    def __init__(self, before: int, after: int, order: int = 3, size: int = 5) -> None:
        super().__init__()
        grid = torch.arange(-order, size + order + 1) * (2 / size) - 1
        self.register_buffer("grid", grid.expand(before, -1).contiguous())
        self.order, self.base = order, nn.Parameter(torch.randn(after, before) / 4)
        self.spline = nn.Parameter(0.1 * torch.randn(after, before, size + order))

    def _basis(self, x: Tensor) -> Tensor:
        x, grid = x.unsqueeze(-1), self.grid
        bases = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:(-k)])
            bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
        return bases.contiguous()

    def forward(self, x: Tensor) -> Tensor:
        base = functional.linear(functional.silu(x), self.base)
        basis = self._basis(x).view(x.size(0), -1)
        return base + functional.linear(basis, self.spline.view(self.spline.shape[0], -1))


def _case(name: str, build: Callable[[], nn.Module], tokens: int | None = None) -> SweepCase:
    return SweepCase(
        name=name,
        group="architectures",
        build=build,
        input_shape=(_COLUMNS,),
        tokens=tokens,
        whole=True,
    )


CASES: tuple[SweepCase, ...] = (
    _case("TabNet", _TabNet),
    _case("FT-Transformer", _FtTransformer),
    _case("NODE", _Node),
    _case("SAINT, attention between rows", _Saint),
    _case("DCN V2", _CrossV2),
    _case("MLP-PLR", _MlpPlr),
    _case("Variable selection of TFT", _VariableSelection),
    _case("Columns by gumbel softmax", _GumbelChoice),
    _case("KAN", lambda: nn.Sequential(_Kan(_COLUMNS, 8), _Kan(8, CLASSES))),
    _case("AutoInt", _AutoInt, _CATEGORIES),
    _case("DeepFM", _DeepFm, _CATEGORIES),
    _case("TabTransformer", _TabTransformer, _CATEGORIES),
)
