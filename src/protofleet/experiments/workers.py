"""What an engine asks of the processes that train its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from protofleet.experiments._worker import StoredClient, WorkerResult, WorkerSpec, WorkerTask


class Workers(Protocol):
    """Train clients, and keep what a client keeps from one round to the next.

    They keep it of two rounds, the client's last that is complete and the one that is open, so that
    an engine can always go back to the end of the last complete round.
    """

    def train(self, tasks: Sequence[WorkerTask]) -> Iterable[WorkerResult]:
        """Do one round's tasks; the results come in any order, as they are ready.

        They may lie in memory that the next round writes.

        Raises:
            ProtofleetError: a task failed, or workers died and cannot be replaced.
        """
        ...

    def stored(self, rounds: Mapping[str, int]) -> dict[str, StoredClient]:
        """What each client has kept since the round named beside it: its last complete one."""
        ...


OpenWorkers = Callable[
    [WorkerSpec, Mapping[str, StoredClient], Path], AbstractContextManager[Workers]
]
"""Opens workers for a run: by what its clients have in common, what they keep of the rounds that
are done, and a folder that the workers may use."""


class ClientStates:
    """What clients have kept, each of its last two rounds.

    Args:
        restored: of a run that goes on.
    """

    def __init__(self, restored: Mapping[str, StoredClient]) -> None:
        self._kept = {client_id: {one.round_id: one} for client_id, one in restored.items()}
        self._open = 0

    def at(self, client_id: str, round_id: int) -> StoredClient | None:
        """Of one client since the round; None: not kept, or 0, before its first."""
        return self._kept.get(client_id, {}).get(round_id)

    def put(self, client_id: str, before: int, stored: StoredClient) -> None:
        """Keep a client's new state beside the one of round ``before`` that it was made from."""
        states = self._kept.get(client_id, {})
        states = {round_id: one for round_id, one in states.items() if round_id == before}
        self._kept[client_id] = {**states, stored.round_id: stored}

    def begin(self, round_id: int) -> None:
        """A round opens, so those before it are complete: of each client one state is enough."""
        if round_id <= self._open:
            return
        self._open = round_id
        for client_id, states in self._kept.items():
            last = max(states)
            self._kept[client_id] = {last: states[last]}
