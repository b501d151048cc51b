import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

from protofleet.datasets import partition
from protofleet.datasets.digits import load_digits
from protofleet.datasets.partition import (
    dirichlet,
    divide_like,
    folds_split,
    in_time_split,
    random_split,
    stratified_split,
)
from protofleet.errors import InputError


def _rng(seed=0):
    return np.random.default_rng(seed)


_LABELS = _rng(1).integers(0, 4, 300)
_RULES = {
    "iid": lambda clients, rng: partition.iid(300, clients, rng=rng),
    "dirichlet": lambda clients, rng: dirichlet(_LABELS, clients, alpha=1.0, rng=rng),
    "shared": lambda clients, rng: partition.dirichlet_shared(
        _LABELS, np.arange(300) % 5 == 0, clients, alpha=0.3, rng=rng
    ),
    "balanced": lambda clients, rng: partition.dirichlet_balanced(
        _LABELS, clients, alpha=0.5, rng=rng
    ),
    "pathological": lambda clients, rng: partition.pathological(
        _LABELS, clients, classes_per_client=3, rng=rng
    ),
}


@pytest.mark.parametrize("rule", _RULES)
@given(clients=st.integers(2, 6), seed=st.integers(0, 99))
def test_every_row_has_one_owner_and_the_seed_decides(rule, clients, seed):
    parts = _RULES[rule](clients, _rng(seed))
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(300))
    again = _RULES[rule](clients, _rng(seed))
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))


@pytest.mark.parametrize("rule", _RULES)
def test_another_seed_gives_another_partition(rule):
    one, two = (_RULES[rule](4, _rng(seed)) for seed in (0, 1))
    assert any(sorted(a) != sorted(b) for a, b in zip(one, two, strict=True))


@given(clients=st.integers(1, 6), alpha=st.sampled_from([0.3, 1.0, 100.0]), seed=st.integers(0, 99))
def test_dirichlet_gives_everybody_enough(clients, alpha, seed):
    parts = dirichlet(_LABELS, clients, alpha=alpha, rng=_rng(seed))
    assert min(map(len, parts)) >= 10


def test_small_alpha_is_more_skewed():
    labels = np.repeat(np.arange(10), 200)

    def classes_held(alpha):
        parts = dirichlet(labels, 8, alpha=alpha, rng=_rng())
        return np.mean([(np.bincount(labels[part], minlength=10) > 5).sum() for part in parts])

    assert classes_held(0.1) < classes_held(10.0)


def test_impossible_partition_says_what_to_change():
    with pytest.raises(InputError, match="fewer clients"):
        dirichlet(np.zeros(5, np.int64), 3, alpha=1.0, rng=_rng())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.iid(3, 4, rng=_rng()), r"expected 1…3 clients for 3 rows, got 4"),
        (lambda: dirichlet(_LABELS, 0, alpha=1.0, rng=_rng()), "got 0"),
        (lambda: dirichlet(_LABELS, 3, alpha=0.0, rng=_rng()), "positive alpha, got 0"),
        (
            lambda: partition.pathological(_LABELS, 3, classes_per_client=5, rng=_rng()),
            r"expected 1…4 classes per client",
        ),
        (
            lambda: partition.pathological(_LABELS, 3, classes_per_client=1, rng=_rng()),
            "an owner for each of 4 classes",
        ),
        (
            lambda: partition.pathological(np.arange(4), 4, classes_per_client=2, rng=_rng()),
            "a class of 1 rows has 2 owners",
        ),
        (
            lambda: partition.dirichlet_balanced(
                np.zeros(100, np.int64), 10, alpha=0.01, rng=_rng()
            ),
            "never gave every client 5",
        ),
        (lambda: partition.label_removal({}, every=0, rng=_rng()), "at least 1 round"),
    ],
)
def test_wrong_numbers_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_iid_sizes_differ_by_at_most_one():
    assert sorted(map(len, partition.iid(10, 4, rng=_rng()))) == [2, 2, 3, 3]


def test_natural_owners_keep_their_rows_in_order():
    owners = np.array(["b", "a", "b", "10", "2"])
    parts = partition.natural(owners)
    assert list(parts) == ["10", "2", "a", "b"]
    assert parts["b"].tolist() == [0, 2]


