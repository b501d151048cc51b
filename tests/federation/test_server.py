"""The server's half of a round: what it admits, how a round is closed and when it is scored."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from altered import altered
from packed import pack_update

from protofleet.errors import ProtofleetError, RefusedError
from protofleet.federation.coding import encode_update, update_baseline
from protofleet.federation.records import Costs, EvaluationRecord, UpdateRecord
from protofleet.federation.server import Server
from protofleet.federation.settings import EvaluationSettings
from protofleet.strategies.types import ServerState, Update
from protofleet.tensors import blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec, Coding


@pytest.fixture
def server(tiny):
    return Server.of(tiny.plan)


@pytest.fixture
def decoded(monkeypatch):
    """Codings of the blobs that were decoded."""
    seen, decode = [], codecs.decode

    def spy(blob, references, coding, **options):
        seen.append(coding.codec)
        return decode(blob, references, coding, **options)

    monkeypatch.setattr(codecs, "decode", spy)
    return seen


def _update(tiny, client_id="a", round_id=1, scale=1.0):
    tensors = {name: scale * value for name, value in tiny.tensors().items()}
    return Update(client_id=client_id, round_id=round_id, num_examples=3, tensors=tensors)


def _admit(server, blob, coding=None, baseline=None, class_counts=None, **claims):
    return server.admit(
        blob,
        coding or Coding(),
        baseline=baseline or {},
        client_id="a",
        round_id=1,
        class_counts=class_counts,
        **{"num_examples": None, "bounds": {}, **claims},
    )


def test_a_raw_update_is_decoded_once_and_kept_as_it_came(tiny, server, decoded):
    blob = pack_update(_update(tiny), Costs())
    admitted = _admit(server, blob)
    assert decoded == ["raw"]
    assert admitted.to_raw(max_bytes=len(blob)) == blob
    with pytest.raises(RefusedError, match="allowed"):
        admitted.to_raw(max_bytes=len(blob) - 1)
    assert admitted.record.num_examples == 3


@pytest.mark.parametrize("kind", ["fp16", "int8", "topk"])
def test_a_coded_update_is_decoded_once_and_kept_raw(tiny, server, decoded, kind):
    codec = Codec.of(kind + "+zlib")
    payload = tiny.plan.strategy.downlink(tiny.plan.server_init(), "a").tensors
    baseline = update_baseline(tiny.plan.model, payload)
    coded = encode_update(_update(tiny), Costs(), baseline, codec, {})
    admitted = _admit(server, coded.blob, coded.coding("ab" * 32), baseline)
    assert decoded == [codec.name]
    again, _ = blobs.decode(admitted.to_raw(max_bytes=1 << 20), max_bytes=1 << 20)
    for name, value in admitted.update.tensors.items():
        np.testing.assert_array_equal(again[name], value)


def test_what_breaks_a_rule_is_refused_after_one_decoding(tiny, server, decoded):
    broken = _update(tiny)
    broken.tensors["params/b"][0] = np.inf
    with pytest.raises(RefusedError) as caught:
        _admit(server, pack_update(broken, Costs()))
    assert (caught.value.rule, decoded) == ("finite", ["raw"])


@pytest.mark.parametrize(("needed", "seen"), [(True, [1, 0, 2]), (False, None)])
def test_an_update_carries_registered_counts_only_where_they_are_needed(tiny, server, needed, seen):
    server = replace(server, expected=replace(server.expected, class_counts=needed))
    blob = pack_update(_update(tiny), Costs())
    counts = _admit(server, blob, class_counts=(1, 0, 2)).update.class_counts
    assert (None if counts is None else counts.tolist()) == seen


def _record(client_id="a", own=((2, 0, 0), (0, 2, 0), (0, 0, 2))):
    evaluation = EvaluationRecord(own=own)
    return UpdateRecord(client_id=client_id, round_id=1, num_examples=3, evaluation=evaluation)


def _observed(server, **evaluation):
    """A server that is scored perfectly, and the rounds in which it was; three rounds in all."""
    config = msgspec.structs.replace(
        server.plan.config, rounds=3, evaluation=EvaluationSettings(**evaluation)
    )
    scored = []

    def scorer(state: ServerState):
        scored.append(state.round_id)
        return np.eye(3, dtype=np.int64)

    return replace(server, plan=replace(server.plan, config=config), scorer=scorer), scored


def _with_strategy(server, **changes):
    return replace(
        server, plan=replace(server.plan, strategy=altered(server.plan.strategy, **changes))
    )


def _close(server, state, round_id, updates, records, *, final):
    """As the coordinator and the engine without a broker do."""
    admitted = [SimpleNamespace(record=record, norms={}) for record in records]
    state = server.aggregate(state, round_id, updates, admitted, final=final).state
    return state, server.score(state, records, final=final)


def test_a_closed_round_is_aggregated_and_its_clients_are_scored(tiny, server):
    start = tiny.plan.server_init()
    updates = [_update(tiny, "a"), _update(tiny, "b", scale=3.0)]
    state, scores = _close(server, start, 1, updates, [_record("a"), _record("b")], final=False)
    expected = tiny.plan.strategy.aggregate(start, updates, server.tools(1))
    assert state.round_id == 1
    for name, value in expected.tensors.items():
        np.testing.assert_array_equal(state.tensors[name], value)
    np.testing.assert_array_equal(state.tensors["params/b"], np.full(3, 2.0, np.float32))
    assert scores.personalisation["macro_f1"].mean == 1.0
    assert scores.global_ is None


def test_after_the_final_fit_only_the_clients_are_scored(tiny, server):
    """The tensors stay the very same: what the clients have fitted is theirs."""

    def aggregate(*_):
        raise AssertionError("nothing is aggregated")

    server, scored = _observed(_with_strategy(server, aggregate=aggregate))
    before = replace(tiny.plan.server_init(), round_id=3)
    state, scores = _close(server, before, 4, [_update(tiny, round_id=4)], [_record()], final=True)
    assert state.round_id == 4
    assert state.tensors is before.tensors
    assert scored == []
    assert (scores.personalisation["accuracy"].mean, scores.global_) == (1.0, None)


def test_a_strategy_that_returns_another_round_s_state_is_named(tiny, server):
    server = _with_strategy(server, aggregate=lambda state, _updates, _tools: state)
    with pytest.raises(ProtofleetError, match="'fedavg': expected the state of round 1"):
        _close(server, tiny.plan.server_init(), 1, [_update(tiny)], [_record()], final=False)


@pytest.mark.parametrize(("every", "rounds"), [(1, [1, 2, 3]), (2, [2, 3]), (9, [3])])
def test_the_server_s_model_is_scored_every_so_many_rounds_and_after_the_last(
    tiny, server, every, rounds
):
    server, scored = _observed(server, every=every)
    state, found = tiny.plan.server_init(), []
    for round_id in (1, 2, 3):
        updates = [_update(tiny, round_id=round_id)]
        state, scores = _close(server, state, round_id, updates, [_record()], final=False)
        found += [round_id] if scores.global_ is not None else []
    assert scored == found == rounds
