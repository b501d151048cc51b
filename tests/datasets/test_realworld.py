"""The published zips are not at hand: every file here is written by a test, in their layout."""

import io
import zipfile

import numpy as np
import pytest

from protofleet.datasets.hhar import COMBINED_CLASSES
from protofleet.datasets.realworld import CLASSES, realworld_pool
from protofleet.errors import InputError, MissingDataError

_HEADER = "id,attr_time,attr_x,attr_y,attr_z"


def _csv(x):
    """A table whose y is x + 1 and whose z is x + 2."""
    rows = [f"{i + 1},{1435991776000 + 20 * i},{v},{v + 1},{v + 2}" for i, v in enumerate(x)]
    return "\n".join([_HEADER, *rows]) + "\n"


def _zip(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


def _write(root, path, content):
    target = root / "realworld" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode())


def _recording(root, person, activity, position, *signals):
    """Both sensors' zips of one activity, with one position in them."""
    acc, gyro = signals
    data = f"proband{person}/data"
    table = {f"acc_{activity}_{position}.csv": _csv(acc), "readMe": "x"}
    _write(root, f"{data}/acc_{activity}_csv.zip", _zip(table))
    table = {f"Gyroscope_{activity}_{position}.csv": _csv(gyro), "readMe": "x"}
    _write(root, f"{data}/gyr_{activity}_csv.zip", _zip(table))


def test_windows_of_a_recording(tmp_path):
    """400 samples: starts 0, 64 … 256; six channels; y of the file is x + 1."""
    acc, gyro = np.arange(400.0), -np.arange(400.0)
    _recording(tmp_path, 3, "walking", "head", acc, gyro)
    pool = realworld_pool(tmp_path, normalise=False)
    assert pool.x.shape == (5, 128, 6)
    assert pool.x[:, 0].tolist() == [
        [s, s + 1, s + 2, -s, 1 - s, 2 - s] for s in (0, 64, 128, 192, 256)
    ]
    assert pool.client.tolist() == ["3_head"] * 5
    assert pool.y.tolist() == [CLASSES.index("Walking")] * 5
    assert pool.follows.tolist() == [False, True, True, True, True]


def test_window_that_ends_exactly_at_the_end_is_not_used(tmp_path):
    _recording(tmp_path, 1, "lying", "shin", np.zeros(256), np.zeros(256))
    assert len(realworld_pool(tmp_path, normalise=False).y) == 2


def test_zips_in_zips_are_recordings_of_their_own(tmp_path):
    """As persons 4, 7 and 14 have them for the stairs."""
    values = {1: np.full(200, 1.0), 2: np.full(300, 2.0)}
    for sensor, table in (("acc", "acc"), ("gyr", "Gyroscope")):
        inner = {
            f"{sensor}_climbingup_{k}_csv.zip": _zip({f"{table}_climbingup_waist.csv": _csv(x)})
            for k, x in values.items()
        }
        _write(tmp_path, f"proband4/data/{sensor}_climbingup_csv.zip", _zip(inner))
    pool = realworld_pool(tmp_path, normalise=False)
    assert pool.x[:, 0, 0].tolist() == [1, 1, 2, 2, 2]
    assert pool.recording.tolist() == [0, 0, 1, 1, 1]
    assert pool.follows.tolist() == [False, True, False, True, True]
    assert pool.classes[pool.y[0]] == "Upstairs"


def test_numbered_tables_are_recordings_of_their_own(tmp_path):
    data = "proband6/data"
    for name, value in (("", 1.0), ("_2", 2.0)):
        for sensor in ("acc", "Gyroscope"):
            text = _csv(np.full(200, value))
            _write(tmp_path, f"{data}/{sensor}_sitting{name}_chest.csv", text)
    pool = realworld_pool(tmp_path, normalise=False)
    assert pool.x[:, 0, 0].tolist() == pool.x[:, 0, 3].tolist() == [1, 1, 2, 2]


def test_whole_zip_unpacked_folders_and_loose_tables_give_the_same(tmp_path):
    rng = np.random.default_rng(0)
    acc, gyro = rng.normal(size=(2, 500))
    _recording(tmp_path / "folders", 2, "running", "thigh", acc, gyro)
    data = tmp_path / "folders" / "realworld" / "proband2" / "data"
    whole = _zip({f"proband2/data/{p.name}": p.read_bytes() for p in data.iterdir()})
    _write(tmp_path / "whole", "realworld2016_dataset.zip", whole)
    for name, values in (("acc", acc), ("Gyroscope", gyro)):
        path = f"proband2/data/{name}_running_thigh.csv"
        _write(tmp_path / "loose", path, _csv(values))
    first, *others = (realworld_pool(tmp_path / way) for way in ("folders", "whole", "loose"))
    assert len(first.y) == 6
    for other in others:
        assert np.array_equal(first.x, other.x)
        assert np.array_equal(first.client, other.client)


def test_a_table_that_is_there_packed_and_unpacked_counts_once(tmp_path):
    _recording(tmp_path, 5, "jumping", "head", np.zeros(300), np.zeros(300))
    _write(tmp_path, "proband5/data/acc_jumping_head.csv", _csv(np.ones(300)))
    pool = realworld_pool(tmp_path, normalise=False)
    assert len(pool.y) == 3
    assert (pool.x[:, :, 0] == 1).all()


