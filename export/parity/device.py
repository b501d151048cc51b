"""Runs a program the way a device does, for the parity check: through ``protofleet.runtime``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest, Port, Program
from protofleet.export.parity.inputs import Arrays, Runner
from protofleet.runtime import Kernels, Programs, open_programs
from protofleet.tensors import Network, TensorMap, Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """A bundle that is not written yet."""

    manifest: Manifest
    files: Mapping[str, bytes]

    def read(self, name: str, /) -> bytes:
        return self.files[name]


def device_runner(
    name: str,
    manifest: Manifest,
    files: Mapping[str, bytes],
    initial: tuple[Tensors, Tensors],
    *,
    kernels: Kernels = "auto",
) -> Runner:
    """A runner for ``check_parity``.

    Args:
        name: the program's name in the manifest.
        manifest: declares the program and all tensors.
        files: the program files by path.
        initial: parameters and buffers, for tensors that the program does not read.
        kernels: as in ``open_programs``.
    """
    programs = open_programs(_Memory(manifest=manifest, files=files), kernels=kernels)
    program = manifest.programs[name]

    def run(feed: Arrays) -> Mapping[str, NDArray[Any]]:
        params, buffers = (
            TensorMap.pack({**tensors, **_by_key(program, feed, role)})
            for tensors, role in zip(initial, ("param", "state"), strict=True)
        )
        network = Network(params=params, buffers=buffers)
        if program.objective is None:
            return _infer(programs, program, network, feed)
        return _train(programs, program, network, feed)

    return run


def _by_key(program: Program, feed: Arrays, role: str) -> Arrays:
    return {port.key: feed[port.name] for port in program.inputs if port.role == role}


def _infer(
    programs: Programs, program: Program, network: Network, feed: Arrays
) -> Mapping[str, NDArray[Any]]:
    x = _by_key(program, feed, "input")["x"]
    keys = {port.key: port.name for port in program.outputs}
    if "features" not in keys:
        return {keys["logits"]: programs.predict(network, x, batch_size=len(x))}
    results = {keys["features"]: programs.features(network, x, batch_size=len(x))}
    if any(key.startswith("layers.") for key in keys):
        layers = programs.layers(network, x, batch_size=len(x))
        results |= {keys[f"layers.{name}"]: values for name, values in layers.items()}
    return results


def _train(
    programs: Programs, program: Program, network: Network, feed: Arrays
) -> Mapping[str, NDArray[Any]]:
    noise = [feed[port.name] for port in program.inputs if port.role == "noise"]
    rng = cast("np.random.Generator", _Replay(noise))
    batch = _by_key(program, feed, "input")
    step = programs.grad_fns[cast("str", program.objective)](network, batch, rng)

    def value(port: Port) -> NDArray[Any]:
        if port.role == "loss":
            return np.asarray(step.loss, np.float32)
        return (step.grads if port.role == "grad" else step.buffers)[port.key]

    return {port.name: value(port) for port in program.outputs if port.role != "output"}


class _Replay:
    """Stands in for a generator: hands out given arrays in order."""

    def __init__(self, arrays: list[NDArray[Any]]) -> None:
        self._left = iter(arrays)

    def random(self, *, out: NDArray[np.float32], dtype: Any) -> None:  # noqa: ARG002 - numpy's
        out[...] = next(self._left)

    def standard_normal(self, *, out: NDArray[np.float32], dtype: Any) -> None:  # noqa: ARG002 - as above
        out[...] = next(self._left)
