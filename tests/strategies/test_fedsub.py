"""FedSub: numbers worked out by hand, a brute-force oracle, hostile content, and real data."""

import dataclasses
import itertools

import numpy as np
import pytest
from oracles import fedsub as oracle
from oracles.clusters import davies_bouldin
from tiny_perceptron import HIDDEN, LAYERS, perceptron, with_programs
from toy_model import changed, new_rng, server_tools

from protofleet.errors import InputError, RefusedError
from protofleet.strategies import build
from protofleet.strategies.types import Update
from protofleet.tensors import Model, ModelLayer, TensorMap, blobs

_CHAIN = ("body.0", "body.2", "head")
_STILL = {"kind": "sgd", "lr": 0.0}
_X = np.array([[1, 0], [3, 0], [0, 2], [0, 4]], np.float32)
_Y = np.array([0, 0, 2, 2])


def _fleet(clients, classes, model, seed=0, width=2):
    """Random clients as the oracle takes them; client 0 owns nothing, the others some classes."""
    rng = np.random.default_rng(seed)
    units = {name: model.params[f"{name}.bias"].size for name in HIDDEN}
    counts = rng.integers(1, 9, (clients, classes)) * (rng.random((clients, classes)) < 0.6)
    counts[0] = 0
    return [
        {
            "tensors": {
                name: rng.normal(size=value.shape).astype(np.float32)
                for name, value in model.params.items()
            },
            "masks": {name: rng.random((classes, size)) < 0.7 for name, size in units.items()},
            "counts": counts[k],
            "accuracy": rng.random(classes).astype(np.float32),
            "prototypes": rng.normal(size=(classes, width)).astype(np.float32),
        }
        for k in range(clients)
    ]


def _updates(clients, *, variant="partial", leadership=False):
    layers = HIDDEN if variant == "partial" else _CHAIN
    updates = []
    for k, client in enumerate(clients):
        tensors = {
            f"params/{name}": value
            for name, value in client["tensors"].items()
            if name.startswith(layers)
        }
        for layer, mask in client["masks"].items():
            tensors[f"masks/{layer}"] = np.packbits(mask, axis=1)
        tensors["prototypes"] = client["prototypes"]
        if leadership:
            tensors["accuracy"] = client["accuracy"]
        update = Update(client_id=f"c{k:02d}", round_id=1, num_examples=1, tensors=tensors)
        updates.append(dataclasses.replace(update, class_counts=client["counts"]))
    return updates


def _aggregated(strategy, model, updates):
    state = strategy.server_init(model, new_rng())
    return strategy.aggregate(state, updates, server_tools())


def _down(strategy, state, client_id):
    return strategy.downlink(state, client_id).tensors


def _assert_as_the_oracle_says(clients, model, settings):
    variant = settings["variant"]
    strategy = build("fedsub", settings, model)
    leadership = settings["fusion"] == "leadership"
    state = _aggregated(strategy, model, _updates(clients, variant=variant, leadership=leadership))
    rules = {"mask": "inout", "literal_shares": False, "untouched": "keep", **settings}
    labels = state.tensors["clusters/labels"]
    chain = _CHAIN if variant == "full" else HIDDEN
    expected = oracle.fuse(clients, labels, chain, rules)
    for k, tensors in enumerate(expected):
        got = _down(strategy, state, f"c{k:02d}")
        assert got.keys() == {f"params/{name}" for name in tensors}
        for name, value in tensors.items():
            np.testing.assert_allclose(
                got[f"params/{name}"], value, rtol=2e-6, atol=1e-7, err_msg=f"{k} {name} {settings}"
            )


@pytest.mark.parametrize("fusion", ["overlap", "average", "leadership"])
@pytest.mark.parametrize("normalise", ["halve", "norm", "unit", "none"])
def test_every_variant_of_fusion_equals_the_equations_weight_by_weight(fusion, normalise):
    model = perceptron()
    clients = _fleet(5, 3, model)
    switches = itertools.product(("masked", "whole"), (False, True), ("keep", "zero"))
    for subnetworks, literal, untouched in switches:
        settings = {
            "fusion": fusion,
            "normalise": normalise,
            "subnetworks": subnetworks,
            "literal_shares": literal,
            "untouched": untouched,
            "variant": "full" if literal else "partial",
            "mask": "out" if untouched == "zero" else "inout",
        }
        _assert_as_the_oracle_says(clients, model, settings)


