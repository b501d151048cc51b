"""Bytes of a round of one strategy: of the second of two real rounds with the bundle's model.

Run as ``python -m protofleet.benchmarks.device.traffic REQUEST``, a ``TrafficRequest`` as JSON;
writes a line of JSON for each codec. The first round differs from all others in some strategies,
and what a codec sends is a difference from what came before.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from protofleet.benchmarks.device.child import say
from protofleet.benchmarks.device.request import device_data
from protofleet.bundle import Bundle
from protofleet.coordinator.server_tools import make_server_tools
from protofleet.datasets import DeviceData
from protofleet.edge import LocalData
from protofleet.edge.join import open_learner
from protofleet.edge.training import Learner
from protofleet.errors import InputError, ProtofleetError
from protofleet.strategies.randomness import server_rng
from protofleet.strategies.types import ClientState, Payload, ServerState, Strategy, Update
from protofleet.strategies.updates import encode_update, initial_tensors, references_of
from protofleet.tensors import blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec

_CLIENT = "bench"
_DOWN: Mapping[codecs.Kind, codecs.Kind] = {"topk": "int4"}
"""Of payloads, where it is not that of updates: a federation file takes no others."""


class TrafficRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's work.

    Attributes:
        bundle, digest: which bundle, as in ``Request``.
        strategy: by name.
        seed: of the federation.
        data: ``.npz`` file of examples; empty: random ones.
        examples: how many to train on, at most.
    """

    bundle: str
    digest: str
    strategy: str
    seed: int
    data: str
    examples: int


def main(text: str) -> None:
    """Write what the strategy of ``text`` sends, or why the bundle cannot run it."""
    request = msgspec.json.decode(text, type=TrafficRequest)
    bundle = Bundle.open(Path(request.bundle))
    if bundle.digest != request.digest:
        raise InputError(f"bundle '{request.bundle}': has changed since the measuring began")
    try:
        _measure(request, bundle)
    except ProtofleetError as error:
        say(traffic={"strategy": request.strategy, "codec": codecs.RAW, "reason": str(error)})


def _measure(request: TrafficRequest, bundle: Bundle) -> None:
    declared = bundle.manifest.strategy
    settings = declared.settings if request.strategy == declared.name else {}
    data = device_data(request.data, bundle.manifest, seed=request.seed, examples=request.examples)
    learner = open_learner(
        bundle, LocalData(own=_first(data, request.examples)), threads=1, device_id=_CLIENT
    )
    strategy = learner.strategy(request.strategy, settings)
    make_tools = make_server_tools(bundle, strategy, seed=request.seed)
    server = strategy.server_init(learner.model, server_rng(request.seed, 0))
    before, state, update = _round(strategy, learner, server, None, request.seed)
    server = strategy.aggregate(server, [update], make_tools(1))
    learner.meter.take()
    payload, _, update = _round(strategy, learner, server, state, request.seed)
    costs, model = learner.meter.take(), learner.model
    known = {**initial_tensors(model), **before.tensors}
    references = references_of(model, payload.tensors)
    # A second payload names what it refers to, as the coordinator's does.
    base = hashlib.sha256(blobs.encode(before.tensors)).hexdigest()
    for upwards in map(Codec.of, codecs.NAMES):
        downwards = replace(upwards, kind=_DOWN.get(upwards.kind, upwards.kind))
        down = codecs.encode(payload.tensors, known, downwards, base=base)
        up = encode_update(update, costs, references, upwards, {})
        say(
            traffic={
                "strategy": request.strategy,
                "codec": _name(upwards, downwards),
                "down_bytes": len(down.blob),
                "up_bytes": len(up.blob),
            }
        )


def _name(up: Codec, down: Codec) -> str:
    """As experiments call a pair: the update's / the payload's; compression is that of both."""
    return up.name if up == down else f"{up.kind} / {down.name}"


def _round(
    strategy: Strategy,
    learner: Learner,
    server: ServerState,
    state: ClientState | None,
    seed: int,
) -> tuple[Payload, ClientState, Update]:
    payload = strategy.downlink(server, _CLIENT)
    state, update = learner.train(strategy, state, payload, seed=seed, cancelled=threading.Event())
    if strategy.description.class_counts:
        counts = np.array(learner.class_counts(payload.round_id))
        update = replace(update, class_counts=counts)
    return payload, state, update


def _first(data: DeviceData, most: int) -> DeviceData:
    """So many of the training part: enough for a real difference."""
    kept: dict[str, Any] = {"x_train": data.x_train[:most], "y_train": data.y_train[:most]}
    if data.boxes_train is not None:
        kept["boxes_train"] = data.boxes_train[:most]
    return replace(data, **kept)


if __name__ == "__main__":
    main(sys.argv[1])
