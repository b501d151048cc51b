"""Recurrent layers with their options, cells in a user's own loop, and networks made of them.

Sources: DeepConvLSTM (Ordóñez and Roggen, Sensors 2016, 16(1) 115), attention over a
bidirectional GRU (arXiv:1409.0473, and as in Zeng et al., ISWC 2018, for sensor windows).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase

_GROUP = "recurrent networks"
_CHANNELS, _HIDDEN = 6, 16
_SHORT, _WINDOW, _LONG = 12, 128, 512

Result = Literal["sequence", "final", "both", "last"]


class Recurrent(nn.Module):
    """``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``: windows (B, time, 6) → what is used of it.

    Args:
        kind: the class's name in ``torch.nn``.
        result: the output at every step, the states after the last one, both, or the last output.
        initial: ``none``, ``learned`` parameters, or ``encoded`` from the window's mean.
        options: of the class.
    """

    def __init__(
        self, kind: str, *, result: Result = "sequence", initial: str = "none", **options: Any
    ) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(_CHANNELS, _HIDDEN, **options)
        self.result, self.initial = result, initial
        self.places = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
        self.number = 2 if kind == "LSTM" else 1
        if initial == "learned":
            self.first = nn.Parameter(torch.rand(self.number, self.places, 1, _HIDDEN))
        if initial == "encoded":
            self.encode = nn.Linear(_CHANNELS, self.number * self.places * _HIDDEN)

    def _states(self, x: Tensor) -> Any:
        if self.initial == "none":
            return None
        if self.initial == "learned":
            states = self.first.expand(-1, -1, x.shape[0], -1)
        else:
            encoded: Tensor = self.encode(x.mean(1))
            states = encoded.reshape(-1, self.number, self.places, _HIDDEN).permute(1, 2, 0, 3)
        return (states[0], states[1]) if self.number == 2 else states[0]

    def forward(self, x: Tensor) -> Tensor:
        """The part of the result, (B, …)."""
        states = self._states(x)
        y: Tensor
        y, last = self.rnn(x if self.rnn.batch_first else x.transpose(0, 1), states)
        y = y if self.rnn.batch_first else y.transpose(0, 1)
        if self.result == "sequence":
            return y
        if self.result == "last":
            return y[:, -1]
        finals: Tensor = torch.cat(last if self.number == 2 else (last,)).transpose(0, 1).flatten(1)
        return finals if self.result == "final" else torch.cat((y.flatten(1), finals), 1)


class Cells(nn.Module):
    """A user's own loop over ``nn.LSTMCell``, ``nn.GRUCell`` or ``nn.RNNCell``; the last state."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(_CHANNELS, _HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        """(B, time, 6) → (B, 16)."""
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        last: Tensor = state[0] if isinstance(state, tuple) else state
        return last


class Sequential(nn.Module):
    """One recurrent layer and a linear layer on its last output: (B, time, channels) → (B, C).

    Args:
        kind: ``LSTM``, ``GRU`` or ``RNN``.
        channels: of the input.
        hidden: units.
        classes: C.
    """

    def __init__(
        self, *, kind: str = "LSTM", channels: int = _CHANNELS, hidden: int, classes: int = CLASSES
    ) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(channels, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.rnn(x)[0][:, -1])
        return logits


class DeepConvLstm(nn.Module):
    """Four convolutions over time for each channel, two LSTM layers of 128: (B, time, channels).

    Args:
        channels: of the input.
        classes: C.
    """

    def __init__(self, *, channels: int = _CHANNELS, classes: int = CLASSES) -> None:
        super().__init__()
        sizes = (1, 64, 64, 64, 64)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, (5, 1)) for a, b in pairwise(sizes))
        self.lstm = nn.LSTM(64 * channels, 128, num_layers=2, dropout=0.5, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C)."""
        x = x.unsqueeze(1)
        for convolution in self.convolutions:
            x = functional.relu(convolution(x))
        y, _ = self.lstm(x.transpose(1, 2).flatten(2))
        logits: Tensor = self.head(self.drop(y[:, -1]))
        return logits


class _AttentiveGru(nn.Module):
    """A bidirectional GRU whose steps are weighed by learned scores."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(_CHANNELS, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.mix, self.score = nn.Linear(64, 32), nn.Linear(32, 1, bias=False)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.gru(x)
        weights = self.score(torch.tanh(self.mix(y))).softmax(1)
        logits: Tensor = self.head((weights * y).sum(1))
        return logits


def _layer(
    name: str, kind: str, *, steps: int = _SHORT, first: bool = True, **given: Any
) -> SweepCase:
    return SweepCase(
        name=name,
        group=_GROUP,
        build=lambda: Recurrent(kind, batch_first=first, **given),
        input_shape=(steps, _CHANNELS),
    )


def _cells(kind: str, steps: int) -> SweepCase:
    return SweepCase(
        name=f"{kind} in a loop, {steps} steps",
        group=_GROUP,
        build=lambda: Cells(kind),
        input_shape=(steps, _CHANNELS),
    )


def _network(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> SweepCase:
    return SweepCase(name=name, group="architectures", build=build, input_shape=shape, whole=True)


def _options(kind: str) -> tuple[SweepCase, ...]:
    return (
        _layer(f"{kind}, 128 steps", kind, steps=_WINDOW, result="last"),
        _layer(f"{kind}, steps first", kind, first=False),
        _layer(f"{kind}, 2 layers", kind, num_layers=2),
        _layer(f"{kind}, 2 layers with dropout", kind, num_layers=2, dropout=0.4, result="last"),
        _layer(f"{kind}, bidirectional", kind, bidirectional=True),
        _layer(
            f"{kind}, 2 layers, bidirectional, dropout, steps first, 128 steps",
            kind,
            steps=_WINDOW,
            first=False,
            num_layers=2,
            dropout=0.4,
            bidirectional=True,
            result="both",
        ),
        _layer(f"{kind}, final states", kind, num_layers=2, result="final"),
        _layer(f"{kind}, outputs and final states", kind, bidirectional=True, result="both"),
        _layer(f"{kind}, learned initial states", kind, num_layers=2, initial="learned"),
        _layer(
            f"{kind}, initial states from the window",
            kind,
            bidirectional=True,
            first=False,
            initial="encoded",
            result="final",
        ),
        _layer(f"{kind}, without biases", kind, bias=False, num_layers=2),
    )


CASES: tuple[SweepCase, ...] = (
    *(case for kind in ("LSTM", "GRU", "RNN") for case in _options(kind)),
    _layer("RNN, ReLU, 128 steps", "RNN", steps=_WINDOW, nonlinearity="relu", result="last"),
    _layer(
        "RNN, ReLU, 2 layers, bidirectional",
        "RNN",
        nonlinearity="relu",
        num_layers=2,
        bidirectional=True,
        initial="learned",
        result="both",
    ),
    _layer("GRU, 512 steps", "GRU", steps=_LONG, result="last"),
    *(_cells(kind, _SHORT) for kind in ("LSTMCell", "GRUCell", "RNNCell")),
    *(_cells(kind, _WINDOW) for kind in ("LSTMCell", "GRUCell", "RNNCell")),
    _network("LSTM classifier", lambda: Sequential(hidden=64), (_WINDOW, _CHANNELS)),
    _network("DeepConvLSTM", DeepConvLstm, (_WINDOW, _CHANNELS)),
    _network("DeepConvLSTM, 24 x 113", lambda: DeepConvLstm(channels=113), (24, 113)),
    _network("BiGRU with attention", _AttentiveGru, (_WINDOW, _CHANNELS)),
)
