"""CDFL by arithmetic: the network of ``laws/case_cdfl.py``, full batches, a rate of 1/2."""

import dataclasses

import numpy as np
import pytest
from laws import case_cdfl as toy
from toy_model import changed, new_rng

from protofleet.errors import InputError, RefusedError
from protofleet.strategies import build
from protofleet.strategies.types import ServerTools, Update

_SETTINGS = {**toy.SETTINGS, "value_range": [0, 255], "factor": 1, "server_epochs": 0}


def cdfl(**changes):
    return build("cdfl", {**_SETTINGS, **changes}, toy.new_model())


@pytest.fixture
def make_client(make_tools):
    """Tools of a client with pairs of pixels and their labels."""

    def make(examples, labels, **changes):
        tools, _ = toy.case(make_tools, None).make_tools("a", examples)
        return changed(tools, y=np.array(labels, np.int64), **changes)

    return make


def client_round(strategy, tools, server=None):
    server = server or strategy.server_init(toy.new_model(), new_rng())
    payload = strategy.downlink(server, tools.client_id)
    return strategy.client_update(strategy.client_init(toy.new_model()), payload, tools)


def test_the_personalised_network_trains_first_and_teaches_the_local_one(make_client):
    """Batch means: x (4, 3); z (3.5, 3.5); each example is its own centroid, so these too.

    w_p = (4, 3)/2, the teacher's mean is (4, 3) + w_p = (6, 4.5), and
    w_l = ((3.5, 3.5) + 0.1 (4, 3) + 0.1 (6, 4.5) + 0.05 (3.5, 3.5))/2.
    """
    state, update = client_round(cdfl(factor=2), make_client([[2, 4], [6, 2]], [0, 1]))
    np.testing.assert_allclose(state.tensors["params/w"], [2, 1.5])
    np.testing.assert_allclose(update.tensors["params/w"], [2.3375, 2.2125], rtol=1e-6)
    assert update.loss == pytest.approx((9 + 16) / 2)  # of the local network, before its step
    images = [[[[3, 3]]], [[[4, 4]]]]
    np.testing.assert_array_equal(update.tensors["shown/images"], np.array(images, np.uint8))
    assert update.tensors["shown/images"].dtype == np.uint8
    np.testing.assert_array_equal(update.tensors["shown/labels"], [0, 1])


def test_the_programs_get_what_the_paper_names(make_client):
    """Centroids are those of the received network in every epoch, though the networks move."""
    batches = []

    def recorded(network, batch, rng):
        batches.append({key: np.array(value) for key, value in batch.items()})
        return toy.cdfl(network, batch, rng)

    programs = {"task_loss": toy.cross_entropy, "cdfl": recorded}
    tools = make_client([[2, 2], [4, 4], [90, 90]], [0, 1, 1], grad_fns=programs)
    client_round(cdfl(epochs=2, tau=0.25), tools)
    assert len(batches) == 2
    for batch in batches:
        order = np.argsort(batch["x"][:, 0, 0, 0])
        np.testing.assert_array_equal(batch["z"], batch["x"])
        np.testing.assert_array_equal(batch["centroids"][order], [[3, 3], [3, 3], [90, 90]])
        scalars = [batch[k] for k in ("tau", "contrastive", "distillation", "clustering")]
        np.testing.assert_allclose(scalars, [0.25, 0.1, 0.1, 0.05])
        assert all(value.dtype == np.float32 and value.shape == () for value in scalars)
    # 16, 24: the personalised w after each epoch, half of the mean 32, then half of the rest.
    for batch, w in zip(batches, (16, 24), strict=True):
        np.testing.assert_allclose(batch["teacher"], batch["x"].reshape(3, 2) + w)


_LINE = [[0, 0], [10, 0], [11, 0], [11.5, 0]]


