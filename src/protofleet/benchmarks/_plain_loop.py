"""FedAvg as research code writes it: a loop over clients in eager PyTorch, one process per core.

Each client has a deep copy of the model. A round gives it the global parameters, trains it with a
``DataLoader``, ``loss.backward()`` and ``optimiser.step()``, scores it, and averages the state
dicts. A process averages its own clients before it answers, so little goes between processes.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from protofleet.datasets import load_device_data, load_pooled
from protofleet.export.models import build_model
from protofleet.threads import thread_variables

_Examples = list[tuple[Tensor, Tensor]]
_State = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSpec:
    """What is trained, and how.

    Attributes:
        model, settings: by name in ``protofleet.export.models``.
        classes: number of them.
        clients: files of ``DeviceData``.
        pooled: file of everybody's test parts; None: clients are not scored.
        optimiser: ``{kind = "sgd" | "adam", lr, momentum}``.
        epochs, batch_size: of local training.
    """

    model: str
    settings: Mapping[str, Any]
    classes: int
    clients: tuple[Path, ...]
    pooled: Path | None
    optimiser: Mapping[str, Any]
    epochs: int
    batch_size: int


class _Client:
    def __init__(self, model: nn.Module, path: Path) -> None:
        data = load_device_data(path)
        self.model = copy.deepcopy(model)
        self.train = _examples(data.x_train, data.y_train)
        self.test = _examples(data.x_test, data.y_test)


class _Loop:
    """The clients of one process."""

    def __init__(self, spec: PlainSpec) -> None:
        torch.set_num_threads(1)
        self._spec = spec
        self._model = _model(spec)
        self._clients = [_Client(self._model, path) for path in spec.clients]
        self._pooled = None if spec.pooled is None else _examples(*load_pooled(spec.pooled))

    def round(self, state: _State) -> tuple[_State, int]:
        """Sum of the clients' parameters times their examples, and the examples."""
        self._model.load_state_dict(state)
        total = {name: torch.zeros_like(value) for name, value in state.items()}
        for client in self._clients:
            for own, received in zip(
                client.model.parameters(), self._model.parameters(), strict=True
            ):
                own.data = received.data.clone()
            self._fit(client)
            if self._pooled is not None:
                self._score(client.model, client.test)
                self._score(client.model, self._pooled)
            for name, value in client.model.state_dict().items():
                total[name] += value * len(client.train)
        return total, sum(len(client.train) for client in self._clients)

    def _fit(self, client: _Client) -> None:
        loader = _loader(client.train, self._spec.batch_size, shuffle=True)
        optimiser = _optimiser(client.model, self._spec.optimiser)
        loss_of = nn.CrossEntropyLoss()
        client.model.train()
        for _ in range(self._spec.epochs):
            for x, y in loader:
                loss = loss_of(client.model(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()

    def _score(self, model: nn.Module, examples: _Examples) -> tuple[float, float]:
        """Share of right answers, and the mean loss."""
        right, loss = 0, 0.0
        model.eval()
        with torch.no_grad():
            for x, y in _loader(examples, self._spec.batch_size, shuffle=False):
                scores = model(x)
                right += int((scores.argmax(1) == y).sum())
                loss += float(nn.functional.cross_entropy(scores, y, reduction="sum"))
        return right / len(examples), loss / len(examples)

    def score_server(self, state: _State) -> tuple[float, float] | None:
        """Of the averaged model on everybody's test parts."""
        self._model.load_state_dict(state)
        return None if self._pooled is None else self._score(self._model, self._pooled)


def _examples(x: NDArray[np.float32], y: NDArray[Any]) -> _Examples:
    return list(zip(torch.tensor(x), torch.tensor(y, dtype=torch.int64), strict=True))


def _loader(examples: _Examples, batch_size: int, *, shuffle: bool) -> DataLoader[Any]:
    listed: Any = examples  # PyTorch takes a list for a data set
    return DataLoader(listed, batch_size, shuffle=shuffle)


def _model(spec: PlainSpec) -> nn.Module:
    torch.manual_seed(0)
    return build_model(spec.model, **{**spec.settings, "classes": spec.classes})


def _optimiser(model: nn.Module, settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    given = {name: value for name, value in settings.items() if name != "kind"}
    chosen: torch.optim.Optimizer = kinds[settings["kind"]](model.parameters(), **given)
    return chosen


class PlainRounds:
    """Plays rounds.

    Args:
        spec: of all clients.
        pools: processes, each with a part of the clients.
    """

    def __init__(self, spec: PlainSpec, pools: Sequence[ProcessPoolExecutor]) -> None:
        self._pools = pools
        self._state: _State = _model(spec).state_dict()

    def round(self) -> None:
        """Train every client, average, score the average."""
        parts = [one.submit(_round, self._state) for one in self._pools]
        found = [part.result() for part in parts]
        examples = sum(count for _, count in found)
        self._state = {
            name: torch.stack([total[name] for total, _ in found]).sum(0) / examples
            for name in self._state
        }
        self._pools[0].submit(_score_server, self._state).result()


@contextmanager
def plain_rounds(spec: PlainSpec, cores: int) -> Iterator[PlainRounds]:
    """The loop with its clients dealt out to that many processes, one thread each."""
    before = dict(os.environ)
    os.environ.update(thread_variables(1))  # read by the children's libraries when they load
    with ExitStack() as stack:
        pools = []
        for core in range(cores):
            part = replace(spec, clients=spec.clients[core::cores])
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(1, context, initializer=_start, initargs=(part,))
            pools.append(stack.enter_context(pool))
        try:
            yield PlainRounds(spec, pools)
        finally:
            os.environ.clear()
            os.environ.update(before)


_loops: list[_Loop] = []


def _start(spec: PlainSpec) -> None:
    _loops.append(_Loop(spec))


def _round(state: _State) -> tuple[_State, int]:
    return _loops[0].round(state)


def _score_server(state: _State) -> None:
    _loops[0].score_server(state)
