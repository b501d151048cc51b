"""What a strategy is: a class of pure functions, both halves of a method.

Shared tensors travel in payloads and updates; a client's personal tensors stay in its
``ClientState`` on the device. Nothing is ever written into an input array.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import numpy as np

from protofleet.strategies.common import network_tensors, parse_settings, unpack_network
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    Score,
    ServerState,
    ServerTools,
    TensorSchemas,
    Update,
    Updates,
)
from protofleet.tensors import Model, Network, Tensors

Rank = Callable[[ServerState, Sequence[str]], Sequence[str]]
"""Candidates of the next round in the order in which they are to be invited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySupport:
    """What a strategy's updates are to differential privacy (``strategies.privacy``).

    Its ``aggregate`` then gets a single update that stands for all clients.

    Attributes:
        baseline: from the server's state, what each tensor of an update is compared with, by its
            name there; the same for all clients.
        by_class: names of tensors ``(C, …)`` whose rows are of a class each; they count where a
            client has examples of the class. Needs ``Description.class_counts``.
    """

    baseline: Callable[[ServerState], Tensors]
    by_class: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSupport:
    """Of a strategy whose server half needs of its updates their mean alone.

    Its ``aggregate`` makes the same of a round's updates and of a single one with the weighted mean
    of their tensors. Every tensor of an update has a fixed shape.

    Attributes:
        by_examples: clients count by their number of examples; otherwise alike.
    """

    by_examples: bool = True


class Strategy(ABC):
    """A personalised federated-learning algorithm, both halves, for one model.

    A method is a subclass: it has a ``description``, says by the annotation of ``settings`` which
    record its settings are, and keeps nothing but what it is built from.

    Args:
        settings: validated; as many other strategies as wanted may have the same.
        model: the bundle's initial values.

    Attributes:
        description: what can be said without a model.
        payload: what its payloads hold.
        uplink: what its updates hold; a client without examples sends the same.
        carried: names of the tensors of a client's state that it takes along to another bundle of
            its federation, as far as they fit: of its own model, which a first payload leaves as
            it is.
        private: how differential privacy sums its updates; None: it cannot.
        mean: how cells may add its updates up; None: the server half looks at single ones.
        rank: from the server's state, candidates of the next round (``cohort.selection =
            "strategy"``) in the order in which they are to be invited; those that it leaves out
            come last. They come in an order drawn by the federation's seed: what is stable leaves
            equals to chance. Pure, as all the rest; None: it has no say.
    """

    description: Description
    settings: Any
    payload: TensorSchemas = TensorSchemas()
    uplink: TensorSchemas = TensorSchemas()
    carried: frozenset[str] = frozenset()
    private: PrivacySupport | None = None
    mean: SumSupport | None = None
    rank: Rank | None = None

    def __init__(self, settings: Any, model: Model) -> None:
        self.settings, self.model = settings, model

    @classmethod
    def build(cls, settings: Mapping[str, Any], model: Model) -> Self:
        """The strategy from what differs from its defaults.

        Raises:
            InputError: unknown setting, wrong type, a value outside its range, or a model that does
                not suit.
        """
        return cls(parse_settings(cls.description.name, settings, cls.settings_type()), model)

    @classmethod
    def settings_type(cls) -> type[msgspec.Struct]:
        """The record of its settings."""
        owner = next(one for one in cls.__mro__ if "settings" in inspect.get_annotations(one))
        found: type[msgspec.Struct] = inspect.get_annotations(owner, eval_str=True)["settings"]
        return found

    @abstractmethod
    def server_init(self, model: Model, rng: np.random.Generator) -> ServerState:
        """The coordinator's state before round 1.

        Args:
            model: the bundle's values.
            rng: seeded by the federation's seed.
        """

    def downlink(self, state: ServerState, client_id: str) -> Payload:  # noqa: ARG002 - for others
        """What a client gets in the next round, ``state.round_id + 1``; here the whole state."""
        return Payload(round_id=state.round_id + 1, tensors=state.tensors)

    def client_init(self, model: Model) -> ClientState:
        """A device's state when it joins; here all of the bundle's values."""
        return ClientState(round_id=0, tensors=network_tensors(model.network))

    @abstractmethod
    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        """One local round; the update, and the state to keep if it is delivered."""

    def next_alone(self, payload: Payload, update: Update) -> Payload | None:  # noqa: ARG002 - for others
        """What a client would get in round 2 if it were alone, where that changes how it trains.

        A calibration then tries rates over both rounds; None: round 1 tells enough.
        """
        return None

    def client_model(self, state: ClientState) -> Network:
        """The network with which the device infers now, a copy.

        Raises:
            InputError: a tensor is absent, surplus, or of another shape.
        """
        return unpack_network(state.tensors, self.model)

    def client_score(self, state: ClientState) -> Score | None:  # noqa: ARG002 - for others
        """What classifies that model's features; None: its own head."""
        return None

    def check(self, update: Update) -> None:  # noqa: B027 - forms are enough for most
        """Raise RefusedError for an update of the right form with impossible content."""

    @abstractmethod
    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        """The server's state after a round. Permuting updates changes no bit."""

    def server_model(self, state: ServerState) -> Network | None:  # noqa: ARG002 - for others
        """The global network; None: the strategy has none."""
        return None