@pytest.mark.parametrize(("acc", "gyro"), [(1000, 1400), (1400, 1000)])
def test_the_longer_sensor_is_resampled_to_the_shorter(tmp_path, acc, gyro):
    """Both show the same slow wave over the same time, so after that they agree."""
    waves = [np.sin(np.linspace(0, 6, count)) for count in (acc, gyro)]
    _recording(tmp_path, 1, "standing", "chest", *waves)
    pool = realworld_pool(tmp_path, normalise=False)
    assert len(pool.y) == 14
    assert np.abs(pool.x[:, :, 0] - pool.x[:, :, 3]).max() < 0.01


def test_a_difference_of_up_to_100_samples_is_left_alone(tmp_path):
    _recording(tmp_path, 1, "standing", "chest", np.arange(1000.0), np.arange(1100.0))
    pool = realworld_pool(tmp_path, normalise=False)
    assert len(pool.y) == 14
    assert np.array_equal(pool.x[:, :, 0], pool.x[:, :, 3])


def test_published_slip_puts_the_accelerometer_into_the_gyroscopes_place(tmp_path):
    """And a recording whose numbers of windows then differ by more than ten is left out."""
    _recording(tmp_path, 1, "standing", "chest", np.ones(1400), np.full(1000, 7.0))
    _recording(tmp_path, 1, "sitting", "chest", np.ones(1900), np.full(1000, 7.0))
    pool = realworld_pool(tmp_path, normalise=False, published_slip=True)
    assert len(pool.y) == 14
    assert np.abs(pool.x[:, :, 3] - 1).max() < 1e-3


def test_watch_and_phones_are_normalised_apart(tmp_path):
    rng = np.random.default_rng(0)
    for position, scale in (("forearm", 9.0), ("waist", 2.0), ("head", 2.0)):
        acc, gyro = rng.normal(scale, scale, (2, 1000))
        _recording(tmp_path / position, 1, "walking", position, acc, gyro)
        for path in (tmp_path / position / "realworld" / "proband1" / "data").iterdir():
            _write(tmp_path, f"proband1/data/{position}/{path.name}", path.read_bytes())
    pool = realworld_pool(tmp_path)
    watch = pool.client == "1_forearm"
    assert len(np.unique(pool.client)) == 3
    for part in (pool.x[watch], pool.x[~watch]):
        for sensor in (slice(0, 3), slice(3, 6)):
            assert abs(part[:, :, sensor].mean(dtype=np.float64)) < 1e-5
            assert abs(part[:, :, sensor].std(dtype=np.float64) - 1) < 1e-5


def test_windows_of_a_client_are_ordered_by_activity(tmp_path):
    """In FedAli's order of the activities, from which its folds are dealt."""
    for activity in ("walking", "climbingdown", "jumping"):
        _recording(tmp_path, 1, activity, "head", np.zeros(200), np.zeros(200))
    pool = realworld_pool(tmp_path)
    names = [CLASSES[label] for label in pool.y]
    assert names == ["Downstairs"] * 2 + ["Walking"] * 2 + ["Jumping"] * 2


def test_combined_classes_are_those_of_the_specification(tmp_path):
    """RealWorld's classes in order become 4, 3, 6, 0, 1, 2, 7, 8."""
    activities = (
        "climbingdown", "climbingup", "running", "sitting", "standing", "walking", "lying",
        "jumping",
    )  # fmt: skip
    for activity in activities:
        _recording(tmp_path, 1, activity, "head", np.zeros(129), np.zeros(129))
    pool = realworld_pool(tmp_path, combined_classes=True)
    assert pool.y.tolist() == [4, 3, 6, 0, 1, 2, 7, 8]
    assert pool.classes == COMBINED_CLASSES


def test_a_recording_without_gyroscope_is_left_out(tmp_path):
    _recording(tmp_path, 1, "walking", "head", np.zeros(200), np.zeros(200))
    table = {"acc_lying_head.csv": _csv(np.zeros(200))}
    _write(tmp_path, "proband1/data/acc_lying_csv.zip", _zip(table))
    assert set(realworld_pool(tmp_path).y.tolist()) == {CLASSES.index("Walking")}


def test_malformed_line_is_named_through_all_archives(tmp_path):
    text = _csv(np.zeros(5)) + "6,1,0.5,oops,1\n"
    archive = _zip({"acc_walking_head.csv": text})
    _write(tmp_path, "proband1/data/acc_walking_csv.zip", archive)
    gyro = _zip({"Gyroscope_walking_head.csv": _csv(np.zeros(5))})
    _write(tmp_path, "proband1/data/gyr_walking_csv.zip", gyro)
    message = r"acc_walking_csv\.zip:acc_walking_head\.csv' line 7: expected .*attr_y \(number\)"
    with pytest.raises(InputError, match=message):
        realworld_pool(tmp_path)


def test_broken_zip_is_named(tmp_path):
    _write(tmp_path, "proband1/data/acc_walking_csv.zip", b"no zip")
    with pytest.raises(InputError, match=r"acc_walking_csv\.zip': not a readable zip"):
        realworld_pool(tmp_path)


def test_absent_data_say_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"put the published 'realworld2016_dataset\.zip'"):
        realworld_pool(tmp_path)