@pytest.mark.parametrize(
    ("points", "m", "rows"),
    [
        (_LINE, 1, [0, 2]),
        (_LINE, 2, [0, 1, 2, 3]),  # 10 is nearest to the centroid 0 after 0 itself
        ([[0, 0], [10, 0], [10.5, 0], [12, 0]], 2, [0, 1, 2]),  # 10 is chosen twice
        (_LINE, 9, [0, 1, 2, 3]),
    ],
)
def test_each_centroid_chooses_among_all_own_examples_once(make_client, points, m, rows):
    """Clusters {0} and the three others; a centroid may choose beyond its cluster."""
    strategy = cdfl(optimiser={"kind": "sgd", "lr": 0}, images_per_centroid=m)
    labels = [0, 1, 1, 0]
    _, update = client_round(strategy, make_client(points, labels))
    expected = np.rint(np.array(points)[rows]).reshape(-1, 1, 1, 2)
    np.testing.assert_array_equal(update.tensors["shown/images"], expected)
    np.testing.assert_array_equal(update.tensors["shown/labels"], np.array(labels)[rows])


def test_the_trained_network_s_features_choose_the_images(make_client):
    """The received network's put the last example alone, the trained one's the second."""

    def features(network, x):
        shift = [[0, 0], [9, 0], [1, 0]] if network.params["w"].any() else [[0, 0], [1, 0], [9, 0]]
        return np.array(shift, np.float32)[x[:, 0, 0, 1].astype(int)]

    tools = make_client([[5, 0], [5, 1], [5, 2]], [0, 1, 1], features=features)
    _, update = client_round(cdfl(images_per_centroid=1), tools)
    np.testing.assert_array_equal(update.tensors["shown/images"][:, 0, 0, 1], [0, 1])


def test_scores_are_the_local_network_s_and_the_others_have_names(make_client):
    seen = []

    def confusion(network, *, view=None):
        test = toy.images([[1, 3]])
        seen.append((network.params["w"].copy(), test if view is None else view(test, None)))
        return np.eye(2, dtype=np.int64) * len(seen)

    state, update = client_round(
        cdfl(factor=2), make_client([[2, 4], [6, 2]], [0, 1], statistics=confusion)
    )
    assert set(update.evaluation.more) == {"pixelised", "personalised"}
    assert update.evaluation.own.sum() == 3
    (local, pixelised), (personal, original) = seen
    np.testing.assert_array_equal(local, update.tensors["params/w"])
    np.testing.assert_array_equal(pixelised.ravel(), [2, 2])
    np.testing.assert_array_equal(personal, state.tensors["params/w"])
    np.testing.assert_array_equal(original.ravel(), [1, 3])
    np.testing.assert_array_equal(cdfl().client_model(state).params["w"], personal)


def test_every_round_begins_with_what_is_received(make_client):
    """Nothing of a device's earlier networks is left."""
    strategy, tools = cdfl(), make_client([[2, 4], [6, 2]], [0, 1])
    server = strategy.server_init(toy.new_model(), new_rng())
    payload = strategy.downlink(server, "a")
    state = strategy.client_init(toy.new_model())
    _, first = strategy.client_update(state, payload, tools)
    other = {name: value + 9 for name, value in state.tensors.items()}
    again = changed(tools, rng=np.random.default_rng(1))
    kept, second = strategy.client_update(dataclasses.replace(state, tensors=other), payload, again)
    np.testing.assert_array_equal(first.tensors["params/w"], second.tensors["params/w"])
    np.testing.assert_array_equal(kept.tensors["state/norm.mean"], [5])


def upload(client_id, w, pixels, labels, num_examples=100, **tensors):
    """What a client in its turn sends; the model's only buffer becomes the sum of w."""
    shown = {
        "params/w": np.array(w, np.float32),
        "state/norm.mean": np.array([sum(w)], np.float32),
        "shown/images": toy.images(pixels).astype(np.uint8),
        "shown/labels": np.array(labels, np.int64),
    }
    return Update(
        client_id=client_id,
        round_id=1,
        num_examples=num_examples,
        tensors={**shown, **tensors},
    )


def abstained(client_id):
    return Update(client_id=client_id, round_id=1, num_examples=4, tensors={})


def aggregate(strategy, updates, server=None, tools=None):
    server = server or strategy.server_init(toy.new_model(), new_rng())
    return strategy.aggregate(server, updates, tools or toy.server_tools())


def asked(strategy, server, clients):
    """Which of the clients upload in the next round."""
    return [c for c in clients if strategy.downlink(server, c).tensors["uploads"]]


