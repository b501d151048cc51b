"""Laws that every strategy keeps."""

import dataclasses
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest
from altered import altered
from laws.cases import Case, case_of
from laws.coded import CodedRounds, assert_same_form
from toy_model import SGD, new_rng, server_tools

from protofleet.federation.outcomes.alone import split
from protofleet.strategies import DESCRIPTIONS, STRATEGIES, build
from protofleet.strategies.aggregation import AGGREGATORS, MEAN, Aggregator
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.bounds import bounds_of
from protofleet.strategies.common import CHANGE
from protofleet.strategies.privacy import Mechanism, PrivateStrategy
from protofleet.strategies.types import Evaluation
from protofleet.tensors import blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import CODECS, Codec

_EXAMPLES = {
    "a": [[2, 4], [1, 3]],
    "b": [[6, 0], [6, 2], [7, 4]],
    "c": [[0.1, 0.7]],
    "nobody": [],
}

pytestmark = pytest.mark.parametrize("name", sorted(STRATEGIES))


_EVERY_RULE = pytest.mark.parametrize(
    "rule", [build_rule(rule, {}) for rule in sorted(AGGREGATORS)], ids=sorted(AGGREGATORS)
)


class Federation:
    """A strategy, its model and its clients."""

    def __init__(self, name, case):
        self.case = case
        self.strategy = build(name, case.settings, case.model)
        self.server = self.strategy.server_init(case.model, new_rng())

    def client(self, client_id, *, state=None, server=None, examples=None):
        chosen = _EXAMPLES[client_id] if examples is None else examples
        tools, _ = self.case.make_tools(client_id, chosen)
        state = self.strategy.client_init(self.case.model) if state is None else state
        payload = self.strategy.downlink(server or self.server, client_id)
        state, update = self.strategy.client_update(state, payload, tools)
        return state, self.case.update(update, tools)

    def updates(self, clients):
        return [self.client(client_id)[1] for client_id in clients]

    def aggregate(self, updates, server=None, aggregator=MEAN):
        tools = dataclasses.replace(self.case.server_tools(), aggregator=aggregator)
        return self.strategy.aggregate(server or self.server, updates, tools)


@pytest.fixture
def federation(name, request, model, make_tools):
    toy = Case(model=model, settings=SGD, make_tools=make_tools, server_tools=server_tools)
    case = case_of(name, make_tools, toy)
    law = request.function.__name__.removeprefix("test_")
    if law in case.exempt:
        pytest.skip(f"{name}: {case.exempt[law]}")
    return Federation(name, case)


def assert_same(one, two):
    assert one.round_id == two.round_id
    assert one.tensors.keys() == two.tensors.keys()
    for key, value in one.tensors.items():
        np.testing.assert_array_equal(value, two.tensors[key], err_msg=key)


def through_a_file(state):
    """Saved and loaded as the device's store and the ledger do."""
    tensors, _ = blobs.decode(blobs.encode(state.tensors, {}), max_bytes=1 << 20)
    return dataclasses.replace(state, tensors=tensors)


@_EVERY_RULE
def test_one_client_gets_its_own_params_back(federation, rule):
    (update,) = federation.updates(["b"])
    after = federation.aggregate([update], aggregator=rule)
    shared = [key for key in after.tensors if key in update.tensors and key.startswith("params/")]
    assert shared
    for key in shared:
        np.testing.assert_array_equal(after.tensors[key], update.tensors[key])


def test_every_number_among_the_settings_has_bounds(federation):
    kind = type(federation.strategy.settings)
    numbers = {
        name
        for name, hint in get_type_hints(kind).items()
        if {int, float} & {hint, *get_args(hint)} and get_origin(hint) is not tuple
    }
    assert numbers - bounds_of(kind).keys() == set()


def test_payloads_and_updates_hold_what_the_strategy_declares(federation):
    """All of an update in round 1, and never anything else."""
    uplink = federation.strategy.uplink
    states, server = {}, federation.server
    for round_id in (1, 2, 3):
        updates = []
        for client_id in _EXAMPLES:
            state = states.get(client_id)
            payload = federation.strategy.downlink(server, client_id)
            federation.strategy.payload.check(payload.tensors)
            states[client_id], update = federation.client(client_id, state=state, server=server)
            uplink.check(update.tensors)
            if round_id == 1:
                assert update.tensors.keys() == {*uplink.required, *uplink.optional}
            updates.append(update)
        server = federation.aggregate(updates, server)


