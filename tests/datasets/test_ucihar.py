import numpy as np
import pytest

from protofleet.datasets import ucihar
from protofleet.datasets.windows import normalise, split_in_time
from protofleet.errors import InputError, MissingDataError

pytestmark = [pytest.mark.data, pytest.mark.slow(seconds=1)]


@pytest.fixture(scope="module")
def people(data_root):
    return ucihar.load_ucihar(data_root)


def test_counts_are_the_published_ones(people):
    """10 299 windows, 30 people, classes as the published label files count them."""
    assert people.windows.x.shape == (10299, 128, 6)
    assert np.unique(people.subject).tolist() == list(range(1, 31))
    assert np.bincount(people.windows.y).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert people.windows.follows.sum() == 6752 + 2690


def test_acceleration_at_rest_is_one_g(people):
    resting = people.windows.x[people.windows.y == ucihar.CLASSES.index("standing"), :, :3]
    assert 0.98 < np.linalg.norm(resting, axis=2).mean() < 1.05


def test_split_shares_no_sample(people):
    """No half window of a test part stands in the same person's train part."""
    for subject in (1, 14, 30):
        data = split_in_time(people.of(subject), ucihar.CLASSES)
        halves = {half.tobytes() for x in data.x_train for half in (x[:64], x[64:])}
        assert not any(half.tobytes() in halves for x in data.x_test for half in (x[:64], x[64:]))


def test_split_is_in_time_order_inside_each_activity(people):
    mine = people.of(7)
    order = {x.tobytes(): position for position, x in enumerate(mine.x)}
    data = split_in_time(mine, ucihar.CLASSES)
    for label in range(6):
        last = max(order[x.tobytes()] for x in data.x_train[data.y_train == label])
        first = min(order[x.tobytes()] for x in data.x_test[data.y_test == label])
        assert last < first


def test_split_keeps_every_class_and_about_thirty_percent(people):
    for subject in range(1, 31):
        data = split_in_time(people.of(subject), ucihar.CLASSES)
        assert set(data.y_train) == set(data.y_test) == set(range(6))
        share = len(data.y_test) / (len(data.y_test) + len(data.y_train))
        assert 0.25 < share < 0.31


def test_recordings_hold_the_windows(people):
    """Cutting a rebuilt recording again gives the published windows back."""
    mine = people.of(3)
    again = [
        signal[start : start + 128]
        for signal, _ in ucihar.recordings(mine)
        for start in range(0, len(signal) - 127, 64)
    ]
    assert np.array_equal(np.stack(again), mine.x)


def test_pool_is_everybody_with_the_published_parts(data_root, people):
    """9 test people with 2 947 windows; runs of overlapping windows are recordings."""
    pool = ucihar.ucihar_pool(data_root, normalise=False)
    assert np.array_equal(pool.x, people.windows.x)
    assert np.bincount(pool.y).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert pool.is_test.sum() == 2947
    test_people = {"2", "4", "9", "10", "12", "13", "18", "20", "24"}
    assert set(pool.client[pool.is_test].tolist()) == test_people
    assert len(set(pool.client.tolist())) == 30
    assert len(set(pool.recording.tolist())) == (~pool.follows).sum() == 10299 - 6752 - 2690
    same = pool.recording[1:] == pool.recording[:-1]
    assert np.array_equal(same, pool.follows[1:])
    keys = {*zip(pool.recording, pool.client, pool.y, strict=True)}
    assert len(keys) == pool.recording.max() + 1, "one person and activity in each recording"


def test_pool_is_normalised_by_one_scalar_per_sensor(data_root, people):
    pool = ucihar.ucihar_pool(data_root)
    expected = normalise(people.windows, *ucihar.normalisation(people.windows)).x
    assert np.abs(pool.x - expected).max() < 1e-4


def test_the_accelerometer_alone_has_the_scale_that_it_has_beside_the_gyroscope(data_root):
    alone = ucihar.ucihar_pool(data_root, channels="accelerometer")
    assert np.array_equal(alone.x, ucihar.ucihar_pool(data_root).x[:, :, :3])


def test_turning_is_the_mean_length_of_the_angular_velocity(data_root, people):
    pool = ucihar.ucihar_turning_pool(data_root)
    every, windows = ucihar.ucihar_pool(data_root, channels="accelerometer"), people.windows
    places = {x.tobytes(): number for number, x in enumerate(every.x)}
    rows = np.array([places[x.tobytes()] for x in pool.x])
    assert not (every.follows[rows[1:]] & (np.diff(rows) == 1)).any(), "none shares a sample"
    assert (~every.follows).sum() <= len(rows) < 0.7 * len(every.y)
    speed = np.sqrt((windows.x[rows, :, 3:].astype(np.float64) ** 2).sum(axis=2)).mean(axis=1)
    np.testing.assert_allclose(pool.y[:, 0], 180 / np.pi * speed, rtol=1e-5)
    assert (pool.targets, pool.classes) == (("turning",), ())
    assert np.array_equal(pool.client, every.client[rows])
    assert pool.y[every.y[rows] == 0].mean() > 5 * pool.y[every.y[rows] == 5].mean()


def test_standardised_people_have_mean_zero_and_deviation_one_everywhere(data_root, people):
    x = ucihar.ucihar_pool(data_root, channels="accelerometer", normalise="person").x
    assert x.shape == (10299, 128, 3)
    for subject in (1, 30):
        mine = x[people.subject == subject].astype(np.float64)
        assert np.abs(mine.mean(axis=0)).max() < 1e-5
        assert np.abs(mine.std(axis=0) - 1).max() < 1e-5
        raw = people.of(subject).x[:, 17, 2].astype(np.float64)
        assert np.abs(mine[:, 17, 2] - (raw - raw.mean()) / raw.std()).max() < 1e-5


def test_absent_zip_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"put the published 'UCI HAR Dataset\.zip' at"):
        ucihar.load_ucihar(tmp_path)


def test_unknown_person_is_refused(people):
    with pytest.raises(InputError, match="subject 31"):
        people.of(31)


def test_normalised_channels_have_mean_zero_and_deviation_one_per_sensor(people):
    mean, std = ucihar.normalisation(people.windows)
    x = normalise(people.windows, mean, std).x
    for sensor in (slice(0, 3), slice(3, 6)):
        assert abs(x[:, :, sensor].mean(dtype=np.float64)) < 1e-4
        assert abs(x[:, :, sensor].std(dtype=np.float64) - 1) < 1e-4