def test_the_server_averages_by_examples_and_trains_on_the_images():
    """(1 (1, 0) + 3 (5, 4))/4 = (4, 3); half the way to the images' mean (4, 4)."""
    updates = [
        upload("a", [1, 0], [[8, 0], [8, 0]], [0, 0], 1),
        upload("b", [5, 4], [[0, 8], [0, 8]], [0, 0], 3),
    ]
    plain = aggregate(cdfl(), updates)
    np.testing.assert_allclose(plain.tensors["params/w"], [4, 3])
    np.testing.assert_allclose(plain.tensors["state/norm.mean"], [0.25 * 1 + 0.75 * 9])
    strategy = cdfl(server_epochs=1)
    trained = aggregate(strategy, updates)
    np.testing.assert_allclose(trained.tensors["params/w"], [4, 3.5])
    assert trained.round_id == 1
    np.testing.assert_array_equal(strategy.server_model(trained).params["w"], [4, 3.5])


def test_without_training_one_client_gets_its_own_network_back():
    """The law that the server's training breaks."""
    server = aggregate(cdfl(), [upload("a", [0.1, 0.7], [[8, 0]], [0])])
    np.testing.assert_array_equal(server.tensors["params/w"], np.float32([0.1, 0.7]))


def test_the_better_half_by_accuracy_on_validation_images_uploads_next():
    """Logits are x · w with w = (1, 1): the brighter pixel is the class."""
    strategy = cdfl()
    updates = [
        upload("a", [1, 1], [[0, 9], [0, 9]], [0, 0]),
        upload("b", [1, 1], [[9, 0], [9, 0]], [0, 0]),
        upload("c", [1, 1], [[0, 9], [0, 9]], [1, 1]),
        upload("d", [1, 1], [[0, 9], [0, 9]], [0, 0]),
    ]
    before = strategy.server_init(toy.new_model(), new_rng())
    assert asked(strategy, before, "abcde") == list("abcde")
    server = aggregate(strategy, updates)
    assert asked(strategy, server, "abcde") == ["b", "c", "e"]
    assert asked(cdfl(newcomers=False), server, "abcde") == ["b", "c"]
    # They are invited first where not all are, others in the order in which they come.
    assert strategy.rank(server, list("dcbae")) == ["c", "b", "e", "d", "a"]
    assert strategy.rank(before, list("dcbae")) == list("dcbae")
    more, fewer = (cdfl(newcomers=False, uploaders=share) for share in (0.75, 0))
    assert asked(more, aggregate(more, updates), "abcde") == ["a", "b", "c"]
    assert asked(fewer, aggregate(fewer, updates), "abcde") == ["b"]


def test_the_trained_network_ranks_and_not_the_average():
    """The average (0, 9) sees class 1 everywhere; trained on (80, 0) it sees class 0 in (9, 8)."""
    updates = [
        upload("a", [0, 9], [[0, 80], [0, 80]], [0, 0]),
        upload("b", [0, 9], [[160, 80], [160, 80]], [0, 0]),
    ]
    untrained, trained = (aggregate(cdfl(server_epochs=n), updates) for n in (0, 1))
    assert asked(cdfl(), untrained, "ab") == ["a"]  # equals: the first
    assert asked(cdfl(), trained, "ab") == ["b"]


def test_a_client_with_one_image_is_ranked_last():
    updates = [upload("a", [1, 1], [[9, 0]], [0]), upload("b", [1, 1], [[0, 9]] * 2, [0, 0])]
    assert asked(cdfl(), aggregate(cdfl(), updates), "ab") == ["b"]


@pytest.mark.parametrize(
    ("labels", "held"),
    [
        ([0] * 5 + [1] * 5, {0: 1, 1: 1}),
        ([0, 1] * 15, {0: 3, 1: 3}),
        ([1, 0, 0, 0, 0], {0: 1}),
        ([0, 1], None),
    ],
)
def test_a_fifth_of_the_images_is_for_validation_evenly_over_the_classes(labels, held):
    pixels = [[i, 0] for i in range(len(labels))]
    kept = aggregate(cdfl(), [upload("a", [1, 1], pixels, labels)]).tensors
    assert kept["images/is_training"].dtype == np.uint8
    chosen = np.array(labels)[kept["images/is_training"] == 0]
    if held is None:
        assert len(chosen) == 1
        return
    assert {c: int((chosen == c).sum()) for c in np.unique(chosen)} == held
    again = aggregate(cdfl(), [upload("a", [1, 1], pixels, labels)]).tensors
    np.testing.assert_array_equal(again["images/is_training"], kept["images/is_training"])
    other = aggregate(cdfl(split_seed=3), [upload("a", [1, 1], pixels, labels)]).tensors
    assert len(labels) < 6 or (other["images/is_training"] != kept["images/is_training"]).any()


