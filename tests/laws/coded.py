"""A federation whose tensors travel coded, without wire: what the laws of codecs are checked on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from protofleet.federation.coding import (
    decode_update,
    encode_update,
    payload_baseline,
    update_baseline,
)
from protofleet.federation.records import Costs
from protofleet.strategies.types import ClientState, Payload, ServerState, Update
from protofleet.tensors import Tensors
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec

_LIMIT = 1 << 24


@dataclasses.dataclass
class CodedClient:
    """What one client and the server know of each other."""

    state: ClientState
    known: Tensors
    residual: Tensors


class CodedRounds:
    """Rounds of a strategy in which every payload and every update is encoded and decoded.

    Args:
        strategy, case: under test.
        up, down: codecs.
    """

    def __init__(self, strategy: Any, case: Any, *, up: Codec, down: Codec) -> None:
        self._strategy, self._case, self._up, self._down = strategy, case, up, down
        self._kept: dict[str, CodedClient] = {}

    def round(
        self, server: ServerState, examples: Mapping[str, Any]
    ) -> tuple[list[Update], list[Update]]:
        """The clients' true updates, and what the server gets."""
        pairs = [self._client(server, name, rows) for name, rows in examples.items()]
        true, got = zip(*pairs, strict=True)
        return list(true), list(got)

    def _client(self, server: ServerState, name: str, rows: Any) -> tuple[Update, Update]:
        fresh = CodedClient(self._strategy.client_init(self._case.model), {}, {})
        kept = self._kept.get(name, fresh)
        payload = self._received(self._strategy.downlink(server, name), kept)
        tools, _ = self._case.make_tools(name, rows)
        state, update = self._strategy.client_update(kept.state, payload, tools)
        baseline = update_baseline(self._case.model, payload.tensors)
        encoded = encode_update(update, Costs(), baseline, self._up, kept.residual)
        coding = encoded.coding("")
        got = decode_update(encoded.blob, coding, baseline, max_bytes=_LIMIT).update
        self._kept[name] = CodedClient(state, payload.tensors, encoded.residual)
        return update, self._case.update(got, tools)

    def _received(self, payload: Payload, kept: CodedClient) -> Payload:
        known = payload_baseline(self._case.model, kept.known)
        encoded = codecs.encode(payload.tensors, known, self._down)
        tensors, _ = codecs.decode(encoded.blob, known, encoded.coding(""), max_bytes=_LIMIT)
        assert_same_form(tensors, payload.tensors)
        return dataclasses.replace(payload, tensors=tensors)


def assert_same_form(found: Tensors, expected: Tensors) -> None:
    """Names, shapes and dtypes are equal, numbers finite, and whatever is no float exact."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype), name
        if value.dtype != np.float32:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert np.isfinite(found[name]).all(), name
