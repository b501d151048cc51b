"""What the coordinator does in a round, without a broker: payloads out, updates in, a new state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.experiments._worker import WorkerResult, WorkerTask
from protofleet.experiments.diagnostics import Diagnosis
from protofleet.experiments.progress import ClientProgress, RunProgress
from protofleet.federation.client import RoundConfig
from protofleet.federation.client_limits import Norms
from protofleet.federation.coding import (
    CodedPayload,
    DecodedUpdate,
    PayloadEncoder,
    to_evaluation,
    update_baseline,
)
from protofleet.federation.outcomes.outcome import OwnerOutcome, followed
from protofleet.federation.plan import Plan
from protofleet.federation.records import ClientCosts, RoundRecord
from protofleet.federation.server import Server
from protofleet.strategies.types import ServerState
from protofleet.tensors import Tensors, blobs


class ServerSide:
    """The server's half of a plan, and the payloads of the round that is open.

    Args:
        plan: of the federation.
        diagnosis: figures of the server's model that a round tells beside its scores.
    """

    def __init__(self, plan: Plan, diagnosis: Diagnosis | None = None) -> None:
        self._plan = plan
        self._server = Server.of(plan)
        self._diagnosis = diagnosis
        self._references: Mapping[str, bytes] = {}
        self._baselines: dict[int, Tensors] = {}
        self._encoder = PayloadEncoder(plan.model, self._earlier, lambda coded: coded)

    def payloads(self, run: RunProgress, clients: Iterable[str]) -> dict[str, CodedPayload]:
        """What clients get that are invited to the round which is open."""
        self._references = run.references
        return {
            client_id: self._encoder.encode(
                self._plan.strategy.downlink(run.server, client_id).tensors,
                self._plan.config.codec.payloads,
                run.clients[client_id].reference if client_id in run.clients else "",
            )
            for client_id in clients
        }

    def order(self, round_id: int, *, final: bool) -> RoundConfig:
        """What clients are asked for in a round."""
        config = self._plan.config
        return RoundConfig(
            round_id=round_id,
            seed=config.seed,
            final=final,
            codec=config.codec.updates,
            sends=self._plan.sends,
        )

    @staticmethod
    def task(
        run: RunProgress, order: RoundConfig, client_id: str, coded: CodedPayload
    ) -> WorkerTask:
        """A client's round, for workers."""
        stored = run.clients.get(client_id)
        return WorkerTask(
            client_id=client_id,
            order=order,
            payload=coded.blob,
            coding=coded.coding,
            baseline=run.references[coded.coding.reference] if coded.coding.reference else b"",
            before=stored.round_id if stored else 0,
        )

    def baseline(self, sent: CodedPayload) -> Tensors:
        """What the updates of all are compared with who got this payload."""
        if id(sent) not in self._baselines:
            payload, _ = blobs.decode(sent.raw, max_bytes=len(sent.raw))
            self._baselines[id(sent)] = update_baseline(self._plan.model, payload)
        return self._baselines[id(sent)]

    def admitted(
        self, result: WorkerResult, sent: CodedPayload, bounds: Norms, order: RoundConfig
    ) -> DecodedUpdate:
        """A client's update, checked.

        Raises:
            RefusedError: it breaks a rule.
        """
        return self._server.admit(
            result.update,
            result.coding,
            baseline=self.baseline(sent),
            client_id=result.client_id,
            round_id=order.round_id,
            class_counts=result.class_counts,
            num_examples=None,
            bounds=bounds,
        )

    def aggregated(
        self, run: RunProgress, admitted: Sequence[DecodedUpdate], order: RoundConfig
    ) -> ServerState:
        """The state that a round's updates make of the run's; its payloads are no longer held."""
        self._encoder.clear()
        self._baselines.clear()
        updates = [one.update for one in admitted]
        outcome = self._server.aggregate(
            run.server, order.round_id, updates, admitted, final=order.final
        )
        return _owned(outcome.state)

    def record(  # noqa: PLR0913 - all that a round tells, by keyword
        self,
        run: RunProgress,
        server: ServerState,
        admitted: Sequence[DecodedUpdate],
        results: Mapping[str, WorkerResult],
        sent: Mapping[str, CodedPayload],
        *,
        order: RoundConfig,
        seconds: float,
    ) -> RoundRecord:
        """What there is to tell of a round.

        Args:
            run: as it was before.
            server: the state that the round has made.
            admitted: updates that count.
            results: of everybody who trained.
            sent: what everybody got who was invited.
            order: of the round.
            seconds: that it took.
        """
        final = order.final
        return RoundRecord(
            round_id=order.round_id,
            final=final,
            seconds=seconds,
            participants=len(admitted),
            trained=sum(one.record.num_examples > 0 for one in admitted),
            bytes_up=sum(len(one.update) for one in results.values()),
            bytes_down=sum(len(coded.blob) for coded in sent.values()),
            scores=self._server.score(server, [one.record for one in admitted], final=final),
            # Of a client that was in every round, which is the most that one can have.
            privacy=self._server.spent(run.server, lambda: order.round_id, final=final),
            update_norms=self._server.update_norms(admitted),
            figures=self._server.figures(server) | self._diagnosed(server, final=final),
            costs=_mean_costs([one.costs for one in results.values()]),
        )

    def owners(
        self, run: RunProgress, admitted: Iterable[DecodedUpdate]
    ) -> dict[str, OwnerOutcome | None]:
        """What the run has done for each client's owner, by what counts in this round."""
        owners = {client_id: one.owner for client_id, one in run.clients.items()}
        for told in admitted:
            name = told.record.client_id
            evaluation = to_evaluation(told.record.evaluation)
            task = self._plan.bundle.manifest.task
            owners[name] = followed(owners.get(name), name, task, evaluation)
        return owners

    def _diagnosed(self, server: ServerState, *, final: bool) -> dict[str, float]:
        """Figures of the alignment layers of the server's model, if they are asked for."""
        network = self._plan.strategy.server_model(server)
        if self._diagnosis is None or network is None or final:
            return {}
        return self._diagnosis(network)

    def _earlier(self, reference: str) -> Tensors:
        raw = self._references[reference]
        return blobs.decode(raw, max_bytes=len(raw))[0]


