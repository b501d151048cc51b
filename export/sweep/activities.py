"""Attention, state spaces and recurrence over windows of sensors, as their authors write them.

Windows are (time, channels), as intake makes them.

Sources: TST (arXiv:2010.02803), Informer (arXiv:2012.07436), Autoformer (arXiv:2106.13008),
FEDformer (arXiv:2201.12740), Fourier neural operators (arXiv:2010.08895), TS2Vec
(arXiv:2106.10466), S4D (arXiv:2206.11893), S5 (arXiv:2208.04933), minGRU (arXiv:2410.01201),
TinyHAR (Zhou 2022), DeepSense (arXiv:1611.01942), Attend and Discriminate (arXiv:2007.07426).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase

_TIME, _CHANNELS = 128, 6


class _Tst(nn.Module):
    """TST: learned positions, batch normalisation in the encoder, all steps classified together."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.project = nn.Linear(_CHANNELS, width)
        self.places = nn.Parameter(torch.empty(_TIME, 1, width).uniform_(-0.02, 0.02))
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1)
        self.linear1, self.linear2 = nn.Linear(width, 32), nn.Linear(32, width)
        self.norm1, self.norm2 = nn.BatchNorm1d(width, eps=1e-5), nn.BatchNorm1d(width, eps=1e-5)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(_TIME * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.project(x.permute(1, 0, 2)) * math.sqrt(16) + self.places
        mixed = self.attention(rows, rows, rows)[0]
        rows = rows + self.dropout(mixed)
        rows = self.norm1(rows.permute(1, 2, 0)).permute(2, 0, 1)
        mixed = self.linear2(self.dropout(functional.gelu(self.linear1(rows))))
        rows = self.norm2((rows + self.dropout(mixed)).permute(1, 2, 0)).permute(2, 0, 1)
        output = functional.gelu(rows.permute(1, 0, 2))
        logits: Tensor = self.head(self.dropout(output).reshape(output.shape[0], -1))
        return logits


class _ProbSparse(nn.Module):
    """Informer: queries whose sampled scores stand out attend, the others take the mean.

    Args:
        once: the keys of the sample are drawn when the module is made, not in every call.
    """

    def __init__(self, *, once: bool, width: int = 16, heads: int = 2, factor: int = 3) -> None:
        super().__init__()
        self.once = torch.randint(_TIME, (_TIME, factor * 5)) if once else None
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.heads, self.factor = nn.Linear(width, width), heads, factor

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, length, _ = x.shape
        q, k, v = (self._split(one(x)) for one in (self.query, self.key, self.value))
        count = self.factor * math.ceil(math.log(length))
        expanded = k.unsqueeze(-3).expand(b, self.heads, length, length, q.shape[-1])
        index = torch.randint(length, (length, count)) if self.once is None else self.once
        sampled = expanded[:, :, torch.arange(length).unsqueeze(1), index, :]
        scores = torch.matmul(q.unsqueeze(-2), sampled.transpose(-2, -1)).squeeze(-2)
        measure = scores.max(-1)[0] - torch.div(scores.sum(-1), length)
        top = measure.topk(count, sorted=False)[1]
        batch, head = torch.arange(b)[:, None, None], torch.arange(self.heads)[None, :, None]
        chosen = q[batch, head, top, :]
        weights = (chosen @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
        context = v.mean(dim=-2).unsqueeze(-2).expand(b, self.heads, length, v.shape[-1]).clone()
        context[batch, head, top, :] = weights @ v
        result: Tensor = self.out(context.transpose(2, 1).reshape(b, length, -1))
        return result


class _Distilling(nn.Module):
    """Informer's encoder: attention, a convolution that wraps around, every second step kept."""

    def __init__(self, *, once: bool, width: int = 16) -> None:
        super().__init__()
        self.attention, self.norm = _ProbSparse(once=once), nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, 3, padding=2, padding_mode="circular")
        self.bn, self.act, self.pool = nn.BatchNorm1d(width), nn.ELU(), nn.MaxPool1d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.attention(x))
        result: Tensor = self.pool(self.act(self.bn(self.conv(x.permute(0, 2, 1))))).transpose(1, 2)
        return result