def test_blocks_of_rows_join_to_the_whole_tensor():
    """A weight of 20 x 300 is fused in two blocks of rows."""
    model = perceptron(inputs=2, hidden=(300, 20))
    clients = _fleet(4, 3, model, seed=1)
    settings = {"fusion": "average", "subnetworks": "masked", "normalise": "halve"}
    _assert_as_the_oracle_says(clients, model, {**settings, "variant": "partial"})


def _two_clients():
    """One input, two hidden units, two classes; a owns class 0, b both."""
    tensors = {
        "body.0.weight": np.array([[1], [2]], np.float32),
        "body.0.bias": np.array([4, 8], np.float32),
        "head.weight": np.ones((2, 2), np.float32),
        "head.bias": np.ones(2, np.float32),
    }
    params = TensorMap.pack(tensors)
    model = Model(
        params=params,
        buffers=TensorMap.pack({}),
        num_classes=2,
        input_shape=(2,),
        head=("head.weight", "head.bias"),
        layers=(LAYERS[0], ModelLayer(name="head", before="body.0", hidden=False)),
    )
    a = {
        "tensors": tensors,
        "masks": {"body.0": np.array([[True, False], [False, False]])},
        "counts": np.array([3, 0]),
        "accuracy": np.array([0.5, 0], np.float32),
        "prototypes": np.array([[1], [0]], np.float32),
    }
    b = {
        "tensors": {
            **tensors,
            "body.0.weight": np.array([[5], [6]], np.float32),
            "body.0.bias": np.array([0, 2], np.float32),
        },
        "masks": {"body.0": np.array([[True, True], [False, True]])},
        "counts": np.array([1, 2]),
        "accuracy": np.array([1, 1], np.float32),
        "prototypes": np.array([[2], [3]], np.float32),
    }
    return model, [a, b]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Class 0: unit 0 is active in both, 3/4 · 1 + 1/4 · 5 = 2. Class 1: b alone, unit 1, 6.
        # a gets (1 + 2)/2, and unit 1 stays, as it is active in none of a's classes.
        ({}, ([1.5, 2], [3.5, 6])),
        ({"normalise": "none"}, ([3, 2], [7, 12])),
        ({"untouched": "zero"}, ([1.5, 0], [3.5, 6])),
        # The mean of class 0's (2, 1/4 · 6 = 1.5) and of class 1's (0, 6).
        ({"fusion": "average"}, ([1, 3.75], [1, 3.75])),
        # Inactive weights as they are: (2, 3/4 · 2 + 1/4 · 6 = 3) and (5, 6).
        ({"fusion": "average", "subnetworks": "whole"}, ([3.5, 4.5], [3.5, 4.5])),
        # Class 0: 3 · 0.5 > 1 · 1, so a leads with (1, 0); class 1: b with (0, 6).
        ({"fusion": "leadership"}, ([0.5, 3], [0.5, 3])),
    ],
)
def test_two_clients_by_hand(settings, expected):
    model, clients = _two_clients()
    strategy = build("fedsub", settings, model)
    leadership = settings.get("fusion") == "leadership"
    state = _aggregated(strategy, model, _updates(clients, leadership=leadership))
    for client_id, numbers in zip(("c00", "c01"), expected, strict=True):
        got = _down(strategy, state, client_id)
        assert got.keys() == {"params/body.0.weight", "params/body.0.bias"}
        np.testing.assert_allclose(got["params/body.0.weight"][:, 0], numbers, rtol=1e-6)


def test_what_only_the_own_model_uses_stays_although_nothing_overlaps_there():
    """Eq. 7 as printed adds nothing to it; 0 is for what the own model does not use either."""
    model, (a, b) = _two_clients()
    b = {**b, "masks": {"body.0": np.array([[False, True], [False, True]])}}
    strategy = build("fedsub", {"untouched": "zero"}, model)
    state = _aggregated(strategy, model, _updates([a, b]))
    first, second = (_down(strategy, state, name) for name in ("c00", "c01"))
    np.testing.assert_array_equal(first["params/body.0.weight"][:, 0], [1, 0])
    np.testing.assert_array_equal(second["params/body.0.weight"][:, 0], [0, 6])


def test_halving_leaves_untouched_weights_bit_for_bit():
    model = perceptron(hidden=(16, 24))
    clients = _fleet(6, 3, model, seed=3)
    strategy = build("fedsub", {}, model)
    state = _aggregated(strategy, model, _updates(clients))
    changed = 0
    for k, client in enumerate(clients):
        owned = client["counts"] > 0
        got = _down(strategy, state, f"c{k:02d}")
        for layer in HIDDEN:
            dead = ~client["masks"][layer][owned].any(axis=0)
            for kind in ("weight", "bias"):
                own, new = client["tensors"][f"{layer}.{kind}"], got[f"params/{layer}.{kind}"]
                np.testing.assert_array_equal(new[dead], own[dead])
                changed += int((new != own).sum())
    assert changed > 100