def test_images_stay_as_bytes_until_their_client_sends_others():
    strategy = cdfl()
    first = [
        upload("a", [1, 1], [[9, 0], [8, 0]], [0, 0]),
        upload("b", [1, 1], [[0, 7], [0, 7], [0, 7]], [1, 0, 0]),
    ]
    server = aggregate(strategy, first)
    assert asked(strategy, server, "ab") == ["a"]
    second = [upload("a", [3, 3], [[5, 0]], [0]), upload("b", [90, 90], [[0, 1]], [1])]
    server = aggregate(strategy, second, server)
    np.testing.assert_array_equal(server.tensors["params/w"], [3, 3])  # b was not asked
    assert server.tensors["images/images"].dtype == np.uint8
    pixels = server.tensors["images/images"].reshape(-1, 2)
    np.testing.assert_array_equal(pixels, [[5, 0], [0, 7], [0, 7], [0, 7]])
    np.testing.assert_array_equal(server.tensors["images/labels"], [0, 1, 0, 0])
    np.testing.assert_array_equal(server.tensors["images/counts"], [1, 3])


def test_a_round_without_uploads_changes_nothing_but_its_number():
    strategy = cdfl()
    start = strategy.server_init(toy.new_model(), new_rng())
    for server in (start, aggregate(strategy, [upload("a", [1, 1], [[9, 0]] * 2, [0, 0])])):
        after = aggregate(strategy, [abstained("a"), abstained("b")], server)
        assert after.round_id == server.round_id + 1
        assert after.tensors is server.tensors


def test_who_is_not_asked_trains_and_scores_but_sends_no_tensor(make_client):
    strategy = cdfl()
    updates = [upload("0", [0, 0], [[9, 0]] * 2, [0, 0]), upload("a", [0, 0], [[0, 9]] * 2, [0, 0])]
    server = aggregate(strategy, updates)
    assert asked(strategy, server, ["0", "a"]) == ["0"]  # logits are all zero: class 0 everywhere
    state, update = client_round(strategy, make_client([[2, 4], [6, 2]], [0, 1]), server)
    assert update.tensors == {}
    assert update.num_examples == 2
    assert update.evaluation.own.sum() == 3
    np.testing.assert_allclose(state.tensors["params/w"], [2, 1.5])


def test_clients_in_the_same_position_get_the_very_same_arrays():
    """So that the outbox encodes a payload once."""
    strategy = cdfl()
    server = strategy.server_init(toy.new_model(), new_rng())
    one, two = (strategy.downlink(server, c).tensors for c in ("a", "b"))
    assert all(one[name] is two[name] for name in one)
    assert set(one) == {"params/w", "state/norm.mean", "uploads"}


def recording_tools(loss=None):
    sizes = []

    def grad_fn(network, batch, rng):
        sizes.append((len(batch["y"]), batch["x"].dtype, float(batch["x"].max())))
        made = toy.cross_entropy(network, batch, rng)
        return made if loss is None else dataclasses.replace(made, loss=loss)

    def predict(network, x):
        sizes.append((len(x), x.dtype, float(x.max())))
        return toy.predict(network, x)

    return ServerTools(grad_fns={"task_loss": grad_fn}, predict=predict, rng=new_rng()), sizes


def test_the_server_turns_a_batch_of_bytes_into_numbers_at_a_time():
    strategy = cdfl(server_epochs=2, images_per_centroid=200, value_range=[-1, 1])
    pixels, labels = [[255, 0]] * 200, [0, 1] * 100
    tools, sizes = recording_tools()
    aggregate(strategy, [upload("a", [1, 1], pixels, labels, 200)], tools=tools)
    assert [n for n, _, _ in sizes] == [32] * 5 + [32] * 5 + [32, 8]  # 160 twice, then 40
    assert {(dtype, value) for _, dtype, value in sizes} == {(np.dtype(np.float32), 1.0)}


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_training_that_diverges_leaves_the_average(loss):
    """Whatever was uploaded, the federation goes on."""
    tools, _ = recording_tools(loss)
    updates = [upload("a", [1, 2], [[8, 0], [8, 0]], [0, 0])]
    after = aggregate(cdfl(server_epochs=1), updates, tools=tools)
    np.testing.assert_array_equal(after.tensors["params/w"], [1, 2])