class _AutoCorrelation(nn.Module):
    """Autoformer in evaluation form: each example's strongest delays, by the spectrum."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.heads = nn.Linear(width, width), heads

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).permute(0, 2, 3, 1).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        b, length, _ = x.shape
        q, k, v = (self._split(one(x)) for one in (self.query, self.key, self.value))
        product = torch.fft.rfft(q, dim=-1) * torch.conj(torch.fft.rfft(k, dim=-1))
        corr = torch.fft.irfft(product, n=length, dim=-1)
        top = int(math.log(length))
        mean = torch.mean(torch.mean(corr, dim=1), dim=1)
        weights, delay = torch.topk(mean, top, dim=-1)
        weights = torch.softmax(weights, dim=-1)
        start = torch.arange(length).unsqueeze(0).unsqueeze(0).unsqueeze(0)
        start = start.repeat(b, v.shape[1], v.shape[2], 1)
        twice, total = v.repeat(1, 1, 1, 2), torch.zeros_like(v).float()
        for i in range(top):
            places = start + delay[:, i].view(b, 1, 1, 1)
            pattern = torch.gather(twice, dim=-1, index=places)
            total = total + pattern * weights[:, i].view(b, 1, 1, 1)
        result: Tensor = self.out(total.permute(0, 3, 1, 2).reshape(b, length, -1))
        return x + result


class _FourierBlock(nn.Module):
    """FEDformer: some frequencies, each multiplied by complex weights of its own."""

    def __init__(self, width: int = 8, modes: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(_TIME // 2, generator=generator)[:modes].sort().values
        self.index = chosen.tolist()
        scale = 1 / (width * width)
        self.weights1 = nn.Parameter(scale * torch.rand(width, width, modes, 2))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x.permute(0, 2, 1), dim=-1)
        out = torch.zeros(*spectrum.shape, dtype=torch.cfloat)
        weights = torch.view_as_complex(self.weights1)
        for place, mode in enumerate(self.index):
            out[:, :, place] = torch.einsum("bi,io->bo", spectrum[:, :, mode], weights[:, :, place])
        result: Tensor = x + torch.fft.irfft(out, n=x.size(1)).permute(0, 2, 1)
        return result


class _FourierOperator(nn.Module):
    """A Fourier neural operator's layer: the lowest frequencies, in one product and one slice."""

    def __init__(self, width: int = 8, modes: int = 16) -> None:
        super().__init__()
        self.modes, self.w = modes, nn.Linear(width, width)
        self.weights1 = nn.Parameter(torch.rand(width, width, modes, 2) / width**2)

    def forward(self, x: Tensor) -> Tensor:
        x_ft = torch.fft.rfft(x.permute(0, 2, 1))
        out_ft = torch.zeros(*x_ft.shape, device=x.device, dtype=torch.cfloat)
        weights = torch.view_as_complex(self.weights1)
        lowest = torch.einsum("bix,iox->box", x_ft[:, :, : self.modes], weights)
        out_ft[:, :, : self.modes] = lowest
        back = torch.fft.irfft(out_ft, n=x.size(1)).permute(0, 2, 1)
        return functional.gelu(back + self.w(x))