def test_one_client_gets_its_own_weights_back():
    model = perceptron()
    (client,) = _fleet(2, 3, model)[1:]
    for fusion in ("overlap", "average", "leadership"):
        strategy = build("fedsub", {"fusion": fusion, "subnetworks": "whole"}, model)
        updates = _updates([client], leadership=fusion == "leadership")
        state = _aggregated(strategy, model, updates)
        got = _down(strategy, state, "c00")
        for name in got:
            np.testing.assert_array_equal(got[name], updates[0].tensors[name])


def test_clients_are_clustered_as_every_division_tried_out_says():
    """Prototypes of three kinds of people, some missing; 10 restarts find the least inertia."""
    model = perceptron()
    clients = _fleet(7, 3, model, seed=5)
    kinds = np.array([[0, 0], [9, 0], [0, 9]])
    for k, client in enumerate(clients):
        client["prototypes"] += (1 + 8 * kinds[k % 3]).astype(np.float32)
        client["counts"] = np.array([3, (k != 2) * 2, k % 2])
    labels = _aggregated(build("fedsub", {}, model), model, _updates(clients)).tensors[
        "clusters/labels"
    ]
    prototypes = np.array([client["prototypes"] for client in clients])
    owned = np.array([client["counts"] > 0 for client in clients])
    expected = oracle.clusters(prototypes, owned)
    for y in range(3):
        assert _same_division(labels[:, y], expected[:, y]), y
    assert len(set(labels[:, 0])) == 3


def _same_division(one, two):
    return np.array_equal(one[:, None] == one, two[:, None] == two)


def test_clusters_are_at_most_half_as_many_as_clients():
    """Twelve people of three kinds: eleven clusters have a lower index and are not looked at."""
    model = perceptron(classes=1)
    clients = _fleet(12, 1, model)
    kinds = np.arange(12) % 3
    points = np.stack([10 * kinds, 5 * (kinds == 1)], axis=1) + new_rng().normal(0, 0.5, (12, 2))
    for client, point in zip(clients, points, strict=True):
        client.update(prototypes=point[None].astype(np.float32), counts=np.array([1]))
    pairs = itertools.combinations(range(12), 2)
    one, other = min(pairs, key=lambda pair: np.linalg.norm(points[pair[0]] - points[pair[1]]))
    eleven = np.where(np.arange(12) == other, one, np.arange(12))
    assert davies_bouldin(points, eleven) < davies_bouldin(points, kinds)
    labels = _aggregated(build("fedsub", {}, model), model, _updates(clients)).tensors[
        "clusters/labels"
    ]
    assert _same_division(labels[:, 0], kinds)


def test_three_clients_are_one_cluster_and_a_class_that_nobody_owns_is_none():
    model = perceptron()
    clients = _fleet(3, 3, model)
    for client in clients:
        client["counts"] = np.array([1, 1, 0])
    state = _aggregated(build("fedsub", {}, model), model, _updates(clients))
    assert state.tensors["clusters/labels"].tolist() == [[0, 0, -1]] * 3


def test_clusters_are_kept_until_prototypes_or_participants_change():
    """Another generator gives the same labels for the same content, drawn once."""
    model = perceptron()
    clients = _fleet(8, 3, model, seed=8)
    strategy = build("fedsub", {"restarts": 1}, model)
    first = _aggregated(strategy, model, _updates(clients))

    class NoDrawing:
        def __getattr__(self, name):
            raise AssertionError(name)

    idle = dataclasses.replace(server_tools(), rng=NoDrawing())
    second = strategy.aggregate(first, _updates(clients), idle)
    np.testing.assert_array_equal(
        second.tensors["clusters/labels"], first.tensors["clusters/labels"]
    )
    clients[3]["prototypes"] = clients[3]["prototypes"] + np.float32(1)
    with pytest.raises(AssertionError):
        strategy.aggregate(second, _updates(clients), idle)
    with pytest.raises(AssertionError):
        strategy.aggregate(first, _updates(clients)[1:], idle)