@_EVERY_RULE
def test_permuted_updates_change_no_bit(federation, rule):
    updates = federation.updates(["a", "b", "c"])
    expected = federation.aggregate(updates, aggregator=rule)
    for order in ((2, 1, 0), (1, 2, 0), (2, 0, 1)):
        permuted = [updates[i] for i in order]
        assert_same(federation.aggregate(permuted, aggregator=rule), expected)


@_EVERY_RULE
def test_a_client_without_examples_has_no_effect(federation, rule):
    updates = federation.updates(["a", "b", "nobody"])
    assert updates[2].num_examples == 0
    assert np.isnan(updates[2].loss)
    with_it, without = (federation.aggregate(u, aggregator=rule) for u in (updates, updates[:2]))
    assert_same(with_it, without)
    alone = federation.aggregate(updates[2:], aggregator=rule)
    assert alone.round_id == 1
    for key, value in federation.server.tensors.items():
        np.testing.assert_array_equal(alone.tensors[key], value)


def test_state_survives_save_and_load(federation):
    state, update = federation.client("a")
    server = federation.aggregate([update])
    results = [
        federation.client("a", state=kept, server=sent, examples=[[5, 5]])
        for kept, sent in ((state, server), (through_a_file(state), through_a_file(server)))
    ]
    for one, two in zip(*results, strict=True):
        assert_same(one, two)
    models = [federation.strategy.server_model(s) for s in (server, through_a_file(server))]
    if models[0] is None:
        assert models[1] is None
        return
    one, two = models
    np.testing.assert_array_equal(one.params.buffer, two.params.buffer)
    np.testing.assert_array_equal(one.buffers.buffer, two.buffers.buffer)


def test_a_model_is_the_same_with_a_training_alone_beside_its_state(federation):
    """Which is kept among the state's tensors, and opened with them (``outcomes.alone``)."""
    state, _ = federation.client("b")
    alone = {f"alone/{name}": value + 1 for name, value in state.tensors.items()}
    beside = dataclasses.replace(state, tensors={**state.tensors, **alone})
    one, two = (federation.strategy.client_model(each) for each in (state, beside))
    assert one.params.buffer.tobytes() == two.params.buffer.tobytes()
    one, two = (federation.strategy.client_score(each) for each in (state, beside))
    assert (one is None) == (two is None)
    own, kept = split(beside)
    assert_same(own, state)
    assert kept.tensors.keys() == state.tensors.keys()


@pytest.mark.parametrize("score_at", ["start", "end"])
def test_an_owner_is_told_the_score_of_the_model_that_the_device_keeps(federation, name, score_at):
    """Whatever moment the paper scores, ``Evaluation.kept`` is of what the device infers with."""
    case, strategy = federation.case, federation.strategy
    if hasattr(strategy.settings, "score_at"):
        strategy = build(name, {**case.settings, "score_at": score_at}, case.model)
    state, server = strategy.client_init(case.model), federation.server
    for _ in range(3):
        tools, _ = case.make_tools("b", _EXAMPLES["b"])
        tools = dataclasses.replace(
            tools,
            evaluate=lambda network, **_: Evaluation(own=network.params.buffer.copy()),
            statistics=lambda network, **_: network.params.buffer.copy(),
        )
        state, update = strategy.client_update(state, strategy.downlink(server, "b"), tools)
        kept = strategy.client_model(state).params.buffer
        np.testing.assert_array_equal(update.evaluation.kept, kept)
        server = federation.aggregate([case.update(update, tools)], server)


def test_the_same_rng_gives_the_same_bits(federation):
    once, again = (federation.updates(["b"]) for _ in range(2))
    assert_same(once[0], again[0])


class Lazy:
    """Updates as the ledger has them: read when the iteration reaches them, in order."""

    def __init__(self, updates):
        self.updates, self.reads = updates, 0

    def __len__(self):
        return len(self.updates)

    def __iter__(self):
        for update in self.updates:
            self.reads += 1
            yield update