class _SamePadConv(nn.Module):
    """TS2Vec's convolution of an even reach; what is too much is cut off."""

    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        reach = 2 * dilation + 1
        self.conv = nn.Conv1d(before, after, 3, padding=reach // 2, dilation=dilation)
        self.remove = 1 if reach % 2 == 0 else 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return out[:, :, : -self.remove] if self.remove > 0 else out


class _DilatedBlock(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = _SamePadConv(width, width, dilation)
        self.conv2 = _SamePadConv(width, width, dilation)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.conv2(functional.gelu(self.conv1(functional.gelu(x))))
        return inner + x


class _Ts2Vec(nn.Module):
    """TS2Vec: steps masked at random while it trains, missing ones masked, largest over time."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.input_fc = nn.Linear(_CHANNELS, width)
        self.blocks = nn.Sequential(*(_DilatedBlock(width, 2**n) for n in range(4)))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        present = ~x.isnan().any(axis=-1)  # type: ignore[call-overload]
        x = torch.where(present.unsqueeze(-1), x, torch.zeros_like(x))
        x = self.input_fc(x)
        if self.training:
            kept = torch.bernoulli(torch.full((x.size(0), x.size(1)), 0.5)).to(torch.bool)
        else:
            kept = x.new_full((x.size(0), x.size(1)), fill_value=True, dtype=torch.bool)
        kept &= present
        x = x.masked_fill(~kept.unsqueeze(-1), 0)
        x = self.drop(self.blocks(x.transpose(1, 2))).transpose(1, 2)
        whole = functional.max_pool1d(x.transpose(1, 2), kernel_size=x.size(1)).squeeze(-1)
        logits: Tensor = self.head(whole)
        return logits


class _S4D(nn.Module):
    """A diagonal state space as a long convolution by spectra, with a gated linear unit."""

    def __init__(self, width: int = 16, states: int = 8) -> None:
        super().__init__()
        steps = torch.rand(width) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)
        self.log_dt = nn.Parameter(steps)
        self.c = nn.Parameter(torch.view_as_real(torch.randn(width, states, dtype=torch.cfloat)))
        self.log_a_real = nn.Parameter(torch.log(0.5 * torch.ones(width, states)))
        self.a_imag = nn.Parameter(math.pi * torch.arange(states).float().repeat(width, 1))
        self.d = nn.Parameter(torch.randn(width))
        self.output = nn.Sequential(nn.Conv1d(width, 2 * width, 1), nn.GLU(dim=-2))

    def _kernel(self, length: int) -> Tensor:
        dt = torch.exp(self.log_dt)
        a = -torch.exp(self.log_a_real) + 1j * self.a_imag
        scaled = a * dt.unsqueeze(-1)
        powers = scaled.unsqueeze(-1) * torch.arange(length)
        c = torch.view_as_complex(self.c) * (torch.exp(scaled) - 1.0) / a
        return 2 * torch.einsum("hn,hnl->hl", c, torch.exp(powers)).real

    def forward(self, x: Tensor) -> Tensor:
        u = x.transpose(-1, -2)
        length = u.size(-1)
        k_f = torch.fft.rfft(self._kernel(length), n=2 * length)
        u_f = torch.fft.rfft(u, n=2 * length)
        y = torch.fft.irfft(u_f * k_f, n=2 * length)[..., :length]
        y = functional.gelu(y + u * self.d.unsqueeze(-1))
        result: Tensor = self.output(y).transpose(-1, -2)
        return result


class _S5(nn.Module):
    """A diagonal state space as a recurrence in a loop, in real and imaginary parts."""

    def __init__(self, width: int = 16, states: int = 8) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-3, 0, states))
        self.angle = nn.Parameter(torch.linspace(0, math.pi, states))
        self.b, self.c = nn.Linear(width, 2 * states), nn.Linear(2 * states, width)
        self.pool = nn.AvgPool1d(8)

    def forward(self, x: Tensor) -> Tensor:
        drive = self.b(self.pool(x.mT).mT)
        size = torch.exp(-torch.exp(self.decay))
        a, b = size * torch.cos(self.angle), size * torch.sin(self.angle)
        re = im = torch.zeros_like(drive[:, 0, : self.decay.numel()])
        outputs = []
        for u in torch.unbind(drive, dim=1):
            u_re, u_im = torch.split(u, self.decay.numel(), dim=-1)
            re, im = a * re - b * im + u_re, a * im + b * re + u_im
            outputs.append(torch.cat((re, im), dim=-1))
        result: Tensor = self.c(torch.stack(outputs, dim=1))
        return result


def _log_g(x: Tensor) -> Tensor:
    return torch.where(x >= 0, (functional.relu(x) + 0.5).log(), -functional.softplus(-x))


class _MinGru(nn.Module):
    """minGRU by a parallel scan in log space."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.to_hidden_and_gate = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden, gate = self.to_hidden_and_gate(x).chunk(2, dim=-1)
        log_coefficients = -functional.softplus(gate)
        log_values = -functional.softplus(-gate) + _log_g(hidden)
        a_star = log_coefficients.cumsum(dim=1)
        log_h0_plus_b_star = (log_values - a_star).logcumsumexp(dim=1)
        return (a_star + log_h0_plus_b_star).exp()


class _TinyHar(nn.Module):
    """TinyHAR: convolutions by channel, attention over channels, an LSTM, weighted steps."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n in range(4):
            layers += [nn.Conv2d(1 if n == 0 else width, width, (5, 1), (2, 1)), nn.ReLU()]
            layers.append(nn.BatchNorm2d(width))
        self.layers_conv = nn.Sequential(*layers)
        self.attention = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.gamma = nn.Parameter(torch.tensor([0.0]))
        self.fusion = nn.Linear(_CHANNELS * width, 2 * width)
        self.lstm = nn.LSTM(2 * width, 2 * width, batch_first=True)
        self.score, self.gamma2 = nn.Linear(2 * width, 1), nn.Parameter(torch.tensor([0.0]))
        self.prediction = nn.Linear(2 * width, CLASSES)

    def _over_channels(self, x: Tensor) -> Tensor:
        q, k, v = (one(x) for one in self.attention)
        weights = functional.softmax(torch.bmm(q, k.permute(0, 2, 1)), dim=-1)
        return self.gamma * torch.bmm(weights, v) + x

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers_conv(x.unsqueeze(1)).permute(0, 3, 2, 1)
        steps = [self._over_channels(x[:, :, t, :]).unsqueeze(-1) for t in range(x.shape[2])]
        x = torch.cat(steps, dim=-1).permute(0, 3, 1, 2)
        x = self.fusion(x.reshape(x.shape[0], x.shape[1], -1))
        outputs, _ = self.lstm(x)
        weights = torch.softmax(self.score(torch.tanh(outputs[:, :-1])).squeeze(2), dim=-1)
        context = torch.bmm(weights.unsqueeze(1), outputs[:, :-1]).squeeze(1)
        logits: Tensor = self.prediction(outputs[:, -1, :] + self.gamma2 * context)
        return logits


class _DeepSense(nn.Module):
    """DeepSense: spectra of intervals, a network for each sensor, one for both, GRUs."""

    def __init__(self, interval: int = 16) -> None:
        super().__init__()
        self.interval = interval
        self.sensors = nn.ModuleList(
            nn.Sequential(nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 3))
            for _ in range(2)
        )
        self.merge = nn.Sequential(nn.Conv2d(8, 8, (2, 3)), nn.BatchNorm2d(8), nn.ReLU())
        self.gru = nn.GRU(24, 16, 2, batch_first=True, dropout=0.5)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        b, time, channels = x.shape
        pieces = x.reshape(b * time // self.interval, self.interval, channels)
        spectrum = torch.view_as_real(torch.fft.rfft(pieces, dim=1)).permute(0, 2, 3, 1)
        parts = [
            net(spectrum[:, 3 * i : 3 * (i + 1)].flatten(1, 2))
            for i, net in enumerate(self.sensors)
        ]
        merged = self.merge(torch.stack(parts, dim=2))
        outputs, _ = self.gru(merged.view(b, time // self.interval, -1))
        logits: Tensor = self.head(outputs.mean(dim=1))
        return logits


class _AttendDiscriminate(nn.Module):
    """Attend and Discriminate: attention between sensors, a GRU, weighted steps, centres."""

    def __init__(self, filters: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, filters, (5, 1))
        self.conv2 = nn.Conv2d(filters, filters, (5, 1), stride=(2, 1))
        self.query, self.key, self.value = (
            nn.utils.spectral_norm(nn.Conv1d(filters, filters, 1, bias=False)) for _ in range(3)
        )
        self.gamma = nn.Parameter(torch.tensor([0.1]))
        self.rnn = nn.GRU(filters * _CHANNELS, 16, 2, bidirectional=True, dropout=0.25)
        self.score, self.fc = nn.Linear(32, 1), nn.Linear(32, CLASSES)
        self.register_buffer("centers", torch.randn(CLASSES, 32))

    def _between_sensors(self, x: Tensor) -> Tensor:
        size = x.size()
        x = x.view(*size[:2], -1)
        q, k, v = self.query(x), self.key(x), self.value(x)
        beta = functional.softmax(torch.bmm(q.permute(0, 2, 1).contiguous(), k), dim=1)
        o = self.gamma * torch.bmm(v, beta) + x
        return o.view(*size).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x.unsqueeze(1)))))
        refined = torch.cat(
            [self._between_sensors(torch.unsqueeze(x[:, :, t, :], dim=3)) for t in range(0, 60, 8)],
            dim=-1,
        )
        rows = refined.permute(3, 0, 1, 2).reshape(refined.shape[-1], x.shape[0], -1)
        outputs, _ = self.rnn(rows)
        weights = functional.softmax(self.score(outputs).squeeze(2), dim=0)
        z = torch.sum(outputs * weights.unsqueeze(-1), dim=0)
        z = z.div(torch.norm(z, p=2, dim=1, keepdim=True).expand_as(z))
        logits: Tensor = self.fc(z)
        return logits


class _Embedded(nn.Module):
    """Samples embedded, a body over (B, time, width), the mean over time classified."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.embed, self.body = nn.Linear(_CHANNELS, width), body
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.norm(self.body(self.embed(x))).mean(1))
        return logits


def _case(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    shape = (_TIME, _CHANNELS)
    return SweepCase(name=name, group="architectures", build=build, input_shape=shape, whole=True)


def _body(name: str, body: Callable[[], nn.Module], width: int = 16) -> SweepCase:
    return _case(name, lambda: _Embedded(body(), width))


CASES: tuple[SweepCase, ...] = (
    _case("TST", _Tst),
    _body("Informer, keys drawn in every call", lambda: _Distilling(once=False)),
    _body("Informer, keys drawn once", lambda: _Distilling(once=True)),
    _body("Autoformer's autocorrelation", _AutoCorrelation, 8),
    _body("FEDformer's Fourier block", _FourierBlock, 8),
    _body("Fourier neural operator", _FourierOperator, 8),
    _case("TS2Vec", _Ts2Vec),
    _body("S4D", _S4D),
    _body("S5 in a loop, 16 steps", _S5),
    _body("minGRU", _MinGru),
    _case("TinyHAR", _TinyHar),
    _case("DeepSense", _DeepSense),
    _case("Attend and Discriminate", _AttendDiscriminate),
)
