"""Fuzzes one decoder, guided by coverage, in a process of its own: it ends with libFuzzer.

``worker.py TARGET FOLDER`` and options of libFuzzer; the slowest input and the one that took most
memory are kept in FOLDER.
"""

from __future__ import annotations

import gc
import logging
import random
import sys
import time
import types
from pathlib import Path

import atheris
from fuzz.mutations import mutate
from fuzz.target import Target
from fuzz.targets import TARGETS

_FOLLOWED = ("protofleet", "json", "csv", "zipfile", "numpy.lib", "pickle")
"""Modules whose branches guide the fuzzer; parsers in C show no branches."""
_SAMPLE = 64
"""Counting memory slows an input down, so that only one of so many is counted."""


def main() -> None:
    """Fuzz until libFuzzer's limits are reached or something crashes."""
    name, folder, *options = sys.argv[1:]
    logging.disable()
    target = TARGETS[name]
    seeds = target.examples + target.kept()
    _instrument()

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        draw = random.Random(seed)  # noqa: S311 - libFuzzer's, so that a run can be repeated
        if draw.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return mutate(data, seeds, draw)[:max_size]

    watched = _Watched(target, Path(folder))
    atheris.Setup([str(Path(folder, "worker")), *options], watched, custom_mutator=mutated)
    atheris.Fuzz()


def _instrument() -> None:
    """Follow the functions that exist: the editable install hides modules from Atheris' import."""
    for found in gc.get_objects():
        if isinstance(found, types.FunctionType) and (found.__module__ or "").startswith(_FOLLOWED):
            found.__code__ = atheris.patch_code(found.__code__, trace_dataflow=True)


class _Watched:
    """Runs a target and keeps the inputs that cost most."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._count = 0
        self._slowest_s, self._largest = 0.0, 0

    def __call__(self, data: bytes) -> None:
        self._count += 1
        if self._count % _SAMPLE == 0:
            peak = self._target.peak_bytes(data)
            if peak > self._largest:
                self._largest = peak
                (self._folder / "largest").write_bytes(data)
            allowed = self._target.allowed_bytes(data)
            # Once more, because the fuzzer's own tables grow at some time, too.
            if peak > allowed and (peak := self._target.peak_bytes(data)) > allowed:
                raise MemoryError(f"{peak} bytes of memory > {allowed} allowed")
            return
        began = time.perf_counter()
        self._target.run(data)
        took_s = time.perf_counter() - began
        if took_s > self._slowest_s:
            self._slowest_s = took_s
            (self._folder / "slowest").write_bytes(data)


if __name__ == "__main__":
    main()
