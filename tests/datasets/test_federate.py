import msgspec
import numpy as np
import pytest

from protofleet.datasets import catalogue, ucihar
from protofleet.datasets.federate import (
    Dirichlet,
    DirichletBalanced,
    DirichletShared,
    Folds,
    Iid,
    InTime,
    Natural,
    Partition,
    Pathological,
    Publisher,
    Random,
    Split,
    Stratified,
    federate,
    pooled,
    without_classes,
)
from protofleet.datasets.pool import Pool
from protofleet.datasets.windows import split_in_time
from protofleet.errors import InputError

_PARTITIONS = [
    Natural(),
    Iid(clients=5),
    Dirichlet(clients=5, alpha=0.5),
    DirichletShared(clients=5, alpha=0.3),
    DirichletBalanced(clients=5),
    Pathological(clients=6, classes_per_client=2),
]
_SPLITS = [Stratified(), Stratified(shuffled=False), Random(), InTime(), Folds(), Publisher()]


def _pool(n=1200, **changes):
    """Row i is the image [i, i]: what a client holds tells which rows it got."""
    rng = np.random.default_rng(7)
    values = {
        "x": np.repeat(np.arange(n, dtype=np.float32)[:, None], 2, axis=1),
        "y": rng.integers(0, 4, n),
        "classes": ("a", "b", "c", "d"),
        "client": np.repeat([f"u{number}" for number in range(4)], n // 4),
        "recording": np.arange(n) // 50,
        "follows": np.arange(n) % 50 != 0,
        "is_test": np.arange(n) % 4 == 3,
        "boxes": np.repeat(np.arange(n, dtype=np.float32), 8).reshape(n, 2, 4),
    }
    return Pool(**(values | changes))


_NUMBERS = {"y": np.arange(2400.0).reshape(1200, 2), "classes": (), "targets": ("a", "b")}
"""Of ``_pool``: two numbers for each row in the place of its class."""


def _rows(data):
    return data.x_train[:, 0].astype(int), data.x_test[:, 0].astype(int)


_PAIRS = [
    (partition, split)
    for partition in _PARTITIONS
    for split in _SPLITS
    if not isinstance(split, InTime) or isinstance(partition, Natural)
    if not isinstance(partition, DirichletShared) or not isinstance(split, Folds)
]


@pytest.mark.parametrize(("partition", "split"), _PAIRS)
def test_no_row_is_used_twice_and_labels_and_boxes_stay_with_their_row(partition, split):
    pool = _pool()
    clients = federate(pool, partition, split, seed=3)
    assert list(clients) == sorted(clients)
    used = np.concatenate([np.concatenate(_rows(data)) for data in clients.values()])
    assert len(set(used)) == len(used) <= 1200
    assert len(used) == 1200 or isinstance(split, InTime)
    for data in clients.values():
        train, test = _rows(data)
        assert np.array_equal(data.y_train, pool.y[train])
        assert np.array_equal(data.y_test, pool.y[test])
        assert np.array_equal(data.boxes_train[:, 0, 0], train)
        assert np.array_equal(data.boxes_test[:, 1, 3], test)


@pytest.mark.parametrize(("partition", "split"), _PAIRS)
def test_the_seed_decides(partition, split):
    one, two = (federate(_pool(), partition, split, seed=5) for _ in range(2))
    for name, data in one.items():
        assert np.array_equal(data.x_train, two[name].x_train)
        assert np.array_equal(data.x_test, two[name].x_test)


def test_ids_are_owners_or_numbers_in_client_order():
    assert list(federate(_pool(), Natural(), Stratified(), seed=0)) == ["u0", "u1", "u2", "u3"]
    ids = list(federate(_pool(4000), Iid(clients=1001), Random(), seed=0))
    assert (ids[0], ids[-1]) == ("client-0000", "client-1000")
    assert list(federate(_pool(), Iid(clients=2), Random(), seed=0)) == ["client-000", "client-001"]


def test_stratified_merges_the_published_parts():
    """Rows of the published test part train, too."""
    for data in federate(_pool(), Iid(clients=3), Stratified(test_fraction=0.25), seed=0).values():
        train, test = _rows(data)
        assert (train % 4 == 3).any()
        assert (test % 4 != 3).any()
        expected = np.bincount(pooled({"a": data}).y_train, minlength=4) / 3
        assert np.abs(np.bincount(data.y_test, minlength=4) - expected).max() <= 1


def test_published_test_rows_follow_each_clients_train_classes():
    """CDFL: a client that trains on two classes is tested on these two alone."""
    clients = federate(_pool(), Pathological(clients=4), Publisher(), seed=1)
    union = pooled(clients)
    for data in clients.values():
        train, test = _rows(data)
        assert (train % 4 != 3).all()
        assert (test % 4 == 3).all()
        assert len(set(data.y_train)) == 2
        assert set(data.y_test) == set(data.y_train)
        share = np.bincount(data.y_train, minlength=4) / np.bincount(union.y_train)
        expected = share * np.bincount(union.y_test)
        assert np.abs(np.bincount(data.y_test, minlength=4) - expected).max() <= 1


def test_shared_proportions_hold_in_both_parts():
    """FedHP: 20 % of all data test, with each client's own skew."""
    clients = federate(
        _pool(20000, client=None, recording=None, follows=None),
        DirichletShared(clients=10, alpha=0.3),
        Stratified(test_fraction=0.2),
        seed=2,
    )
    assert sum(len(data.y_test) for data in clients.values()) == 4000
    for data in clients.values():
        counts = [np.bincount(y, minlength=4) for y in (data.y_train, data.y_test)]
        assert min(count.min() for count in counts) >= 2
        assert np.abs(counts[0] / 16000 - counts[1] / 4000).max() < 0.02


def test_in_time_no_test_window_touches_a_training_window():
    for data in federate(_pool(), Natural(), InTime(), seed=0).values():
        train, test = _rows(data)
        taken = set(train)
        assert all(row - 1 not in taken for row in test if row % 50)
        assert all(row + 1 not in taken for row in test if (row + 1) % 50)


@pytest.mark.slow
@pytest.mark.data
def test_in_time_agrees_with_the_split_of_one_persons_windows(data_root):
    """UCI-HAR's 30 people through the pool, and one by one from the published zip."""
    pool = catalogue.load("ucihar", data_root, {"normalise": False})
    clients = federate(pool, Natural(), InTime(test_fraction=0.3), seed=0)
    people = ucihar.load_ucihar(data_root)
    assert len(clients) == 30
    for name, data in clients.items():
        alone = split_in_time(people.of(int(name)), ucihar.CLASSES, test_fraction=0.3)
        assert np.array_equal(data.x_train, alone.x_train)
        assert np.array_equal(data.y_test, alone.y_test)
        assert np.array_equal(data.x_test, alone.x_test)


@pytest.mark.data
def test_fedala_and_fedhp_divide_mnist(data_root):
    """20 clients with at least 40 images each; 100 clients with every class on both sides."""
    pool = catalogue.load("mnist", data_root)
    ala = federate(pool, DirichletBalanced(clients=20), Random(), seed=1)
    sizes = [len(data.y_train) + len(data.y_test) for data in ala.values()]
    assert sum(sizes) == 70000
    assert min(sizes) >= 40
    fedhp = DirichletShared(clients=100, alpha=0.3)
    for data in federate(pool, fedhp, Stratified(test_fraction=0.2), seed=1).values():
        assert min(np.bincount(data.y_train, minlength=10)) >= 2
        assert min(np.bincount(data.y_test, minlength=10)) >= 2


def test_people_without_every_class_or_without_train_rows_are_left_out():
    pool = _pool(y=np.where(np.arange(1200) < 300, 0, np.arange(1200) % 4))
    everybody = federate(pool, Natural(), Stratified(), seed=0)
    complete = federate(pool, Natural(all_classes=True), Stratified(), seed=0)
    assert set(everybody) - set(complete) == {"u0"}
    by_person = _pool(is_test=np.arange(1200) < 300)
    with pytest.raises(InputError, match="nobody has train and test rows"):
        federate(by_person, Natural(), Publisher(), seed=0)
    assert list(federate(pool, Natural(clients=2), Stratified(), seed=0)) == ["u0", "u1"]


def test_one_persons_split_does_not_depend_on_how_many_are_kept():
    few = federate(_pool(), Natural(clients=2), Stratified(), seed=0)
    many = federate(_pool(), Natural(), Stratified(), seed=0)
    assert all(np.array_equal(few[name].x_test, many[name].x_test) for name in few)


@pytest.mark.parametrize("partition", [Natural(), Iid(clients=5)])
def test_rows_of_numbers_are_divided_where_no_class_counts(partition):
    clients = federate(_pool(**_NUMBERS), partition, Random(), seed=3)
    for data in (*clients.values(), pooled(clients)):
        assert (data.classes, data.targets) == ((), ("a", "b"))
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
            assert np.array_equal(y, 2 * x[:, :1] + [[0, 1]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": ("a",)}, "expected names of either classes or targets"),
        ({"classes": ()}, "expected names of either classes or targets"),
        ({**_NUMBERS, "targets": ("a",)}, r"pool: y: expected \(n, 1\), a column for each"),
        ({**_NUMBERS, "y": np.full((1200, 2), np.nan)}, "pool: y contains NaN"),
    ],
)
def test_a_pool_has_names_for_what_it_predicts(changes, message):
    with pytest.raises(InputError, match=message):
        _pool(**changes)


@pytest.mark.parametrize(
    ("partition", "split", "changes", "message"),
    [
        (Natural(), Stratified(), {"client": None}, "no owners"),
        (Natural(), InTime(), {"recording": None}, "no order in time"),
        (Iid(clients=2), InTime(), {}, "expected the partition 'natural', got 'iid'"),
        (Iid(clients=2), Publisher(), {"is_test": None}, "no published test part"),
        (DirichletShared(clients=2, alpha=1.0), Folds(), {}, "got 'folds'"),
        (Iid(clients=1000), Stratified(), {}, "client 'client-000': got"),
        (Natural(), InTime(), _NUMBERS, "at no class, got 'natural' and 'in_time'"),
        (Dirichlet(clients=2, alpha=1.0), Random(), _NUMBERS, "got 'dirichlet' and 'random'"),
    ],
)
def test_what_does_not_fit_together_is_refused(partition, split, changes, message):
    with pytest.raises(InputError, match=message):
        federate(_pool(**changes), partition, split, seed=0)


def test_settings_are_read_from_a_file_by_kind():
    read = msgspec.toml.decode(
        b'partition = {kind = "dirichlet_balanced", clients = 20}\nsplit = {kind = "publisher"}',
        type=msgspec.defstruct("File", [("partition", Partition), ("split", Split)]),
    )
    assert read.partition == DirichletBalanced(clients=20, alpha=0.1, least=40)
    assert read.split == Publisher()
    for wrong in ({"kind": "iid"}, {"kind": "iid", "clients": 0}, {"kind": "iid", "alpha": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Partition)


def test_union_of_all_clients_is_in_id_order():
    clients = federate(_pool(), Iid(clients=3), Random(), seed=0)
    union = pooled(dict(reversed(clients.items())))
    for part in ("x_train", "y_train", "x_test", "y_test", "boxes_train", "boxes_test"):
        parts = [getattr(clients[f"client-00{number}"], part) for number in range(3)]
        assert np.array_equal(getattr(union, part), np.concatenate(parts))


def test_union_of_different_data_is_refused():
    one = federate(_pool(), Iid(clients=2), Random(), seed=0)["client-000"]
    plain = federate(_pool(boxes=None), Iid(clients=2), Random(), seed=0)["client-001"]
    other = federate(_pool(classes=tuple("abcde")), Iid(clients=2), Random(), seed=0)["client-000"]
    assert pooled({"a": plain}).boxes_train is None
    for pair in ({}, {"a": one, "b": other}, {"a": one, "b": plain}):
        with pytest.raises(InputError, match="pooled data"):
            pooled(pair)


def test_removed_classes_are_gone_from_both_parts_with_their_boxes():
    data = federate(_pool(), Iid(clients=2), Random(), seed=0)["client-000"]
    left = without_classes(data, {1, 3})
    assert set(left.y_train) == set(left.y_test) == {0, 2}
    assert left.classes == data.classes
    assert np.array_equal(left.boxes_train[:, 0, 0], left.x_train[:, 0])
    assert np.array_equal(left.x_test, data.x_test[np.isin(data.y_test, [0, 2])])
    assert len(without_classes(data, ()).y_train) == len(data.y_train)