def test_an_absent_client_keeps_what_it_has_and_a_new_one_gets_nothing():
    model = perceptron()
    clients = _fleet(3, 3, model)
    strategy = build("fedsub", {}, model)
    first = _aggregated(strategy, model, _updates(clients))
    second = strategy.aggregate(first, _updates(clients)[:2], server_tools())
    for name, value in _down(strategy, first, "c02").items():
        np.testing.assert_array_equal(_down(strategy, second, "c02")[name], value)
    assert _down(strategy, second, "new") == {}
    assert blobs.decode(blobs.encode({}, {}), max_bytes=1000)[0] == {}
    assert second.round_id == 2


def test_counts_of_zero_everywhere_change_nothing():
    model = perceptron()
    clients = _fleet(5, 3, model)
    for client in clients:
        client["counts"] = np.zeros(3, np.int64)
    for fusion in ("overlap", "average", "leadership"):
        strategy = build("fedsub", {"fusion": fusion}, model)
        updates = _updates(clients, leadership=fusion == "leadership")
        state = _aggregated(strategy, model, updates)
        for update in updates:
            for name, value in _down(strategy, state, update.client_id).items():
                np.testing.assert_array_equal(value, update.tensors[name])


def test_hostile_content_is_fused_without_error():
    """Everyone the same, empty masks, weights of the admitted norm, counts that make no sense."""
    model = perceptron()
    clients = _fleet(6, 3, model)
    for client in clients:
        client["prototypes"] = np.full((3, 2), 7e5, np.float32)
        client["counts"] = np.array([2**52, -5, 1])
    for layer in clients[1]["masks"].values():
        layer[:] = False
    for value in clients[2]["tensors"].values():
        value[...] = 1e6
    for normalise in ("halve", "norm", "unit", "none"):
        strategy = build("fedsub", {"normalise": normalise}, model)
        state = _aggregated(strategy, model, _updates(clients))
        blobs.check_finite(state.tensors)
        assert (state.tensors["clusters/labels"][:, 1] == -1).all()


@pytest.mark.parametrize("normalise", ["norm", "unit"])
def test_weights_next_to_nothing_leave_others_finite(normalise):
    """The leader's weights are 1e-42: the scale of the others does not fit single precision."""
    model, clients = _two_clients()
    for value in clients[0]["tensors"].values():
        value[...] = 1e-42
    clients[0] |= {"counts": np.array([9, 9]), "accuracy": np.ones(2, np.float32)}
    settings = {"fusion": "leadership", "normalise": normalise, "subnetworks": "whole"}
    strategy = build("fedsub", settings, model)
    blobs.check_finite(_aggregated(strategy, model, _updates(clients, leadership=True)).tensors)


def test_a_negative_count_is_none():
    """With shares among all clients the counts of class 1 would add up to 0."""
    model, clients = _two_clients()
    strategy = build("fedsub", {"literal_shares": True}, model)
    expected = _aggregated(strategy, model, _updates(clients))
    clients[0]["counts"] = np.array([3, -2])
    got = _aggregated(strategy, model, _updates(clients))
    for name, value in expected.tensors.items():
        np.testing.assert_array_equal(got.tensors[name], value)


def test_accuracies_outside_0_to_1_are_refused():
    model, clients = _two_clients()
    strategy = build("fedsub", {"fusion": "leadership"}, model)
    good, bad = _updates(clients, leadership=True)
    strategy.check(good)
    bad.tensors["accuracy"] = np.array([0.5, 1.5], np.float32)
    with pytest.raises(RefusedError, match="expected accuracies from 0 to 1") as caught:
        strategy.check(bad)
    assert caught.value.rule == "content"


def _client(make_tools, model, strategy, *, state=None, tensors=None, x=_X, y=_Y):
    tools, seen = make_tools("a", [])
    tools = with_programs(tools, x=x, y=y)
    payload = dataclasses.replace(
        strategy.downlink(strategy.server_init(model, new_rng()), "a"), tensors=tensors or {}
    )
    state = strategy.client_init(model) if state is None else state
    return *strategy.client_update(state, payload, tools), seen


def _crafted():
    """Unit 0 of both layers sees class 0, unit 1 class 2, unit 2 nothing."""
    model = perceptron(hidden=(3, 3))
    params = model.params.copy()
    params.buffer[...] = 0
    params["body.0.weight"][:2] = np.eye(2)
    params["body.2.weight"][...] = np.diag([1, 2, 1])
    params["head.weight"][[0, 2], [0, 1]] = 1
    return dataclasses.replace(model, params=params)


