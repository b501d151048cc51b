"""Training alone, beside a federation: what the client's owner would have without the others.

From the bundle's values, on the same examples, in the same rounds and with the same optimiser as
the strategy, by ``local``; its state travels nowhere and is kept within the client's own, so that
both count or neither does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from protofleet.strategies.methods.local import LocalSettings
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.training import DivergedError
from protofleet.strategies.types import ClientState, Evaluation, Payload, Update
from protofleet.tensors import Network, Tensors

LOCAL = "local"
"""The strategy that does so."""
ALONE = "alone"
"""Of its statistics in ``Evaluation.more``."""
_PREFIX = f"{ALONE}/"


Train = Callable[[Strategy, ClientState | None, Payload], tuple[ClientState, Update]]
"""One local round; DivergedError: something is not finite."""


class AloneLearner(Protocol):
    """``edge.learning.training.Learner`` is one."""

    def strategy(self, name: str, settings: Mapping[str, Any]) -> Strategy:
        """A strategy for the bundle's model; InputError: the bundle cannot run it."""
        ...

    def evaluate(self, network: Network) -> Evaluation:
        """Statistics on the own test part."""
        ...


def settings_alone(settings: object) -> dict[str, Any]:
    """Those of a strategy's settings that ``local`` has as well."""
    known = msgspec.to_builtins(settings)
    return {name: known[name] for name in LocalSettings.__struct_fields__ if name in known}


def split(state: ClientState | None) -> tuple[ClientState | None, ClientState | None]:
    """The strategy's state, and that of training alone; None: there is none."""
    if state is None:
        return None, None
    alone = {
        name.removeprefix(_PREFIX): value
        for name, value in state.tensors.items()
        if name.startswith(_PREFIX)
    }
    own = {name: value for name, value in state.tensors.items() if not name.startswith(_PREFIX)}
    return replace(state, tensors=own), replace(state, tensors=alone) if alone else None


def train_alone(
    learner: AloneLearner,
    settings: object,
    before: ClientState | None,
    payload: Payload,
    train: Train,
) -> tuple[Tensors, Evaluation | None]:
    """A round alone; in a fit after the last one nothing is trained.

    Args:
        learner: of the client.
        settings: of the federation's strategy, resolved.
        before: after the client's last round alone; None: it has had none.
        payload: of the federation's round.
        train: as the federation's strategy is trained in this round.

    Returns:
        What the client keeps of it, by names that no strategy has, and how it scores. Where the
        training diverges: what there was before, and no scores.

    Raises:
        InputError: the bundle cannot train without a federation.
    """
    local = learner.strategy(LOCAL, settings_alone(settings))
    if payload.final:
        if before is None:
            return {}, None
        return _kept(before), learner.evaluate(local.client_model(before))
    empty = Payload(round_id=payload.round_id, tensors={})
    try:
        state, update = train(local, before, empty)
    except DivergedError:
        return {} if before is None else _kept(before), None
    return _kept(state), update.evaluation


def _kept(state: ClientState) -> dict[str, Any]:
    return {_PREFIX + name: value for name, value in state.tensors.items()}