def kept(  # noqa: PLR0913 - all that a round leaves
    run: RunProgress,
    server: ServerState,
    done: RoundRecord,
    results: Mapping[str, WorkerResult],
    *,
    sent: Mapping[str, CodedPayload],
    owners: Mapping[str, OwnerOutcome | None],
) -> RunProgress:
    """After a round: new states, and the payloads that are still referred to."""
    clients, references = dict(run.clients), dict(run.references)
    for client_id, one in results.items():
        coded = sent[client_id]
        clients[client_id] = ClientProgress(one.round_id, coded.held, owners.get(client_id))
        references[coded.held] = coded.raw
    held = {one.reference for one in clients.values()} - {""}
    return RunProgress(
        server, clients, {name: references[name] for name in held}, (*run.rounds, done)
    )


def _owned(state: ServerState) -> ServerState:
    """The state without views into an update, whose memory the next round writes."""
    tensors = {
        name: value if _owner(value).base is None else value.copy()
        for name, value in state.tensors.items()
    }
    return replace(state, tensors=tensors)


def _owner(value: NDArray[Any]) -> NDArray[Any]:
    """The array whose memory this one is a view of."""
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value


def _mean_costs(of_clients: Sequence[ClientCosts]) -> ClientCosts | None:
    if not of_clients:
        return None
    kept_bytes = [one.kept_bytes for one in of_clients if one.kept_bytes is not None]
    return ClientCosts(
        train_s=round(fmean(one.train_s for one in of_clients), 6),
        kept_bytes=round(fmean(kept_bytes), 1) if kept_bytes else None,
    )
