"""What a client keeps that has a personal model beside the shared one.

| model | names in the client's state |
|---|---|
| personal | ``params/<name>``, ``state/<name>`` |
| shared, as far as the next round needs it | ``shared/params/<name>``, ``shared/state/<name>`` |
"""

from __future__ import annotations

from protofleet.strategies.averaging import SharedTraining
from protofleet.strategies.common import PARAMS, network_tensors, prefixed
from protofleet.strategies.types import ClientState
from protofleet.tensors import Network

_SHARED = "shared/"


def shared_state(state: ClientState) -> ClientState:
    """The shared model's half of a client's state; before the first round there is one model."""
    shared = {
        name.removeprefix(_SHARED): value
        for name, value in state.tensors.items()
        if name.startswith(_SHARED)
    }
    return ClientState(round_id=state.round_id, tensors={**state.tensors, **shared})


def both_models(settings: SharedTraining, personal: Network, shared: ClientState) -> ClientState:
    """The personal model, and what the next round needs of the shared one.

    Args:
        settings: with ``local_init`` the shared parameters are needed, else its buffers alone.
        personal: the personal model.
        shared: from ``averaging.finish_round``.
    """
    needed = {
        name: value
        for name, value in shared.tensors.items()
        if settings.local_init is not None or not name.startswith(PARAMS)
    }
    tensors = {**network_tensors(personal), **prefixed(_SHARED, needed)}
    return ClientState(round_id=shared.round_id, tensors=tensors)
