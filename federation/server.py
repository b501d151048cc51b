"""The server's half of a round: admit an update, aggregate, score.

What a client gets is ``Strategy.downlink`` in the form that ``coding.PayloadEncoder`` gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

from protofleet.errors import ProtofleetError
from protofleet.federation.admission import ExpectedUpdate, admit, expect_updates
from protofleet.federation.coding import DecodedUpdate, decode_update, to_evaluation
from protofleet.federation.plan import Plan
from protofleet.federation.records import Scores, UpdateRecord
from protofleet.federation.scores import round_scores
from protofleet.federation.server_tools import Scorer, make_scorer, make_server_tools
from protofleet.strategies.types import ServerState, ServerTools, Updates
from protofleet.tensors import Tensors
from protofleet.wire.codecs import Coding


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server's half of a federation.

    Attributes:
        plan: bundle, strategy and settings.
        expected: what updates must look like.
        scorer: scores the server's model; None: nobody asked.
        tools: what the strategy's server half may use in a round.
    """

    plan: Plan
    expected: ExpectedUpdate
    scorer: Scorer | None
    tools: Callable[[int], ServerTools]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The server of a plan.

        Raises:
            InputError: the bundle lacks a program that the server needs, or the pooled test data
                do not fit.
        """
        return cls(
            plan=plan,
            expected=expect_updates(plan),
            scorer=make_scorer(plan.bundle, plan.strategy, plan.config.evaluation),
            tools=make_server_tools(
                plan.bundle,
                plan.strategy,
                seed=plan.config.seed,
                aggregator=plan.aggregator,
            ),
        )

    def admit(  # noqa: PLR0913 - what came and from whom, each named at the call
        self,
        blob: bytes,
        coding: Coding,
        *,
        baseline: Tensors,
        client_id: str,
        round_id: int,
        class_counts: tuple[int, ...] | None,
    ) -> DecodedUpdate:
        """Decode and check a complete update, once.

        Args:
            blob: as it arrived.
            coding: what its offer says.
            baseline: what it was compared with.
            client_id: whose topic it came on.
            round_id: the round its offer names.
            class_counts: what its client has registered; None: nothing.

        Raises:
            RefusedError: a rule is broken; the update must not be used.
        """
        decoded = decode_update(
            blob,
            coding,
            baseline,
            max_bytes=self.expected.max_bytes,
            forms=self.expected.uplink,
            class_counts=class_counts if self.expected.class_counts else None,
        )
        admit(decoded, self.expected, client_id=client_id, round_id=round_id)
        return decoded

    def aggregate(
        self, state: ServerState, round_id: int, updates: Updates, *, final: bool
    ) -> ServerState:
        """The state after a round; done again after a crash, it gives the same bits.

        After a final fit the tensors stay as they are.

        Args:
            state: before the round.
            round_id: the closing round.
            updates: the admitted ones, sorted by client_id.
            final: whether it is the final fit.

        Raises:
            ProtofleetError: the strategy returned the state of another round.
        """
        if final:
            return replace(state, round_id=round_id)
        strategy = self.plan.strategy
        state = strategy.aggregate(state, updates, self.tools(round_id))
        if state.round_id != round_id:
            raise ProtofleetError(
                f"strategy '{strategy.description.name}': expected the state of round {round_id} "
                f"from aggregate, got round {state.round_id}"
            )
        return state

    def score(self, state: ServerState, records: Iterable[UpdateRecord], *, final: bool) -> Scores:
        """Scores of the round that made ``state``; after a final fit the clients' alone.

        Args:
            state: from ``aggregate``.
            records: of the admitted updates.
            final: whether it was the final fit.
        """
        scorer = self.scorer if not final and self._is_scored(state.round_id) else None
        evaluations = [to_evaluation(record.evaluation) for record in records]
        return round_scores(
            evaluations,
            scorer(state) if scorer else None,
            task=self.plan.model.task,
            targets=self.plan.bundle.manifest.targets,
        )

    def _is_scored(self, round_id: int) -> bool:
        config = self.plan.config
        return round_id % config.evaluation.every == 0 or round_id == config.rounds
