"""Workers on a Ray cluster: actors that own their clients' states, on one machine or on many.

What a client keeps stays with its actor. Every ``_WRITE_ROUNDS`` rounds actors write it to the
run's folder, in files named by the hash of their content, and until then the driver remembers the
tasks that came after. A task is a pure function of state, payload and seed: so what an actor held
when it was lost is made again, bit by bit, from the last file and those tasks.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protofleet import __version__
from protofleet.errors import InputError, ProtofleetError
from protofleet.experiments._ray_actor import ClientActor, write_state
from protofleet.experiments._worker import StoredClient, WorkerResult, WorkerSpec, WorkerTask
from protofleet.experiments.workers import OpenWorkers, Workers
from protofleet.threads import thread_variables

STARTED_HERE = {
    "RAY_USAGE_STATS_ENABLED": "0",  # else a head reports its use to Ray's makers
    "RAY_worker_niceness": "0",  # else actors wait for all other work of the machine
}
"""Variables of a Ray that is started here, where the environment does not set them."""
_IN_FLIGHT = 2
"""Tasks that an actor has before it answers: one that it does, one so that it need not wait."""
_WRITE_ROUNDS = 10
_HELD_BYTES = 1 << 29
"""Of payloads in Ray's store for tasks that may have to be repeated; more, and states are written
sooner."""
_ATTEMPTS = 8
"""How often a client's task is repeated whose actor was lost."""
_RESTART_S = 600.0
_WAIT_S = 60
_PAUSE_S = 0.2


@contextmanager
def ray_cluster(workers: int | None) -> Iterator[OpenWorkers]:
    """A connection to the cluster that ``RAY_ADDRESS`` names; unset, Ray is started here.

    Args:
        workers: actors of a run, a CPU each; None: one for each CPU of the cluster.

    Raises:
        ModuleNotFoundError: Ray is not installed; the extra ``ray`` brings it.
        ProtofleetError: no cluster can be reached.
    """
    ray = _connected(workers)
    there = max(1, int(ray.cluster_resources().get("CPU", 1)))
    most = min(workers or there, there)  # Ray would wait for more for ever

    @contextmanager
    def opened(
        spec: WorkerSpec, restored: Mapping[str, StoredClient], folder: Path
    ) -> Iterator[Workers]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        actors = RayActors(ray, spec, folder, min(most, len(spec.clients)))
        try:
            actors.start(restored)
            yield actors
        finally:
            actors.stop()
            shutil.rmtree(folder, ignore_errors=True)

    try:
        yield opened
    finally:
        ray.shutdown()


