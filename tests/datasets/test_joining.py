"""Several data sets as one pool: names of classes, a few people of each, who follows whom."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.datasets.catalogue import load
from protofleet.datasets.joining import first_people, joined, outsiders, renamed, taken
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError


def _pool(labels, classes, *, width=3, **more):
    y = np.array(labels, np.int64)
    x = np.arange(len(y), dtype=np.float32)[:, None] + np.zeros(width, np.float32)
    more.setdefault("client", np.array(list("bba" * len(y))[: len(y)]))
    return Pool(x=x, y=y, classes=classes, **more)


def test_classes_are_renamed_and_those_of_one_new_name_are_one_class():
    pool = renamed(_pool([0, 1, 2, 0], ("Up", "Sit", "Down")), {"Up": "stairs", "Down": "stairs"})
    assert pool.classes == ("stairs", "Sit")
    assert pool.y.tolist() == [0, 1, 0, 0]
    with pytest.raises(InputError, match=r"'up' is no class; the data set has Up, Sit, Down"):
        renamed(_pool([0, 1, 2, 0], ("Up", "Sit", "Down")), {"up": "stairs"})


def test_the_first_people_by_name_are_kept():
    pool = first_people(_pool([0, 1, 2, 0], ("x", "y", "z")), 1)
    assert (pool.client.tolist(), pool.y.tolist(), pool.x[:, 0].tolist()) == (["a"], [2], [2.0])
    with pytest.raises(InputError, match="no owners"):
        first_people(_pool([0], ("x",), client=None), 1)


def test_outsiders_are_everybody_else():
    pool = _pool([0, 0, 0, 0], ("x",))
    assert outsiders(pool, {"b"}).x[:, 0].tolist() == [2.0]
    with pytest.raises(InputError, match="pretraining: expected people who are no clients"):
        outsiders(pool, {"a", "b"})


def test_a_window_follows_none_that_is_left_out():
    follows, is_test = np.array([False, True, True, True]), np.array([True, True, False, False])
    pool = _pool([0, 1, 0, 0], ("x", "y"), follows=follows, is_test=is_test)
    left = taken(pool, pool.y == 0)
    assert left.follows.tolist() == [False, False, True]
    assert left.is_test.tolist() == [True, False, False]


FIRST = ("walking", "sitting", "laying")
SECOND = ("biking", "walking", "sitting")


def _both(**how):
    parts = [("p", _pool([0, 1, 2, 2], FIRST)), ("q", _pool([0, 1, 2, 0], SECOND))]
    return joined(parts, **how)


def test_a_union_numbers_classes_by_their_first_appearance():
    pool = _both(classes="union")
    assert pool.classes == ("walking", "sitting", "laying", "biking")
    assert pool.y.tolist() == [0, 1, 2, 2, 3, 0, 1, 3]
    assert pool.client.tolist() == ["p-b", "p-b", "p-a", "p-b", "q-b", "q-b", "q-a", "q-b"]


def test_an_intersection_leaves_out_the_examples_of_the_others():
    pool = _both(classes="intersection")
    assert pool.classes == ("walking", "sitting")
    assert pool.y.tolist() == [0, 1, 0, 1]
    assert pool.x[:, 0].tolist() == [0.0, 1.0, 1.0, 2.0]
    with pytest.raises(InputError, match=r"no class is in every data set; they have x; y"):
        joined([("p", _pool([0], ("x",))), ("q", _pool([0], ("y",)))], "intersection")


def test_the_same_classes_in_another_order_are_numbered_alike():
    parts = [("p", _pool([0, 1, 2], FIRST)), ("q", _pool([0, 1, 2], FIRST[::-1]))]
    for how in ("union", "intersection"):
        pool = joined(parts, how)
        assert (pool.classes, pool.y.tolist()) == (FIRST, [0, 1, 2, 2, 1, 0])
    with pytest.raises(InputError, match="'q': expected classes"):
        joined(parts)


def test_a_single_common_class_is_enough():
    parts = [("p", _pool([0, 1], ("x", "y"))), ("q", _pool([1, 0, 1], ("z", "x")))]
    pool = joined(parts, "intersection")
    assert (pool.classes, pool.y.tolist()) == (("x",), [0, 0, 0])
    assert pool.x[:, 0].tolist() == [0.0, 0.0, 2.0]


def test_other_classes_shapes_or_no_owners_are_refused():
    with pytest.raises(InputError, match=r"'q': expected classes .* set classes to union"):
        _both()
    wide = _pool([0], FIRST, width=4)
    with pytest.raises(InputError, match=r"'q': expected owners and examples \(3,\) as in 'p'"):
        joined([("p", _pool([0], FIRST)), ("q", wide)], "union")
    with pytest.raises(InputError, match="got no owners"):
        joined([("p", _pool([0], FIRST)), ("q", _pool([0], FIRST, client=None))])


def test_recordings_of_several_data_sets_have_numbers_of_their_own():
    parts = [
        (
            name,
            _pool(
                [0, 0],
                ("x",),
                recording=np.arange(2),
                follows=np.array([False, True]),
                is_test=np.array([True, False]),
            ),
        )
        for name in "pq"
    ]
    pool = joined(parts)
    assert pool.recording.tolist() == [0, 1, 2, 3]
    assert pool.follows.tolist() == [False, True] * 2
    assert pool.is_test.tolist() == [True, False] * 2
    some = joined([*parts, ("r", _pool([0], ("x",)))])
    assert (some.recording, some.follows, some.is_test) == (None, None, None)


@pytest.mark.data
@pytest.mark.slow(seconds=3)
def test_people_of_three_data_sets_share_a_vocabulary(data_root):
    """Accelerometers of UCI-HAR, HHAR and WISDM at one scale, with five classes in common."""
    uci = load("ucihar", data_root, {"channels": "accelerometer", "normalise": "person"})
    hhar = renamed(
        load("hhar_windows", data_root),
        {
            "walk": "walking",
            "stairsup": "upstairs",
            "stairsdown": "downstairs",
            "sit": "sitting",
            "stand": "standing",
        },
    )
    wisdm = load("wisdm_windows", data_root)
    wisdm = renamed(wisdm, {name: name.lower() for name in wisdm.classes})
    parts = [("ucihar", uci), ("hhar_windows", hhar), ("wisdm_windows", wisdm)]
    every = joined(parts, "union")
    assert every.x.shape == (10299 + 4436 + 7292, 128, 3)
    assert every.classes[5:] == ("laying", "bike", "jogging")
    assert len(np.unique(every.client)) == 30 + 9 + 36
    common = joined(parts, "intersection")
    assert common.classes == ("walking", "upstairs", "downstairs", "sitting", "standing")
    assert len(common.y) == (10299 - 1944) + (4436 - 854) + (7292 - 2287)
    # The excerpts' scale is that of a part that is not here, hence not one to the last digit.
    for _, pool in parts:
        mine = pool.x[pool.client == pool.client[0]].astype(np.float64)
        assert np.abs(mine.mean(axis=0)).max() < 0.5
        assert np.abs(np.log(mine.std(axis=0))).max() < np.log(2)
