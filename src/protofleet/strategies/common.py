"""What strategies share: settings, tensors with prefixes, the aggregation of whole updates.

In states, payloads and updates a parameter ``a.w`` is called ``params/a.w`` and a buffer ``b.m`` is
called ``state/b.m``. What an update holds by a name ``change/…`` is an increment, which the server
adds up over the rounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.aggregation import Aggregator, TermsReader
from protofleet.strategies.settings import parse_record
from protofleet.strategies.types import (
    AFTER_FIT,
    ClientState,
    ClientTools,
    Evaluation,
    Payload,
    ServerState,
    UnsuitableModelError,
    Update,
    Updates,
)
from protofleet.tensors import Layout, Model, Network, TensorMap, Tensors, vector_of

PARAMS = "params/"
BUFFERS = "state/"
CHANGE = "change/"

_HELD_BYTES = 32 << 20
"""Of a round's updates: so few are not packed anew each time that a rule goes through them."""
_SHOWN = 8
"""Names in a message; a model may have hundreds."""

_NOTHING = np.zeros(0, np.float32)
_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def parse_settings(strategy: str, settings: Mapping[str, Any], kind: type[_Settings]) -> _Settings:
    """The settings record of a strategy, from what a file or a message says.

    Raises:
        InputError: unknown key, wrong type or a value outside its range.
    """
    return parse_record(f"strategy '{strategy}'", settings, kind)


def prefixed(prefix: str, tensors: Tensors) -> dict[str, NDArray[Any]]:
    """The same arrays under names with a prefix."""
    return {prefix + name: value for name, value in tensors.items()}


def prefixed_layout(prefix: str, layout: Layout) -> Layout:
    """The layout of ``prefixed``."""
    return Layout.of({prefix + name: shape for name, shape in layout.shapes.items()})


def shared_layout(model: Model, head: str | None) -> Layout:
    """Prefixed layout of the parameters that are not the head's.

    Args:
        model: says which are.
        head: how the names of the head's parameters start instead; None: as the model says.

    Raises:
        UnsuitableModelError: all parameters are the head's, or none.
    """
    names = tuple(model.params.layout.shapes)
    own = model.head if head is None else tuple(n for n in names if n.startswith(head))
    if not own and head is None:
        raise UnsuitableModelError(
            "model: the bundle does not say which parameters are its head: export it with --head "
            f"NAME, or set 'head' to how their names start; parameters are {listed(names)}",
            flags="--head NAME",
        )
    if not own or len(own) == len(names):
        raise UnsuitableModelError(
            f"head: expected some parameters, not all and not none, got {listed(own)} of "
            f"{listed(names)}: name another with --head at the export, or by the setting 'head'",
            flags="--head NAME",
        )
    every = prefixed_layout(PARAMS, model.params.layout).shapes
    personal = {PARAMS + name for name in own}
    return Layout.of({name: shape for name, shape in every.items() if name not in personal})


def listed(names: Sequence[str]) -> str:
    """The first names for a message, and how many more there are; ``"none"`` without any."""
    if not names:
        return "none"
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def unpack(tensors: Tensors, prefix: str, layout: Layout) -> TensorMap:
    """Copy the tensors of ``layout``, named there without the prefix, into a map of their own.

    Raises:
        InputError: one is absent, surplus, or of another shape.
    """
    named = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    return TensorMap.pack(named, layout)


def network_tensors(network: Network) -> dict[str, NDArray[Any]]:
    """A network's very arrays under the names that they have in states, payloads and updates."""
    return {**prefixed(PARAMS, network.params), **prefixed(BUFFERS, network.buffers)}


def network_names(model: Model) -> frozenset[str]:
    """The names of ``network_tensors``."""
    return frozenset(network_tensors(model.network))


def unpack_network(tensors: Tensors, model: Model) -> Network:
    """Copy what ``network_tensors`` named into a network of its own; other names are passed over.

    Raises:
        InputError: a tensor is absent, surplus under its prefix, or of another shape.
    """
    return Network(
        params=unpack(tensors, PARAMS, model.params.layout),
        buffers=unpack(tensors, BUFFERS, model.buffers.layout),
    )