def test_shared_proportions_are_the_same_in_train_and_test():
    """With many rows, a client's share of a class is the same on both sides."""
    labels, is_test = np.repeat(np.arange(3), 20000), np.arange(60000) % 5 == 0
    parts = partition.dirichlet_shared(labels, is_test, 5, alpha=0.3, rng=_rng(4))
    train = np.stack([np.bincount(labels[rows[~is_test[rows]]], minlength=3) for rows in parts])
    test = np.stack([np.bincount(labels[rows[is_test[rows]]], minlength=3) for rows in parts])
    assert np.abs(train / 16000 - test / 4000).max() < 0.03
    assert (train / 16000).max() > 0.5


def test_shared_gives_everybody_two_of_each_class_on_both_sides():
    """Also where alpha would give a client nothing of a class."""
    labels, is_test = np.repeat(np.arange(10), 500), np.arange(5000) % 5 == 0
    parts = partition.dirichlet_shared(labels, is_test, 20, alpha=0.01, rng=_rng())
    for rows in parts:
        for side in (rows[is_test[rows]], rows[~is_test[rows]]):
            assert np.bincount(labels[side], minlength=10).min() >= 2


def test_shared_deals_a_rare_class_as_far_as_it_goes():
    labels = np.array([0] * 100 + [1] * 5)
    parts = partition.dirichlet_shared(labels, np.zeros(105, bool), 4, alpha=0.3, rng=_rng())
    assert sorted(np.count_nonzero(labels[rows] == 1) for rows in parts) == [1, 1, 1, 2]


@given(seed=st.integers(0, 200), clients=st.integers(2, 20))
def test_balanced_clients_that_are_full_get_no_more(seed, clients):
    """Classes are dealt in order: once a client has n / clients rows, it has none of later ones."""
    labels = np.repeat(np.arange(10), 100)
    parts = partition.dirichlet_balanced(labels, clients, alpha=0.1, rng=_rng(seed), least=1)
    for rows in parts:
        counts = np.bincount(labels[rows], minlength=10)
        full = np.cumsum(counts) >= 1000 / clients
        assert not counts[1:][full[:-1]].any()


def test_balanced_draws_again_until_everybody_has_enough():
    """min(40, n / clients / 2); this seed's first draw leaves somebody with less."""
    labels = np.repeat(np.arange(10), 700)
    sizes = [len(part) for part in partition._draw_balanced(labels, 20, 0.1, _rng(0))]
    assert min(sizes) < 40
    parts = partition.dirichlet_balanced(labels, 20, alpha=0.1, rng=_rng(0))
    assert min(map(len, parts)) >= 40
    few = partition.dirichlet_balanced(labels[::10], 20, alpha=0.1, rng=_rng(0))
    assert min(map(len, few)) >= 700 / 20 / 2 - 0.5


def test_pathological_gives_the_published_blocks_of_clients():
    """20 clients, 10 classes, 2 each: classes 0 and 1 go to clients 0…3, 2 and 3 to 4…7, …"""
    labels = np.repeat(np.arange(10), 400)
    parts = partition.pathological(labels, 20, classes_per_client=2, rng=_rng())
    for client, rows in enumerate(parts):
        first = client // 4 * 2
        assert np.unique(labels[rows]).tolist() == [first, first + 1]


def test_pathological_shares_are_unbalanced_within_the_published_bounds():
    """Of 4 owners of 400 rows three have 10…99 each and the last one the rest."""
    labels = np.repeat(np.arange(10), 400)
    parts = partition.pathological(labels, 20, classes_per_client=2, rng=_rng())
    counts = np.stack([np.bincount(labels[rows], minlength=10) for rows in parts])
    for label in range(10):
        shares = counts[counts[:, label] > 0, label]
        assert ((shares[:-1] >= 10) & (shares[:-1] < 100)).all()
        assert shares[-1] >= 100
        assert len(set(shares)) > 1


