"""Data sets by name, and their division among clients."""

import numpy as np
import pytest

from protofleet import DeviceData, Pool, hold_out, load_dataset, load_npz, split
from protofleet.errors import InputError, MissingDataError


@pytest.fixture(scope="module")
def pool():
    rng = np.random.default_rng(3)
    y = np.arange(400) % 4
    owners = np.array([f"p{number % 5}" for number in range(400)])
    x = rng.standard_normal((400, 3)).astype(np.float32)
    return Pool(x=x, y=y, classes=("a", "b", "c", "d"), client=owners)


def test_each_owner_is_a_client_and_no_example_is_used_twice(pool):
    clients = split(pool)
    assert list(clients) == ["p0", "p1", "p2", "p3", "p4"]
    parts = [part for one in clients.values() for part in (one.x_train, one.x_test)]
    assert len(np.unique(np.concatenate(parts), axis=0)) == sum(map(len, parts)) == 400
    assert {len(one.x_test) for one in clients.values()} == {20}


def test_the_smaller_alpha_the_more_clients_differ(pool):
    def spread(alpha):
        clients = split(pool, 4, alpha=alpha).values()
        counts = [np.bincount(one.y_train, minlength=4) for one in clients]
        return np.std([row / row.sum() for row in counts])

    assert spread(0.1) > 2 * spread(100.0)
    first, again = split(pool, 4, alpha=0.5, seed=1), split(pool, 4, alpha=0.5, seed=1)
    other = split(pool, 4, alpha=0.5, seed=2)
    np.testing.assert_array_equal(first["client-000"].x_train, again["client-000"].x_train)
    assert not np.array_equal(first["client-000"].x_train, other["client-000"].x_train)


def test_a_share_is_held_out_of_each_class(pool):
    rest, share = hold_out(pool, 0.25)
    assert np.bincount(share.y).tolist() == [25] * 4
    assert np.bincount(rest.y).tolist() == [75] * 4
    assert not {row.tobytes() for row in rest.x} & {row.tobytes() for row in share.x}
    with pytest.raises(InputError, match="fraction above 0 and below 1, got 1"):
        hold_out(pool, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 0}, "expected clients, at least 1, got 0"),
        ({"clients": 2, "alpha": 0.0}, "expected alpha, above 0"),
        ({"clients": 2, "test_fraction": 1.0}, "expected test_fraction"),
        ({"alpha": 1.0}, "give clients, too"),
    ],
)
def test_a_division_that_cannot_be_says_why(pool, arguments, message):
    with pytest.raises(InputError, match=message):
        split(pool, **arguments)


def test_data_sets_are_loaded_by_name(monkeypatch, tmp_path):
    digits = load_dataset("digits")
    assert digits.x.shape == (1797, 1, 8, 8)
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=str(tmp_path)):
        load_dataset("ucihar")
    with pytest.raises(InputError, match="data set 'digit': unknown"):
        load_dataset("digit")


def test_a_client_s_file_is_read(pool, tmp_path):
    own = split(pool)["p0"]
    own.save(tmp_path / "own.npz")
    found = load_npz(str(tmp_path / "own.npz"))
    assert isinstance(found, DeviceData)
    np.testing.assert_array_equal(found.x_train, own.x_train)


def test_examples_whose_steps_have_classes_are_divided_by_that_of_most():
    steps = np.repeat(np.arange(3), 40)[:, None].repeat(5, axis=1)
    steps[::2, 3:] = (steps[::2, 3:] + 1) % 3
    x = np.arange(120 * 5, dtype=np.float32).reshape(120, 5, 1)
    pool = Pool(x=x, y=steps, classes=("a", "b", "c"))
    rest, share = hold_out(pool, 0.25)
    assert (rest.y.shape, share.y.shape) == ((90, 5), (30, 5))
    assert np.bincount(share.y[:, 0]).tolist() == [10, 10, 10]
    clients = split(pool, 3, alpha=0.3)
    rows = np.concatenate([np.concatenate([c.x_train, c.x_test]) for c in clients.values()])
    assert sorted(rows[:, 0, 0].tolist()) == x[:, 0, 0].tolist()
    for one in clients.values():
        places = (one.x_train[:, 0, 0] // 5).astype(int)
        np.testing.assert_array_equal(one.y_train, steps[places])