def test_an_incremental_aggregator_reads_updates_once_and_in_order(federation):
    """Once for the parameters, and once for the changes of what clients keep (SCAFFOLD)."""
    updates = federation.updates(["a", "b"])
    lazy = Lazy(updates)
    assert_same(federation.aggregate(lazy), federation.aggregate(updates))
    changes = any(name.startswith(CHANGE) for name in federation.strategy.uplink.required)
    assert lazy.reads == (4 if changes else 2)


def _twice(old, terms):
    for _ in terms:
        pass
    return MEAN.combine(old, terms)


def test_a_strategy_takes_the_aggregator_that_it_says_it_takes(federation):
    """A mean that reads its terms twice gives the mean's state; one that ignores them is seen."""
    updates = federation.updates(["a", "b", "c"])
    mean = federation.aggregate(updates)
    twice = Aggregator(name="twice", incremental=False, combine=_twice)
    assert_same(federation.aggregate(Lazy(updates), aggregator=twice), mean)

    called = []

    def ones(old, terms):
        called.append(len(list(terms)))
        return np.ones(old.size, np.float32)

    federation.aggregate(updates, aggregator=dataclasses.replace(twice, combine=ones))
    assert bool(called) == federation.strategy.description.takes_rule


def test_no_input_array_is_written(federation):
    """The store and the ledger hand out views of files: read-only arrays must do."""
    state, update = federation.client("a")
    server = federation.aggregate([update])
    for tensors in (state.tensors, server.tensors, update.tensors):
        for value in tensors.values():
            value.flags.writeable = False
    _, later = federation.client("a", state=state, server=server)
    federation.aggregate([update], server)
    federation.strategy.client_model(state)
    federation.strategy.server_model(server)
    assert later.round_id == 2


_NEEDS_EACH_UPDATE = {
    "apple",
    "cdfl",
    "fedamp",
    "fedclar",
    "feddyn",
    "fedfomo",
    "fedpac",
    "fedsub",
    "local",
    "scaffold",
}
"""Models of their own, images, clusters, the number of clients, heads of their own, layers of
clusters, nothing, and control variates: no sum of differences alone."""


def _released(federation, updates, noise):
    """The one update that a private strategy hands to its server half, and the state after it."""
    handed = []

    def aggregate(state, given, tools):
        handed.extend(given)
        return federation.strategy.aggregate(state, given, tools)

    strategy = PrivateStrategy(
        altered(federation.strategy, aggregate=aggregate),
        federation.strategy.private,
        Mechanism(noise_multiplier=0.01, clip=0.5, devices=2),
    )
    tools = dataclasses.replace(federation.case.server_tools(), noise=noise)
    state = strategy.aggregate(federation.server, updates, tools)
    (one,) = handed
    return one, state


def test_with_noise_a_client_moves_the_sum_by_the_clip_at_most(federation, name):
    """And the strategy takes the one update that stands for all, as those of its clients."""
    form = federation.strategy.private
    assert (form is None) == (name in _NEEDS_EACH_UPDATE)
    if form is None:
        return
    updates = federation.updates(["a", "b", "nobody"])
    with_it, state = _released(federation, updates, np.zeros)
    without, _ = _released(federation, [updates[0], updates[2]], np.zeros)
    federation.strategy.uplink.check(with_it.tensors)
    assert state.round_id == 1
    names = [name for name in with_it.tensors if name not in form.by_class]
    moved = [with_it.tensors[name] - without.tensors[name].astype(np.float64) for name in names]
    norm = 2 * np.sqrt(sum(np.sum(np.square(one)) for one in moved))
    assert norm <= 0.5 * (1 + 1e-5)
    assert names == [] or norm > 0


def test_with_noise_another_order_changes_no_bit_and_noise_reaches_every_number(federation):
    if federation.strategy.private is None:
        return
    updates = federation.updates(["a", "b", "c"])
    plain, _ = _released(federation, updates, np.zeros)
    noised, state = _released(federation, updates, np.ones)
    again, same = _released(federation, updates[::-1], np.ones)
    assert_same(state, same)
    for key, value in plain.tensors.items():
        assert (noised.tensors[key] != value).all()
        np.testing.assert_array_equal(noised.tensors[key], again.tensors[key])