def test_a_network_that_is_no_number_after_training_is_left_out():
    rate = {"kind": "sgd", "lr": 1e6}
    updates = [upload("a", [1, 2], [[200, 0], [200, 0]], [0, 0])]
    after = aggregate(cdfl(server_epochs=20, server_optimiser=rate), updates)
    np.testing.assert_array_equal(after.tensors["params/w"], [1, 2])


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (upload("a", [0, 0], [[1, 1]], [0, 1]), "as many labels, got 1 and 2"),
        (upload("a", [0, 0], [[1, 1]], [2]), "labels: expected 0 to 1, got 2 to 2"),
        (upload("a", [0, 0], [[1, 1]] * 2, [-1, 0]), "labels: expected 0 to 1, got -1 to 0"),
        (upload("a", [0, 0], [[1, 1]] * 7, [0] * 7), "expected 1 to 6 of them, got 7"),
        (upload("a", [0, 0], [[1, 1]] * 3, [0] * 3, 2), "expected 1 to 2 of them, got 3"),
        (upload("a", [0, 0], [], []), "expected 1 to 6 of them, got 0"),
        (upload("a", [0, 0], [[1, 1]], [0], 0), "expected 0 to 0 of them, got 1"),
    ],
)
def test_impossible_uploads_are_refused(update, message):
    with pytest.raises(RefusedError, match=message) as refused:
        cdfl().check(update)
    assert refused.value.rule == "content"


@pytest.mark.parametrize(
    "update",
    [
        upload("a", [0, 0], [[1, 1]] * 6, [0, 1] * 3),
        upload("a", [0, 0], [], [], 0),
        abstained("a"),
    ],
)
def test_possible_uploads_are_let_in(update):
    cdfl().check(update)
    aggregate(cdfl(server_epochs=1), [update])


def test_boxes_hide_what_they_enclose(make_client):
    """The first image's right pixel and nothing of the second."""
    boxes = np.array([[[0, 0, 2, 1]], [[0, 0, 0, 0]]], np.float32)
    tools = make_client([[2, 4], [6, 2]], [0, 1], boxes=boxes)
    _, update = client_round(cdfl(pixelise="boxes", factor=2), tools)
    np.testing.assert_array_equal(update.tensors["shown/images"].reshape(-1, 2), [[3, 3], [6, 2]])


def test_images_without_boxes_are_refused_where_boxes_are_to_be_hidden(make_client):
    tools = make_client([[2, 4]], [0])
    with pytest.raises(
        InputError, match=r"expected boxes .* option 'boxes'.* pixelise = \"whole\""
    ):
        client_round(cdfl(pixelise="boxes"), tools)


def test_examples_beyond_the_value_range_are_refused(make_client):
    with pytest.raises(InputError, match=r"'value_range': expected examples from 0 to 1, got 2 to"):
        client_round(cdfl(value_range=[0, 1]), make_client([[2, 4]], [0]))


def test_a_model_of_no_images_is_refused():
    """The coordinator finds out before the first round."""
    model = dataclasses.replace(toy.new_model(), input_shape=(128, 6))
    with pytest.raises(InputError, match=r"expected images .*, got \(128"):
        build("cdfl", toy.SETTINGS, model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0}, "factor"),
        ({"tau": 0}, "tau"),
        ({"uploaders": 1.5}, "uploaders"),
        ({"value_range": [1, 1]}, "value_range"),
        ({"server_batch_size": 0}, "server_batch_size"),
        ({"pixelise": "faces"}, "pixelise"),
        ({"faces": 1}, "faces"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        cdfl(**changes)


def test_the_defaults_are_the_paper_s():
    settings = build("cdfl", {}, toy.new_model()).settings
    assert (settings.epochs, settings.batch_size) == (5, 32)
    sgd = settings.optimiser
    assert (sgd.lr, sgd.momentum, sgd.weight_decay) == (0.01, 0.9, 1e-5)
    weights = settings.contrastive, settings.distillation, settings.clustering
    assert weights == (0.1, 0.1, 0.05)
    assert (settings.uploaders, settings.factor, settings.tau) == (0.5, 8, 0.5)