def test_a_client_sends_class_means_of_raw_examples_and_bits_of_active_units(make_tools):
    model = _crafted()
    strategy = build("fedsub", {"optimiser": _STILL, "fusion": "leadership"}, model)
    _, update, _ = _client(make_tools, model, strategy, x=_X.reshape(4, 1, 2))
    np.testing.assert_array_equal(update.tensors["prototypes"], [[2, 0], [0, 0], [0, 3]])
    for layer in HIDDEN:
        bits = np.unpackbits(update.tensors[f"masks/{layer}"], axis=1)
        np.testing.assert_array_equal(bits[:, :3], [[1, 0, 0], [0, 0, 0], [0, 1, 0]])
        assert bits.shape == (3, 8)
    np.testing.assert_array_equal(update.tensors["accuracy"], [1, 0, 1])
    assert not [name for name in update.tensors if "head" in name]


def test_a_unit_is_active_above_the_threshold(make_tools):
    """Class 0's mean activation is 2 in the first layer and 2 in the second, class 2's 3 and 6."""
    model = _crafted()
    strategy = build("fedsub", {"optimiser": _STILL, "threshold": 2.5}, model)
    _, update, _ = _client(make_tools, model, strategy)
    for layer in HIDDEN:
        bits = np.unpackbits(update.tensors[f"masks/{layer}"], axis=1)[:, :3]
        np.testing.assert_array_equal(bits, [[0, 0, 0], [0, 0, 0], [0, 1, 0]])
    assert "accuracy" not in update.tensors


def test_received_weights_replace_the_own_ones_and_the_head_stays(make_tools):
    model = perceptron()
    strategy = build("fedsub", {}, model)
    state, first, _ = _client(make_tools, model, strategy)
    received = {name: np.full(v.shape, 0.25, np.float32) for name, v in first.tensors.items()}
    received = {name: v for name, v in received.items() if name.startswith("params/")}
    still = build("fedsub", {"optimiser": _STILL}, model)
    after, _, seen = _client(make_tools, model, still, state=state, tensors=received)
    for name, value in received.items():
        np.testing.assert_array_equal(after.tensors[name], value)
        np.testing.assert_array_equal(seen.evaluated[0].params[name.removeprefix("params/")], value)
    np.testing.assert_array_equal(
        after.tensors["params/head.weight"], state.tensors["params/head.weight"]
    )
    assert (state.tensors["params/head.weight"] != model.params["head.weight"]).any()


def test_the_model_is_scored_before_its_training_and_again_after_it(make_tools):
    model = perceptron()
    strategy = build("fedsub", {}, model)
    tools, seen = make_tools("a", [])
    counted = []

    def confusion(network, **_):
        counted.append(network.params.copy())
        return np.eye(3, dtype=np.int64)

    tools = with_programs(tools, x=_X, y=_Y, statistics=confusion)
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    state, update = strategy.client_update(strategy.client_init(model), payload, tools)
    np.testing.assert_array_equal(seen.evaluated[0].params.buffer, model.params.buffer)
    np.testing.assert_array_equal(counted[0].buffer, strategy.client_model(state).params.buffer)
    assert (counted[0].buffer != model.params.buffer).any()
    assert update.evaluation.more["after_fit"].tolist() == np.eye(3).tolist()


def test_a_model_that_does_not_tell_its_layers_is_an_error(make_tools):
    model = perceptron()
    strategy = build("fedsub", {}, model)
    tools, _ = make_tools("a", [])
    tools = with_programs(tools, x=_X, y=_Y)
    tools = changed(tools, layers=lambda _network, x: {"body.0": x})
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    with pytest.raises(InputError, match=r"expected activations of layer 'body\.2'"):
        strategy.client_update(strategy.client_init(model), payload, tools)


def test_a_model_without_hidden_dense_layers_is_refused():
    params = TensorMap.pack({"head.weight": np.zeros((2, 3)), "head.bias": np.zeros(2)})
    model = Model(
        params=params,
        buffers=TensorMap.pack({}),
        num_classes=2,
        input_shape=(2,),
        head=("head.weight", "head.bias"),
        layers=(ModelLayer(name="head", hidden=False),),
    )
    with pytest.raises(InputError, match=r"expected dense layers .* export with --strategy fedsub"):
        build("fedsub", {}, model)
    recurrent = dataclasses.replace(model, no_layers="LSTM 'rnn'")
    with pytest.raises(InputError, match=r"got LSTM 'rnn'; .* take ditto") as told:
        build("fedsub", {}, recurrent)
    assert "export" not in str(told.value)
