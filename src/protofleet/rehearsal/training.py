"""What a round's training brings: run for real by the experiments' workers, or its bytes alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from protofleet.errors import RefusedError
from protofleet.experiments._worker import WorkerResult, WorkerTask
from protofleet.experiments.progress import RunProgress
from protofleet.experiments.server_side import ServerSide, kept
from protofleet.experiments.workers import Workers
from protofleet.federation.client_limits import learned_bounds
from protofleet.federation.coding import CodedPayload, DecodedUpdate
from protofleet.federation.outcomes.outcome import OwnerOutcome
from protofleet.federation.plan import Plan
from protofleet.federation.records import RoundRecord
from protofleet.strategies.types import ServerState


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedRound:
    """A round that is over.

    Attributes:
        opened_s, seconds: when it was opened, in virtual time, and how long it was open.
        invited: who was.
        delivered_s: when each update was taken, in virtual time.
        extended: how often its deadline was.
        trained: who has finished a training since the last round, and of which round's task.
        running: who is still at it, and of which round's.
        counted: whose update counts in this one.
    """

    opened_s: float
    seconds: float
    invited: Sequence[str]
    delivered_s: Mapping[str, float]
    extended: int
    trained: Sequence[tuple[str, int]]
    running: Collection[tuple[str, int]]
    counted: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedRound:
    """A round whose training was run.

    Attributes:
        over: who took part, and when.
        done: what came of it.
        admitted: the updates that count.
        update_bytes: of each as it travels, by name.
        state: the server's, after it.
    """

    over: ClosedRound
    done: RoundRecord
    admitted: Sequence[DecodedUpdate]
    update_bytes: Mapping[str, int]
    state: ServerState


KeepsRound = Callable[[AggregatedRound], None]


class Training(Protocol):
    """The other side of a virtual fleet's rounds."""

    def payload_bytes(
        self, round_id: int, clients: Sequence[str], *, final: bool
    ) -> Mapping[str, int]:
        """What each of them downloads that is invited."""
        ...

    def closed(self, over: ClosedRound) -> RoundRecord | None:
        """What came of a round; None where nothing is trained."""
        ...

    @property
    def server(self) -> ServerState:
        """The server's state, by which a strategy may rank candidates."""
        ...


class SizesOnly:
    """Nothing is trained: every payload and update has the size of the first.

    Args:
        state: the server's.
        payload: bytes of a payload.
    """

    def __init__(self, state: ServerState, payload: int) -> None:
        self.server, self._payload = state, payload

    def payload_bytes(
        self,
        round_id: int,  # noqa: ARG002 - as of every training
        clients: Sequence[str],
        *,
        final: bool,  # noqa: ARG002 - as above
    ) -> Mapping[str, int]:
        """The same for all."""
        return dict.fromkeys(clients, self._payload)

    def closed(self, over: ClosedRound) -> None:
        """Nothing comes of it."""


class RealTraining:
    """Each finished training is run, by the code of the device; as many at once as there are.

    Args:
        plan: of the federation.
        workers: who train.
        run: where it begins.
        keep: told each round when it is aggregated; None: nobody is.

    Attributes:
        run: where it stands.
        refused: updates that break a rule, with the reason.
    """

    def __init__(
        self, plan: Plan, workers: Workers, run: RunProgress, keep: KeepsRound | None = None
    ) -> None:
        self._side, self._workers, self.run = ServerSide(plan), workers, run
        self._keep = keep
        self.refused: list[str] = []
        self._order = self._side.order(1, final=False)
        self._tasks: dict[tuple[str, int], tuple[WorkerTask, CodedPayload]] = {}

    @property
    def server(self) -> ServerState:
        """After the last round."""
        return self.run.server

    @property
    def owners(self) -> list[OwnerOutcome | None]:
        """What the rounds have done for those who took part."""
        return [one.owner for one in self.run.clients.values()]

    def payload_bytes(
        self, round_id: int, clients: Sequence[str], *, final: bool
    ) -> Mapping[str, int]:
        """Of the payloads as they travel."""
        self._order = order = self._side.order(round_id, final=final)
        sent = self._side.payloads(self.run, clients)
        for name, coded in sent.items():
            self._tasks[name, round_id] = self._side.task(self.run, order, name, coded), coded
        return {name: len(coded.blob) for name, coded in sent.items()}

    def closed(self, over: ClosedRound) -> RoundRecord:
        """Train all who have finished, admit those who count, aggregate and score."""
        results, sent = self._results(over.trained)
        order, before = self._order, self.run
        bounds = learned_bounds(one.update_norms for one in before.rounds)
        admitted = []
        for name in sorted(over.counted):
            try:
                admitted.append(self._side.admitted(results[name], sent[name], bounds, order))
            except RefusedError as error:
                self.refused.append(f"{name}, round {order.round_id}: {error}")
        server = self._side.aggregated(before, admitted, order)
        done = self._side.record(
            before, server, admitted, results, sent, order=order, seconds=round(over.seconds, 3)
        )
        owners = self._side.owners(before, admitted)
        self.run = kept(before, server, done, results, sent=sent, owners=owners)
        self._tasks = {key: self._tasks[key] for key in over.running if key in self._tasks}
        if self._keep is not None:
            sizes = {name: len(one.update) for name, one in results.items()}
            self._keep(
                AggregatedRound(
                    over=over, done=done, admitted=admitted, update_bytes=sizes, state=server
                )
            )
        return done

    def _results(
        self, trained: Sequence[tuple[str, int]]
    ) -> tuple[dict[str, WorkerResult], dict[str, CodedPayload]]:
        """Each client's last; one that has finished two rounds trains them one after the other."""
        results: dict[str, WorkerResult] = {}
        sent: dict[str, CodedPayload] = {}
        left = list(trained)
        while left:
            wave: dict[str, tuple[WorkerTask, CodedPayload]] = {}
            for name, round_id in tuple(left):
                if name not in wave:
                    wave[name] = self._tasks[name, round_id]
                    left.remove((name, round_id))
            tasks = [
                replace(task, before=results[name].round_id) if name in results else task
                for name, (task, _) in sorted(wave.items())
            ]
            for one in self._workers.train(tasks):
                # The next wave writes the memory that it lies in.
                results[one.client_id] = replace(one, update=bytes(one.update))
                sent[one.client_id] = wave[one.client_id][1]
        return dict(sorted(results.items())), sent
