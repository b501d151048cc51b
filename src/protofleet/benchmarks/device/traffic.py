"""Bytes of a round of one strategy: of the second of two real rounds with the bundle's model.

Run as ``python -m protofleet.benchmarks.device.traffic REQUEST``, a ``TrafficRequest`` as JSON;
writes a line of JSON for each codec. The first round differs from all others in some strategies,
and what a codec sends is a difference from what came before.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from protofleet.benchmarks.device.child import say
from protofleet.benchmarks.device.request import device_data
from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData
from protofleet.edge import LocalData
from protofleet.edge.join import open_learner
from protofleet.edge.learning.training import Learner
from protofleet.errors import InputError, ProtofleetError
from protofleet.federation.client import (
    ClientMemory,
    ReceivedPayload,
    RoundConfig,
    TrainedRound,
    open_payload,
    train_round,
)
from protofleet.federation.coding import (
    encode_payload,
    encode_update,
    payload_baseline,
    read_update,
    reference_of,
    update_baseline,
)
from protofleet.federation.randomness import server_rng
from protofleet.federation.server_tools import make_server_tools
from protofleet.strategies.strategy import Strategy
from protofleet.tensors import blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import CODECS, Codec

_CLIENT = "bench"


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
    bundle = Bundle.open(Path(request.bundle), any_signer=True)
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
    raw = blobs.encode(strategy.downlink(server, _CLIENT).tensors)
    order = RoundConfig(round_id=1, seed=request.seed)
    first = _train(learner, strategy, ClientMemory(), open_payload(raw, order, strategy.payload))
    counts = learner.class_counts(1) if strategy.description.class_counts else None
    server = strategy.aggregate(server, [read_update(first.blob, counts)], make_tools(1))
    learner.meter.take()
    payload = strategy.downlink(server, _CLIENT).tensors
    order = RoundConfig(round_id=2, seed=request.seed)
    received = open_payload(blobs.encode(payload), order, strategy.payload)
    second = _train(learner, strategy, ClientMemory(state=first.state), received)
    before, _ = blobs.decode(raw, max_bytes=len(raw))
    for upwards in map(Codec.of, codecs.NAMES):
        downwards = _downwards(upwards)
        baseline = payload_baseline(learner.model, before)
        down = encode_payload(payload, downwards, reference_of(raw), baseline)
        baseline = update_baseline(learner.model, payload)
        up = encode_update(second.update, second.costs, baseline, upwards, {})
        say(
            traffic={
                "strategy": request.strategy,
                "codec": _name(upwards, downwards),
                "down_bytes": len(down.blob),
                "up_bytes": len(up.blob),
            }
        )


def _train(
    learner: Learner, strategy: Strategy, memory: ClientMemory, received: ReceivedPayload
) -> TrainedRound:
    return train_round(learner, strategy, memory, received, costs=lambda _: learner.meter.take())


def _name(up: Codec, down: Codec) -> str:
    """As experiments call a pair: the update's / the payload's; compression is that of both."""
    return up.name if up == down else f"{up.name.removesuffix(codecs.ZLIB)} / {down.name}"


def _downwards(up: Codec) -> Codec:
    """The same, or what suits beside one that payloads cannot have."""
    fits = up.tensors is None or up.tensors.for_payloads
    return up if fits else replace(up, tensors=CODECS["int4"]())


def _first(data: DeviceData, most: int) -> DeviceData:
    """So many of the training part: enough for a real difference."""
    kept: dict[str, Any] = {"x_train": data.x_train[:most], "y_train": data.y_train[:most]}
    if data.boxes_train is not None:
        kept["boxes_train"] = data.boxes_train[:most]
    return replace(data, **kept)


if __name__ == "__main__":
    main(sys.argv[1])