def downlink(state: ServerState, _client_id: str) -> Payload:
    """Every client gets the server's whole state."""
    return Payload(round_id=state.round_id + 1, tensors=state.tensors)


def client_init(model: Model) -> ClientState:
    """All of the bundle's values, under prefixed names."""
    return ClientState(round_id=0, tensors=network_tensors(model.network))


def client_model(model: Model, state: ClientState) -> Network:
    """The network in a client's state that holds all of the model's tensors, a copy.

    Raises:
        InputError: a tensor is absent, surplus, or of another shape.
    """
    return unpack_network(state.tensors, model)


def scored(early: Evaluation | None, network: Network, tools: ClientTools) -> Evaluation:
    """The scores of a trained model, or those from before with its own as ``after_fit``."""
    if early is None:
        return tools.evaluate(network)
    after = tools.statistics(network)
    return early if after is None else replace(early, more={**early.more, AFTER_FIT: after})


def ordered(updates: Updates) -> Iterator[Update]:
    """Updates by ascending client_id; a list is sorted, a lazy sequence must be.

    Raises:
        InputError: two updates of one client, or a lazy sequence out of order.
    """
    if isinstance(updates, Sequence):
        updates = sorted(updates, key=lambda update: update.client_id)
    previous: Update | None = None
    for update in updates:
        if previous is not None and previous.client_id >= update.client_id:
            raise InputError(
                f"updates: expected ascending client ids, got '{update.client_id}' "
                f"after '{previous.client_id}'"
            )
        previous = update
        yield update


def _ignore(_position: int, _update: Update) -> None:
    return None


def combine_updates(  # noqa: PLR0913 - what is combined of whom, how, and who looks on
    updates: Updates,
    layout: Layout,
    aggregator: Aggregator,
    old: Tensors,
    *,
    by_examples: bool = True,
    visit: Callable[[int, Update], None] = _ignore,
) -> TensorMap | None:
    """What the aggregator makes of the tensors of ``layout`` in all updates with examples.

    An update without examples is a term of weight 0, so that terms stand in the order of updates.

    Args:
        updates: of a round; they may hold more tensors.
        layout: names and shapes.
        aggregator: the rule.
        old: what the clients started from, by the same names; it may hold more.
        by_examples: clients count by their number of examples; otherwise alike.
        visit: called once with each update that counts and its position among all, by ascending
            client_id, however often the rule reads them.

    Returns:
        None if no update has examples.

    Raises:
        InputError: two updates of one client, or a tensor that is absent or of another shape.
    """
    vectors: dict[int, NDArray[np.float32]] = {}
    visited: set[int] = set()

    def read() -> Iterator[tuple[NDArray[Any], int]]:
        for position, update in enumerate(ordered(updates)):
            if not update.num_examples:
                yield _NOTHING, 0
                continue
            if position not in visited:
                visited.add(position)
                visit(position, update)
            vector = vectors.get(position)
            if vector is None:
                tensors = update.tensors
                if tensors.keys() != layout.shapes.keys():
                    tensors = {n: tensors[n] for n in layout.shapes if n in tensors}
                vector = vector_of(tensors, layout)
                whole = sum(value.nbytes for value in update.tensors.values())  # a view holds it
                if whole * len(updates) <= _HELD_BYTES:
                    vectors[position] = vector
            yield vector, update.num_examples if by_examples else 1

    before = TensorMap.pack({name: old[name] for name in layout.shapes}, layout).buffer
    combined = aggregator.combine(before, TermsReader(read, len(updates)))
    return None if combined is None else TensorMap(layout, combined)


def client_key(client_id: str) -> int:
    """Eight bytes that stand for a client in a server's state; two hardly ever have the same."""
    digest = hashlib.sha256(client_id.encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)