@given(classes=st.integers(1, 12), clients=st.integers(1, 30), data=st.data())
def test_pathological_clients_always_have_exactly_their_number_of_classes(classes, clients, data):
    least = -(-classes // clients)
    each = data.draw(st.integers(least, classes))
    labels = np.repeat(np.arange(classes), 2 * clients)
    parts = partition.pathological(labels, clients, classes_per_client=each, rng=_rng())
    assert {len(np.unique(labels[rows])) for rows in parts} == {each}


def test_sixty_percent_lose_classes_and_get_them_back_one_by_one():
    """FedSub: each of them lacks at least one class and keeps at least one."""
    classes = {f"c{number}": range(4) for number in range(10)}
    removal = partition.label_removal(classes, every=50, rng=_rng(2))
    assert len(removal.order) == 6
    for name, lost in removal.order.items():
        assert 1 <= len(lost) <= 3
        assert len(set(lost)) == len(lost)
        for back in range(4):
            for round_id in (50 * back + 1, 50 * back + 50):
                assert removal.removed(name, round_id) == set(lost[back:])
    assert {len(lost) for lost in removal.order.values()} == {1, 2, 3}
    assert removal == partition.label_removal(classes, every=50, rng=_rng(2))


def test_a_client_that_loses_nothing_lacks_nothing():
    removal = partition.label_removal({"a": [1], "b": [0, 2]}, every=1, rng=_rng(), share=1.0)
    assert list(removal.order) == ["b"]
    assert removal.removed("a", 1) == frozenset()
    assert removal.removed("b", 1) < {0, 2}


def test_split_keeps_proportions_and_single_examples():
    labels = np.array([0] * 20 + [1] * 10 + [2])
    train, test = stratified_split(labels, test_fraction=0.3, rng=_rng())
    assert np.bincount(labels[test], minlength=3).tolist() == [6, 3, 0]
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(31))


def test_split_without_chance_takes_the_last_of_each_class():
    train, test = stratified_split(np.array([0, 1, 0, 1, 0, 1]), test_fraction=0.3, rng=None)
    assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3], [4, 5])


def test_digits_are_scaled_images():
    images, labels = load_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert images.min() == 0
    assert images.max() == 1
    assert labels.shape == (1797,)


@given(st.lists(st.integers(0, 4), min_size=40, max_size=200), st.integers(2, 10))
def test_folds_are_those_of_scikit_learn(labels, folds):
    """The oracle is StratifiedKFold without shuffling; the first 7 of 10 train, and so on."""
    labels = np.array([*labels, *[3, 0, 4, 1, 2] * folds])
    kept = max(1, folds - 3)
    tests = [test for _, test in StratifiedKFold(folds).split(labels, labels)]
    train, test = folds_split(labels, folds=folds, train_folds=kept)
    assert train.tolist() == sorted(np.concatenate(tests[:kept]))
    assert test.tolist() == sorted(np.concatenate(tests[kept:]))


def test_random_split_ignores_classes_and_keeps_one_for_training():
    train, test = random_split(40, test_fraction=0.25, rng=np.random.default_rng(0))
    assert (len(train), len(test)) == (30, 10)
    assert sorted([*train, *test]) == list(range(40))
    train, test = random_split(1, test_fraction=0.9, rng=np.random.default_rng(0))
    assert (len(train), len(test)) == (1, 0)


def test_in_time_the_last_of_each_class_test_and_overlaps_are_left_out():
    """Rows 2 and 5 overlap the training rows 1 and 4; row 8 overlaps only a test row."""
    labels = np.array([0, 0, 0, 1, 1, 1, 0, 0, 0])
    follows = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1], bool)
    train, test = in_time_split(labels, follows, test_fraction=0.4)
    assert train.tolist() == [0, 1, 2, 3, 4, 6]
    assert test.tolist() == [7, 8]


def test_in_time_leaves_out_a_test_row_before_a_training_row():
    """A test row that the next training row overlaps is seen in training, too."""
    labels = np.array([1, 1, 0, 0])
    train, test = in_time_split(labels, np.array([0, 0, 1, 0], bool), test_fraction=0.5)
    assert train.tolist() == [0, 2]
    assert test.tolist() == [3]


def test_test_rows_follow_the_clients_train_proportions():
    counts = np.array([[30, 0, 5], [10, 0, 0], [0, 0, 15]])
    labels = np.repeat([0, 1, 2], 8)
    parts = divide_like(labels, counts, rng=np.random.default_rng(0))
    assert [np.bincount(labels[rows], minlength=3).tolist() for rows in parts] == [
        [6, 0, 2],
        [2, 0, 0],
        [0, 0, 6],
    ]
    assert len(set(np.concatenate(parts))) == 16


@pytest.mark.parametrize("seed", range(5))
def test_all_test_rows_of_trained_classes_are_divided(seed):
    rng = np.random.default_rng(seed)
    labels, counts = rng.integers(0, 6, 500), rng.integers(0, 30, (7, 6))
    parts = divide_like(labels, counts, rng=rng)
    assert sorted(np.concatenate(parts)) == list(range(500))
    got = np.stack([np.bincount(labels[rows], minlength=6) for rows in parts])
    exact = counts / counts.sum(axis=0) * np.bincount(labels)
    assert np.abs(got - exact).max() <= 1
