"""What plays its rounds in turn with an engine of experiments: a plain loop, Flower, an engine."""

from __future__ import annotations

import queue
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from protofleet.errors import UnavailableError
from protofleet.experiments.local import run_local
from protofleet.experiments.processes import processes
from protofleet.experiments.run import Job
from protofleet.federation.records import RoundRecord

_PLAIN_TARGET, _FLOWER_TARGET = 2.0, 5.0
"""How many times as fast as a plain loop, and as Flower, the local engine should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePeer:
    """What plays a round in turn with the engine.

    Attributes:
        name: for the table.
        seconds: plays a round; how long it took.
        process: id of the process whose children it lives in; None: of this one's.
        target: least ratio of ours to it; None: there is none.
    """

    name: str
    seconds: Callable[[], float]
    process: int | None = None
    target: float | None = None


@contextmanager
def plain_loop(job: Job, cores: int) -> Iterator[EnginePeer]:
    """A plain PyTorch loop with the job's model, data and training."""
    from protofleet.benchmarks._plain_loop import PlainSpec, plain_rounds  # noqa: PLC0415 - torch

    training, data = job.plan().settings, job.data
    model = job.experiment.model_of(job.method)
    spec = PlainSpec(
        model=model.name,
        settings=model.settings,
        classes=len(data.classes),
        clients=tuple(files.own for _, files in sorted(data.clients.items())),
        pooled=data.pooled,
        optimiser=training["optimiser"],
        epochs=training["epochs"],
        batch_size=training["batch_size"],
    )
    with plain_rounds(spec, cores) as plain:
        yield EnginePeer(
            name="plain PyTorch", seconds=lambda: _timed(plain.round), target=_PLAIN_TARGET
        )


def _timed(play: Callable[[], object]) -> float:
    started = time.perf_counter()
    play()
    return time.perf_counter() - started


@contextmanager
def local_engine(job: Job, cores: int) -> Iterator[EnginePeer]:
    """The local engine with the same job; between its rounds it waits, in a thread, to be asked."""
    asked: queue.Queue[bool] = queue.Queue()
    played: queue.Queue[None] = queue.Queue()
    own = replace(job, folder=job.folder.with_name("beside"))
    own.folder.mkdir()

    def wait() -> None:
        if not asked.get():
            raise CancelledError

    def watch(_: RoundRecord) -> None:
        played.put(None)
        wait()

    def play() -> None:
        wait()
        with processes(cores) as opened:
            run_local(own, opened=opened, watch=watch)

    with ThreadPoolExecutor(1) as thread:
        playing = thread.submit(play)
        playing.add_done_callback(lambda _: played.put(None))  # an error ends the waiting

        def played_round() -> None:
            asked.put(True)  # noqa: FBT003 - a queue's item
            played.get()
            if playing.done():
                playing.result()

        try:
            yield EnginePeer(name="local engine", seconds=lambda: _timed(played_round))
        finally:
            asked.put(False)  # noqa: FBT003 - a queue's item


@contextmanager
def flower_engine(interpreter: Path, numbers: Sequence[int]) -> Iterator[EnginePeer]:
    """Flower's simulation engine without training.

    Args:
        interpreter: that has ``flwr[simulation]``.
        numbers: floats of a model, clients, cores.

    Raises:
        UnavailableError: it does not play Flower's rounds.
    """
    script = Path(__file__).with_name("_flower_rounds.py")
    command = [str(interpreter), "-I", str(script), *map(str, numbers)]
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        if child.stdin is None or child.stdout is None:
            raise UnavailableError("Flower: its process has no pipes")
        asked, answers = child.stdin, child.stdout

        def answer() -> str:
            if not (line := answers.readline()):
                log.seek(0)
                words = log.read().decode(errors="replace").strip().splitlines() or ["nothing"]
                raise UnavailableError(
                    f"Flower in '{interpreter}': ended, its last words: {words[-1]}; it needs an "
                    "environment with flwr[simulation] (docs/benchmarks.md)"
                )
            return line.strip()

        def play() -> float:
            asked.write("\n")
            asked.flush()
            return float(answer())

        try:
            yield EnginePeer(
                name=f"Flower {answer()}",
                seconds=play,
                process=child.pid,
                target=_FLOWER_TARGET,
            )
        finally:
            asked.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
