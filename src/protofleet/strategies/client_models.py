"""The last model of every client, as a server's state keeps them where each gets one of its own.

| name in the state | shape | dtype |
|---|---|---|
| ``client/<id>`` | (Σ,) | float32 |

One vector a client, the shared parameters in the model's order: Σ floats for each that has ever
delivered. Of a round only the deliverers' are new; all others are the former state's very arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.common import client_key, ordered
from protofleet.strategies.types import ServerState, Update, Updates
from protofleet.tensors import Layout, Model, TensorMap, Tensors

_PREFIX = "client/"
OWN = "own/"
"""Prefix of a client's parameters in an update. They are no ``params/``: no payload brings them
back, so a codec has nothing that it could send differences to, or make up for."""
OTHERS = "others"
"""Name of other clients' models in a payload, ``(m, Σ)``."""
SEED = "seed"
"""Name in the server's state of what its choices are drawn with, ``() int64``."""

Vector = NDArray[np.float32]
"""A client's parameters, ``(Σ,)``."""


def models_of(tensors: Tensors) -> dict[str, Vector]:
    """The vectors in a server's state by client id, ascending."""
    names = sorted(name for name in tensors if name.startswith(_PREFIX))
    return {name.removeprefix(_PREFIX): tensors[name] for name in names}


def kept_models(models: dict[str, Vector]) -> dict[str, Vector]:
    """The vectors under the names that they have in a server's state."""
    return {_PREFIX + client_id: model for client_id, model in models.items()}


def _ignore(_update: Update) -> None:
    return None


def with_delivered(
    models: dict[str, Vector],
    updates: Updates,
    layout: Layout,
    visit: Callable[[Update], None] = _ignore,
) -> dict[str, Vector]:
    """The models with those of a round's updates with examples in their place, ascending.

    Args:
        models: from ``models_of``.
        updates: of a round; read once. They may hold more tensors.
        layout: prefixed names and shapes of a model's parameters.
        visit: called with each update that has examples, by ascending client_id.

    Returns:
        ``models`` itself where no update has examples.

    Raises:
        InputError: two updates of one client, or a tensor that is absent or of another shape.
    """
    delivered: dict[str, Vector] = {}
    for update in ordered(updates):
        if update.num_examples:
            # Packing copies: an update is a view into a file that is not to stay in memory.
            tensors = {n: update.tensors[n] for n in layout.shapes if n in update.tensors}
            visit(update)
            delivered[update.client_id] = TensorMap.pack(tensors, layout).buffer
    return dict(sorted({**models, **delivered}.items())) if delivered else models


def no_models(_model: Model, rng: np.random.Generator) -> ServerState:
    """Nobody has delivered; choices follow from a seed."""
    seed = np.array(rng.integers(2**62), np.int64)
    return ServerState(round_id=0, tensors={SEED: seed})


def shuffled_others(state: ServerState, client_id: str) -> tuple[list[str], np.random.Generator]:
    """Ids of all other clients with a model, in an order that is drawn for this client and round.

    Returns:
        The ids, and the generator to go on with.
    """
    others = [name for name in models_of(state.tensors) if name != client_id]
    key = client_key(client_id) % 2**64
    rng = np.random.default_rng([int(state.tensors[SEED]), state.round_id, key])
    return [others[place] for place in rng.permutation(len(others))], rng


def stacked(models: Mapping[str, Vector], chosen: Sequence[str], size: int) -> NDArray[np.float32]:
    """The chosen clients' models, ``(m, Σ)``."""
    rows = [models[name] for name in chosen]
    return np.stack(rows) if rows else np.zeros((0, size), np.float32)