def _connected(workers: int | None) -> Any:
    """Ray's module, connected to a cluster."""
    for name, value in STARTED_HERE.items():
        os.environ.setdefault(name, value)
    import ray  # noqa: PLC0415 - an extra, and a second to load

    address = os.environ.get("RAY_ADDRESS", "local")
    here = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(
            address=address,
            logging_level="ERROR",
            log_to_driver=False,
            runtime_env={"env_vars": thread_variables(1)},
            **here,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ProtofleetError(
            f"Ray at '{address}': {_first_line(error)}; start one (docs/cluster.md), or unset "
            "RAY_ADDRESS"
        ) from error
    return ray


@dataclass(slots=True)
class _Call:
    """What is asked of a client's actor, until it is answered.

    Attributes:
        client_id: of the client.
        send: submits the call to the actor.
        recover: whether the actor lacks the client's state.
        attempts: that came to nothing.
        recovery: answers to come of the calls that make the state again.
    """

    client_id: str
    send: Callable[[Any], Any]
    recover: bool = False
    attempts: int = 0
    recovery: Sequence[Any] = ()


class RayActors:
    """``Workers`` that are Ray actors; a client belongs to one of them for the whole run.

    Args:
        ray: the module, connected.
        spec: what all clients have in common.
        folder: of states, the same for all machines.
        count: number of actors.
    """

    def __init__(self, ray: Any, spec: WorkerSpec, folder: Path, count: int) -> None:
        from ray.util.scheduling_strategies import (  # noqa: PLC0415 - an extra
            PlacementGroupSchedulingStrategy,
        )

        self._ray, self._folder, self._label = ray, folder, spec.label
        # All CPUs at once: two runs that had a part each would wait for the other's for ever.
        self._group = ray.util.placement_group([{"CPU": 1}] * count)
        kind = ray.remote(ClientActor).options(
            num_cpus=1,
            max_restarts=-1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group),
        )
        self._actors = [kind.remote(spec, folder) for _ in range(count)]
        # In turn and not by a hash, so that every actor has the same number of clients.
        self._homes = {name: index % count for index, name in enumerate(sorted(spec.clients))}
        self._written: dict[str, tuple[int, str]] = {}
        self._since: dict[str, list[tuple[WorkerTask, Any, Any]]] = {}
        self._refs: dict[bytes | memoryview, Any] = {}
        self._rounds, self._held = 0, 0

    def start(self, restored: Mapping[str, StoredClient]) -> None:
        """Wait until CPUs are free for the actors, with what clients keep of earlier rounds.

        Raises:
            InputError: a machine of the cluster has another version of this package.
        """
        for name, one in restored.items():
            self._written[name] = one.round_id, write_state(self._folder, one)
        while not self._group.wait(_WAIT_S):
            pass
        for version in self._get([actor.version.remote() for actor in self._actors]):
            if version != __version__:
                raise InputError(
                    f"Ray: a machine of the cluster has protofleet {version}, this one "
                    f"{__version__}; install the same on all"
                )

    def stop(self) -> None:
        """End the actors; what they keep is lost."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.util.remove_placement_group(self._group)

    def train(self, tasks: Sequence[WorkerTask]) -> list[WorkerResult]:
        """As ``Workers`` says."""
        if self._rounds >= _WRITE_ROUNDS or self._held > _HELD_BYTES:
            self._write()  # here and not after a round, whose end only the next one's start tells
        self._rounds += 1
        blobs = {blob for task in tasks for blob in (task.payload, task.baseline)}
        self._held += sum(len(blob) for blob in blobs - self._refs.keys())
        self._refs = {blob: self._refs.get(blob) or self._ray.put(blob) for blob in blobs}
        sent = {task.client_id: self._sent(task) for task in tasks}
        answers = self._answers(
            [_Call(name, _sender("train", *one)) for name, one in sorted(sent.items())]
        )
        for name, one in sent.items():
            self._since.setdefault(name, []).append(one)
        return [answers[name] for name in sorted(answers)]

    def stored(self, rounds: Mapping[str, int]) -> dict[str, StoredClient]:
        """As ``Workers`` says."""
        return self._answers(
            [_Call(name, _sender("stored", name, of)) for name, of in sorted(rounds.items())]
        )

    def _sent(self, task: WorkerTask) -> tuple[WorkerTask, Any, Any]:
        """A task as it is sent: its blobs are in Ray's store, which has each once a round."""
        bare = replace(task, payload=b"", baseline=b"")
        return bare, self._refs[task.payload], self._refs[task.baseline]

    def _write(self) -> None:
        """States of clients that have trained go to files, so that their tasks can be forgotten."""
        last = {name: tasks[-1][0].order.round_id for name, tasks in self._since.items()}
        calls = [_Call(name, _sender("write", name, of)) for name, of in sorted(last.items())]
        for name, digest in self._answers(calls).items():
            self._written[name] = last[name], digest
            del self._since[name]
        self._rounds, self._held = 0, 0
        used = {digest for _, digest in self._written.values()}
        for file in self._folder.iterdir():
            if file.stem not in used:
                file.unlink()

    def _answers(self, calls: Sequence[_Call]) -> dict[str, Any]:
        """The answers by client; calls whose actor is lost, or lacks the state, are repeated."""
        waiting: list[deque[_Call]] = [deque() for _ in self._actors]
        for call in calls:
            waiting[self._homes[call.client_id]].append(call)
        flying: dict[Any, _Call] = {}
        busy = [0] * len(self._actors)
        answers: dict[str, Any] = {}
        while len(answers) < len(calls):
            for home, queue in enumerate(waiting):
                while queue and busy[home] < _IN_FLIGHT:
                    call = queue.popleft()
                    flying[self._submit(call, home)] = call
                    busy[home] += 1
            (done, *_), _ = self._ray.wait(list(flying))
            call = flying.pop(done)
            home = self._homes[call.client_id]
            busy[home] -= 1
            answer = self._answer(done, call, home)
            if answer is None:
                waiting[home].appendleft(call)
            else:
                answers[call.client_id] = answer
        return answers

    def _submit(self, call: _Call, home: int) -> Any:
        """Send a call, behind what makes its client's state again if that is needed."""
        actor, name = self._actors[home], call.client_id
        if call.recover:
            written = [self._written[name]] if name in self._written else []
            loaded = [actor.load.remote(name, *one) for one in written]
            again = [actor.replay.remote(*one) for one in self._since.get(name, ())]
            call.recovery = [*loaded, *again]
        return call.send(actor)

    def _answer(self, ref: Any, call: _Call, home: int) -> Any:
        """What the actor says; None: the call is to be repeated."""
        try:
            answer = self._get(ref)
            if answer is None:
                self._get(
                    list(call.recovery)
                )  # raises what had kept the state from being made again
        except self._ray.exceptions.RayActorError:
            self._await(home)
            answer = None
        if answer is None:
            call.recover, call.attempts = True, call.attempts + 1
            if call.attempts > _ATTEMPTS:
                raise ProtofleetError(
                    f"'{self._label}', client '{call.client_id}': its Ray actor was lost "
                    f"{call.attempts} times, perhaps for lack of memory; use fewer --workers"
                )
        return answer

    def _await(self, home: int) -> None:
        """Until Ray has restarted a lost actor."""
        deadline = time.monotonic() + _RESTART_S
        while True:
            try:
                self._get(self._actors[home].version.remote())
            except self._ray.exceptions.RayActorError as error:
                if time.monotonic() > deadline:
                    raise ProtofleetError(
                        f"'{self._label}': Ray has not restarted a lost actor within "
                        f"{_RESTART_S:.0f} s: {_first_line(error)}"
                    ) from error
                time.sleep(_PAUSE_S)
            else:
                return

    def _get(self, refs: Any) -> Any:
        """What Ray has under the references; an error of ours comes as it was raised."""
        try:
            return self._ray.get(refs)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ProtofleetError):
                raise error.cause from None
            raise


def _sender(method: str, *args: Any) -> Callable[[Any], Any]:
    return lambda actor: getattr(actor, method).remote(*args)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
