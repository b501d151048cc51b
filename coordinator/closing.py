"""The end of a round: aggregate, score, commit, write the results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from protofleet.coordinator.evaluation import Scorer
from protofleet.coordinator.events import Finished, RoundClosed
from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.plan import Plan
from protofleet.coordinator.results import Results, round_scores
from protofleet.coordinator.rounds import Close
from protofleet.durable import sync_folder, write_whole
from protofleet.errors import ProtofleetError
from protofleet.strategies.types import ServerState, ServerTools
from protofleet.strategies.updates import to_evaluation
from protofleet.tensors import blobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Closer:
    """Closes rounds of one run.

    Attributes:
        plan: bundle, strategy and settings.
        ledger: of the run folder.
        results: what is written after each round.
        scorer: scores the server's model; None: nobody asked.
        tools: what the strategy's server half may use in a round.
    """

    plan: Plan
    ledger: Ledger
    results: Results
    scorer: Scorer | None
    tools: Callable[[int], ServerTools]

    def close(self, server: ServerState, closing: Close) -> tuple[ServerState, RoundClosed]:
        """Aggregate and commit a closing round; done again after a crash, it gives the same bits.

        A final fit is scored and committed, and the tensors stay as they are.

        Raises:
            ProtofleetError: the strategy returned the state of another round.
        """
        round_id = closing.round_id
        scorer = self.scorer if self._is_scored(round_id) else None
        if closing.final:
            state, scorer = replace(server, round_id=round_id), None
        else:
            state = self._aggregate(server, round_id)
        accepted = self.ledger.accepted(round_id)
        scores = round_scores(
            [to_evaluation(one.record.evaluation) for one in accepted],
            scorer(state) if scorer else None,
        )
        self.ledger.commit_round(
            state, scores, time.time(), keep_states=self.plan.config.limits.keep_states
        )
        self.results.add(round_id, accepted)
        row = self.results.write()["rounds"][-1]
        return state, RoundClosed(**row)

    def finish(self, server: ServerState) -> Finished:
        """Write the final global state and the final results."""
        aggregated = sum(not done.final for done in self.ledger.committed())
        model = self.plan.strategy.server_model(server)
        tensors = server.tensors if model is None else {**model.params, **model.buffers}
        metadata = {
            "strategy": self.plan.strategy.description.name,
            "round_id": str(aggregated),
            "content": "server state" if model is None else "model",
        }
        write_whole(self.ledger.folder / "global.safetensors", blobs.encode(tensors, metadata))
        sync_folder(self.ledger.folder)
        document = self.results.write()
        return Finished(rounds=aggregated, scores=document["scores"], result=str(self.results.path))

    def _aggregate(self, server: ServerState, round_id: int) -> ServerState:
        strategy = self.plan.strategy
        updates = self.ledger.updates(round_id)
        state = strategy.aggregate(server, updates, self.tools(round_id))
        if state.round_id != round_id:
            raise ProtofleetError(
                f"strategy '{strategy.description.name}': expected the state of round {round_id} "
                f"from aggregate, got round {state.round_id}"
            )
        return state

    def _is_scored(self, round_id: int) -> bool:
        config = self.plan.config
        return round_id % config.evaluation.every == 0 or round_id == config.rounds