@pytest.mark.parametrize("kind", CODECS)
def test_coded_tensors_keep_their_form_and_the_strategys_rules(federation, kind, monkeypatch):
    """Three rounds with all tensors coded, however small; what is no float travels exactly."""
    monkeypatch.setattr(codecs, "SMALL", 1)
    up = Codec.of(kind + "+zlib", keep=0.5)
    down = Codec.of(("int4" if kind == "topk" else kind) + "+zlib")
    rounds = CodedRounds(federation.strategy, federation.case, up=up, down=down)
    server = federation.server
    for _ in range(3):
        true, got = rounds.round(server, _EXAMPLES)
        for one, other in zip(true, got, strict=True):
            assert_same_form(other.tensors, one.tensors)
            assert other.num_examples == one.num_examples
            federation.strategy.check(other)
        server = federation.aggregate(got, server)
    for name, value in server.tensors.items():
        assert np.isfinite(value).all(), name


def test_the_record_holds_its_description(federation, name):
    assert federation.strategy.description == DESCRIPTIONS[name]


def test_a_first_payload_leaves_what_a_client_carries_from_another_bundle(federation):
    """A client with no examples ends its first round with what it brought along."""
    strategy = federation.strategy
    trained, _ = federation.client("a")
    fresh = strategy.client_init(federation.case.model)
    assert strategy.carried <= fresh.tensors.keys()
    carried = {name: trained.tensors[name] for name in strategy.carried}
    moved = dataclasses.replace(fresh, tensors={**fresh.tensors, **carried})
    after, _ = federation.client("nobody", state=through_a_file(moved))
    for name, value in carried.items():
        np.testing.assert_array_equal(after.tensors[name], value, err_msg=name)


@pytest.mark.parametrize("count", [3, 5, 1])
def test_no_step_has_fewer_examples_than_the_programs_take(federation, count):
    """Normalising over the batch, they have no variance of one; two rounds of full training."""
    case, sizes = federation.case, []

    def make_tools(client_id, examples):
        tools, seen = case.make_tools(client_id, examples)
        watched = {
            name: _watching(grad_fn, sizes) for name, grad_fn in tools.training.grad_fns.items()
        }
        training = dataclasses.replace(tools.training, grad_fns=watched, min_batch=2)
        return dataclasses.replace(tools, training=training), seen

    settings = {**case.settings, "batch_size": 2}
    name = federation.strategy.description.name
    again = Federation(name, dataclasses.replace(case, settings=settings, make_tools=make_tools))
    examples = (_EXAMPLES["b"] + _EXAMPLES["a"])[:count]
    state, server = None, again.server
    for _ in range(2):
        state, update = again.client("b", state=state, server=server, examples=examples)
        server = again.aggregate([update], server)
    assert update.num_examples == count
    assert min(sizes, default=2) >= 2
    assert bool(sizes) == (count > 1)
    assert np.isnan(update.loss) == (count == 1)


def _watching(grad_fn, sizes):
    def watched(network, batch, rng):
        sizes.append(len(batch["y"]))
        return grad_fn(network, batch, rng)

    return watched


def test_a_weighted_mean_moves_with_its_updates(federation):
    """Who says so keeps nothing but the mean: clients that go half the way move it half the way."""
    if not federation.strategy.description.takes_late:
        pytest.skip("its server does more than a mean")
    server = federation.aggregate(federation.updates(["a", "b"]))
    before = federation.strategy.downlink(server, "a").tensors
    updates = federation.updates(["a", "b", "c"])
    halved = [
        dataclasses.replace(
            one,
            tensors={
                name: before[name] + np.float32(0.5) * (value - before[name])
                for name, value in one.tensors.items()
            },
        )
        for one in updates
    ]
    whole, half = (federation.aggregate(some, server) for some in (updates, halved))
    assert whole.tensors.keys() == server.tensors.keys() == before.keys()
    for name, old in server.tensors.items():
        expected = old + 0.5 * (whole.tensors[name] - old)
        np.testing.assert_allclose(half.tensors[name], expected, rtol=1e-5, err_msg=name)
