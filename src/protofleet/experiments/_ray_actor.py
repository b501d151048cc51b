"""One CPU's share of a run on a Ray cluster: trains the clients that it owns, keeps their states.

Ray is not imported here: an actor is this plain class.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from uuid import uuid4

from protofleet import __version__
from protofleet.durable import write_synced
from protofleet.errors import InputError
from protofleet.experiments._worker import (
    ClientTrainer,
    StoredClient,
    WorkerResult,
    WorkerSpec,
    WorkerTask,
)
from protofleet.experiments.workers import ClientStates
from protofleet.kernels import set_threads


class ClientActor:
    """The clients of one actor. A method that lacks the state it needs answers None.

    Args:
        spec: what all clients have in common.
        folder: of written states.
    """

    def __init__(self, spec: WorkerSpec, folder: Path) -> None:
        set_threads(1)
        self._spec, self._folder = spec, folder
        self._states = ClientStates({})

    @cached_property
    def _trainer(self) -> ClientTrainer:
        """Opened by the first task: an error of a constructor would reach nobody."""
        return ClientTrainer(self._spec)

    def version(self) -> str:
        """Of this package, as it is installed here."""
        return __version__

    def train(self, task: WorkerTask, payload: bytes, baseline: bytes) -> WorkerResult | None:
        """One client's round; its new state stays here."""
        self._states.begin(task.order.round_id)
        before = self._states.at(task.client_id, task.before)
        if before is None and task.before:
            return None
        whole = replace(task, payload=payload, baseline=baseline)
        result, stored = self._trainer.train(whole, before)
        self._states.put(task.client_id, task.before, stored)
        return result

    def replay(self, task: WorkerTask, payload: bytes, baseline: bytes) -> None:
        """A round that was trained before, for its state."""
        self.train(task, payload, baseline)

    def stored(self, client_id: str, round_id: int) -> StoredClient | None:
        """What the client keeps since the round."""
        return self._states.at(client_id, round_id)

    def write(self, client_id: str, round_id: int) -> str | None:
        """Write what the client keeps since the round; the name of the file's content."""
        stored = self._states.at(client_id, round_id)
        return None if stored is None else write_state(self._folder, stored)

    def load(self, client_id: str, round_id: int, digest: str) -> None:
        """Take up what was written.

        Raises:
            InputError: the file is absent here, or is not what was written.
        """
        self._states.put(client_id, 0, read_state(self._folder, round_id, digest))


def write_state(folder: Path, stored: StoredClient) -> str:
    """Write a state to the file named by the SHA-256 of its content; the hash in hex digits."""
    data = stored.packed()
    digest = hashlib.sha256(data).hexdigest()
    file = _file(folder, digest)
    if not file.exists():
        own = folder / f"{uuid4().hex}.part"  # another actor may write the same content
        write_synced(own, [data])
        own.replace(file)
    return digest


def read_state(folder: Path, round_id: int, digest: str) -> StoredClient:
    """Read what ``write_state`` has written.

    Raises:
        InputError: there is no such file, or its content has another hash.
    """
    file = _file(folder, digest)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"state '{file}': {error.strerror}; every machine of the cluster needs the folder "
            "of the results under the same path"
        ) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"state '{file}': its content is not what its name says; run again")
    return StoredClient.unpacked(round_id, data)


def _file(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.safetensors"
