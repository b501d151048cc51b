"""What a measuring process is asked for, and the examples it measures with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.benchmarks.device.report import Combination
from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Manifest, Port
from protofleet.datasets import DeviceData, load_device_data
from protofleet.errors import InputError
from protofleet.tensors import TaskName


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One process's work.

    Attributes:
        bundle: its path.
        digest: of the bundle that was asked for, so that no other is measured in its place.
        what: backend, precision and threads.
        objective: of the training steps.
        batches: examples in a training step, each measured.
        stream_batch: examples in a call when windows stream.
        seconds: of a phase of many calls.
        least: calls of such a phase; ``least_infer`` of single windows.
        seed: of random examples and of the noise of training.
        data: ``.npz`` file of examples; empty: random ones.
    """

    bundle: str
    digest: str
    what: Combination
    objective: str
    batches: tuple[int, ...]
    stream_batch: int
    seconds: float
    least: int
    least_infer: int
    seed: int
    data: str


@dataclass(frozen=True, kw_only=True)
class ProgramInputs:
    """Inputs of the programs.

    Attributes:
        task: of the bundle.
        x, y: ``(n, …) float32`` and true values of the task, taken from the start again when they
            run out.
        test: the test part of given data; None where examples are random.
    """

    task: TaskName
    x: NDArray[np.float32]
    y: NDArray[Any]
    test: tuple[NDArray[np.float32], NDArray[Any]] | None
    _ports: dict[str, tuple[Port, ...]]
    _classes: int
    _seed: int

    def windows(self, n: int) -> NDArray[np.float32]:
        """``(n, …)`` examples."""
        return self.x[self._rows(n)]

    def batch(self, objective: str, n: int) -> dict[str, NDArray[Any]]:
        """Inputs of a training step by key: examples and labels, the rest random."""
        rng = np.random.default_rng(self._seed)
        known: dict[str, NDArray[Any]] = {"x": self.x, "y": self.y}
        return {
            port.key: known[port.key][self._rows(n)]
            if port.key in known
            else self._drawn(port, n, rng)
            for port in self._ports[objective]
        }

    def _rows(self, n: int) -> NDArray[np.int64]:
        return np.arange(n) % len(self.x)

    def _drawn(self, port: Port, n: int, rng: np.random.Generator) -> NDArray[Any]:
        shape = tuple(dim if isinstance(dim, int) else n * _multiple(dim) for dim in port.shape)
        if port.dtype == "int64":
            return rng.integers(0, self._classes, shape)
        return np.asarray(rng.random(shape), np.float32)


def parse(text: str) -> Request:
    """The request in JSON."""
    return msgspec.json.decode(text, type=Request)


def open_bundle(request: Request) -> Bundle:
    """The bundle, verified.

    Raises:
        InputError: it is no longer the one that was asked for.
        RefusedError: a rule of the format is broken.
    """
    bundle = Bundle.open(request.bundle, any_signer=True)
    if bundle.digest != request.digest:
        raise InputError(f"bundle '{request.bundle}': has changed since the measuring began")
    return bundle


def take_examples(request: Request, manifest: Manifest) -> ProgramInputs:
    """The given data, or random examples of the declared shape."""
    data = device_data(request.data, manifest, seed=request.seed)
    return ProgramInputs(
        task=manifest.task,
        x=data.x_train,
        y=data.y_train,
        test=(data.x_test, data.y_test) if request.data and len(data.y_test) else None,
        _ports={
            program.objective: tuple(port for port in program.inputs if port.role == "input")
            for program in manifest.programs.values()
            if program.objective is not None
        },
        _classes=len(manifest.classes),
        _seed=request.seed,
    )


def device_data(path: str, manifest: Manifest, *, seed: int, examples: int = 64) -> DeviceData:
    """The data in ``path``, or, where it is empty, random ones that fit the bundle."""
    if path:
        return load_device_data(Path(path), tokens=manifest.preprocessing.tokens is not None)
    rng = np.random.default_rng(seed)
    shape, outputs = manifest.preprocessing.input_shape, len(manifest.outputs)

    def part(n: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        # Some models read inputs as numbers of words or pixels: none of those is negative.
        x = np.abs(rng.normal(size=(n, *shape))).astype(np.float32)
        if manifest.steps:
            return x, np.arange(n * manifest.steps).reshape(n, -1) % outputs
        if manifest.classes:
            return x, np.arange(n) % outputs
        return x, rng.integers(0, 2, (n, outputs)).astype(np.float32)

    (x_train, y_train), (x_test, y_test) = part(examples), part(examples // 4)
    return DeviceData(
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=manifest.classes,
        targets=manifest.targets,
    )


def _multiple(dim: str) -> int:
    """``batch*8`` is eight times the batch."""
    return int(dim.removeprefix("batch").removeprefix("*") or 1)
