"""Examples to predict, from files and from streams that are still open."""

from __future__ import annotations

import io
import os
import threading
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.csv_rows import is_value
from protofleet.edge.data.examples import load_examples, read_csv
from protofleet.edge.data.intake import SensorIntake
from protofleet.edge.data.sample_times import to_time
from protofleet.errors import InputError, MissingDataError

_CLASSES = ("class0", "class1", "class2")
_SENSOR = Preprocessing(
    input_shape=(8, 2),
    rate_hz=10.0,
    window=8,
    hop=4,
    channels=("ax", "ay"),
    mean=(1.0, 2.0),
    std=(2.0, 4.0),
)


@pytest.fixture
def manifest(world):
    return world.bundle.manifest


@pytest.fixture
def sensor(manifest):
    return msgspec.structs.replace(manifest, preprocessing=_SENSOR)


def _read(text: str, manifest, **options):
    return list(read_csv(io.BytesIO(text.encode()), "data", manifest, **options))


def test_rows_are_examples_with_and_without_a_header(manifest):
    (plain,) = _read("1,2,3,4\n\n5,6,7,8\n", manifest)
    np.testing.assert_array_equal(plain.x, [[1, 2, 3, 4], [5, 6, 7, 8]])
    assert plain.y.tolist() == [-1, -1]
    named, last = _read("a,b,label,c,d\r\n1,2,class2,3,4\r\n5,6,1,7,8\r\n9,9,,9,9", manifest)
    np.testing.assert_array_equal(named.x, plain.x)
    assert [*named.y, *last.y] == [2, 1, -1]


def test_named_channels_come_in_whatever_order(manifest):
    inputs = Preprocessing(input_shape=(2,), channels=("ax", "ay"))
    named = msgspec.structs.replace(manifest, preprocessing=inputs)
    (found,) = _read("ay,ax\n1,2\n", named)
    np.testing.assert_array_equal(found.x, [[2, 1]])
    with pytest.raises(InputError, match=r"channels ax, ay.*got the columns ay, az"):
        _read("ay,az\n1,2\n", named)


def test_quotes_around_cells_are_no_part_of_them(manifest):
    (found,) = _read('"a","b","c, d","e"\n"1",2,3,"4"\n', manifest)
    np.testing.assert_array_equal(found.x, [[1, 2, 3, 4]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a CSV, got nothing"),
        ("a,b\n1,2\n", "4 numbers of an example in each row .*got the columns a, b"),
        ("1,2,3,4\n1,2,3\n", "line 2: expected 4 columns as in the first row, got 3"),
        ("1,2,3,4\n1,2,x,4\n", "line 2, column 3: expected a number, got 'x'"),
        ("a,b,c,d\n1,2,x,4\n", r"line 2, column 3 \('c'\): expected a number, got 'x'"),
        ("a,b,c,d\n1,2,,4\n", r"line 2, column 3 \('c'\): expected a number, got an empty cell"),
        ("a,b,c,d\n1,NA,3,4\n", r"line 2, column 2 \('b'\): expected a number, got NA"),
        ("1,null,3,4\n", "line 1, column 2: expected a number, got null"),
        ("1,2,3,-inf\n", "line 1, column 4: expected a number, got -inf"),
        ("\xff", "expected"),
        ("a,b,a,b\n1,2,3,4\n", "expected one column 'a', got several"),
        ("a,b,c,d\r1,2,3,4\r", "line 1: not a row of a CSV .*new-line"),
        (f"1,2,3,4\n1,2,3,{'1' * 200_000}\n", "line 2: not a row of a CSV .*field limit"),
        ('1,2,3,4\n1,2,3,"4\n1,2,3,4\n', "line 2: not a row of a CSV .*unexpected end"),
    ],
)
def test_what_is_no_table_of_examples_is_named_with_its_line(manifest, text, words):
    with pytest.raises(InputError, match=words):
        _read(text, manifest)


@pytest.mark.parametrize("word", ["NA", "null", "NULL", "na", ""])
def test_words_of_r_and_sql_for_no_value_are_no_label(manifest, word):
    (found,) = _read(f"a,b,c,d,label\n1,2,3,4,{word}\n1,2,3,4,class1\n", manifest)
    assert found.y.tolist() == [-1, 1]
    named = msgspec.structs.replace(manifest, classes=("NA", "b", "c"))
    (found,) = _read(f"a,b,c,d,label\n1,2,3,4,{word}\n", named)
    assert found.y.tolist() == [0 if word == "NA" else -1]


def _samples(rate_hz: float, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    times = np.arange(0, seconds, 1 / rate_hz)
    return times, np.stack([np.sin(times), np.cos(2 * times)], axis=1)


def _csv(times, values, labels=None, header="time_s,ay,ax", scale=1.0) -> str:
    lines = [header + (",label" if labels is not None else "")]
    for k, (time_s, (ax, ay)) in enumerate(zip(times, values, strict=True)):
        extra = "" if labels is None else f",{labels[k]}"
        lines.append(f"{time_s * scale:.6f},{ay:.9f},{ax:.9f}{extra}")
    return "\n".join(lines) + "\n"


def test_sensor_samples_become_windows_as_the_intake_makes_them(sensor):
    """Resampled from 25 Hz, which nobody said, and normalised; other columns are passed over."""
    times, values = _samples(25.0, 6.0)
    intake = SensorIntake(_SENSOR, {"one": 25.0})
    expected = [*intake.push("one", times, values), *intake.flush()]
    text = _csv(times, values).replace("\n", ",9\n").replace("ax,9", "ax,battery", 1)
    found = _read(text, sensor)
    x = np.concatenate([block.x for block in found])
    assert all(block.normalised for block in found)
    np.testing.assert_allclose(x, [window.x for window in expected], atol=1e-5)
    starts = np.concatenate([block.start_s for block in found])
    np.testing.assert_allclose(starts, [window.start_s for window in expected])


@pytest.mark.parametrize(
    ("header", "rows", "words"),
    [
        ("time_s,ax", "0,1", r"time_s, ax; it lacks ay; --mapping FILE\.toml is for"),
        ("time_s,AX,BX", "0,1,2", r"got the columns time_s, AX, BX; --mapping FILE\.toml"),
        ("0,1,2", "1,1,2", r"got the columns .*; --columns NAME,\.\.\. names them where no row"),
        ("time_s,ax,ay", "0,1,2\n0.1,1,2", r"a window, 8 at 10 Hz, got 2$"),
        ("time_s,ax,ay", "5,1,2\n4,1,2\n3,1,2", r"got 5, 4, 3, …; sort the rows by 'time_s'$"),
    ],
)
def test_what_is_no_recording_is_answered_with_the_remedy(sensor, header, rows, words):
    with pytest.raises(InputError, match=words):
        _read(f"{header}\n{rows}\n", sensor)


_SLOW = "; a sensor as slow as that needs a bundle of a lower rate_hz"


@pytest.mark.parametrize(
    ("rate_hz", "column", "scale", "hint"),
    [
        (10.0, "time_s", 1e3, "; if it holds milliseconds, rename it time_ms"),
        (
            10.0,
            "time_s",
            1e6,
            "; if it holds microseconds, rename it and name it with --time",
        ),
        (
            10.0,
            "time_ms",
            1e9,
            "; if it holds nanoseconds, rename it and name it with --time",
        ),
        (1.0, "time_s", 1.0, _SLOW),
        (2.0, "time_s", 1.0, _SLOW),
        (2.0, "time_ms", 1e3, _SLOW),
    ],
)
def test_times_that_make_most_samples_of_none_are_refused(sensor, rate_hz, column, scale, hint):
    """With another unit in mind only where that gives the rate."""
    times, values = _samples(rate_hz, 50.0)
    text = _csv(times, values, header=f"{column},ay,ax", scale=scale)
    words = f"about 10 samples a second, at least a quarter, got .* by its column '{column}'{hint}$"
    for option in ({}, {"rate_hz": 10.0}):
        with pytest.raises(InputError, match=words):
            _read(text, sensor, **option)


@pytest.mark.parametrize("rate_hz", [2.5, 4.0, 7.0, 10.0, 25.0])
def test_a_slow_sensor_s_windows_are_its_own(sensor, rate_hz, caplog):
    times, values = _samples(rate_hz, 50.0)
    found = np.concatenate([one.x for one in _read(_csv(times, values), sensor)])
    assert len(found) > 110
    assert "left out" not in caplog.text


def test_times_of_a_unit_that_is_too_short_are_doubted_and_named_where_no_window_comes(
    sensor, caplog
):
    times, values = _samples(10.0, 50.0)
    words = r"got 500 in 0.0499 s by 'time_ms'; if it holds seconds, rename it time_s$"
    with pytest.raises(InputError, match=words):
        _read(_csv(times, values, header="time_ms,ay,ax"), sensor)
    assert "1e+04 samples a second by its column 'time_ms', the bundle wants 10; if" in caplog.text


def test_what_was_amiss_stands_where_no_window_comes(sensor):
    times, values = _samples(10.0, 50.0)
    gaps = times + np.floor(times / 0.6) * 3
    words = r"got 500 in 298.9 s by 'time_s'; not used: \d+ gaps$"
    with pytest.raises(InputError, match=words):
        _read(_csv(gaps, values), sensor)


def test_windows_of_too_few_readings_are_left_out_and_told_while_the_stream_is_open(sensor, caplog):
    """Ten seconds in which two of three readings are lost, each within what may be silent."""
    times, values = _samples(10.0, 40.0)
    kept = (times < 15) | (times >= 25) | (np.arange(len(times)) % 3 == 0)
    lines = _csv(times[kept], values[kept]).splitlines(keepends=True)
    with _open_pipe("".join(lines[:220]), "".join(lines[220:])) as (source, seen):
        blocks = read_csv(source, "pipe", sensor)
        found = [next(blocks)]
        while found[-1].start_s[-1] < 25:
            found.append(next(blocks))
        assert not seen.is_set()
        words = "pipe: the window at 15.20 is left out: expected readings for 4 of its 8 samples"
        assert words in caplog.text
        seen.set()
        found += blocks
    starts = np.concatenate([one.start_s for one in found])
    assert not ((starts > 14.9) & (starts < 24.3)).any()
    assert "samples that were not used: 23 interpolated windows" in caplog.text


_TIMES, _VALUES = _samples(10.0, 5.0)
_PLAIN = _csv(_TIMES, _VALUES, ["class1"] * 50)


def _with_commas(text: str) -> str:
    """As a spreadsheet of a country with decimal commas writes it."""
    return text.replace(",", ";").replace(".", ",")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (_PLAIN.encode("utf-8-sig"), ""),
        (_PLAIN.encode("utf-16"), ""),
        (b"\xfe\xff" + _PLAIN.encode("utf-16-be"), ""),
        (_PLAIN.replace("\n", "\r\n").encode(), ""),
        (_with_commas(_PLAIN).encode(), "semicolons"),
        (_PLAIN.replace(",", "\t").encode(), "tabs"),
        (_PLAIN.replace(",", "|").encode(), "bars"),
        (_PLAIN.replace(",", "   ").encode(), "blanks"),
        (_PLAIN.replace("\n", ",\n").encode(), ""),
        (_PLAIN.replace("\n", ",\n").replace("label,", "label", 1).encode(), ""),
        (f"# logger 2.1\n# 2024-05-01\n\n{_PLAIN}".encode(), ""),
        (f"Recorded by a logger\nstart,12:00,Mode,3,x\n{_PLAIN}".encode(), "2 lines before"),
        (f"{_PLAIN}5.0,0.1".encode(), "line 52: the last row is cut off"),
        (
            _PLAIN.replace("\n", ",Stra\xdfe\n")
            .replace("label,Straße", "label,road", 1)
            .encode("latin-1"),
            "not UTF-8 (the byte 0xdf)",
        ),
    ],
    ids=[
        "mark",
        "utf16",
        "utf16-be",
        "crlf",
        "semicolons",
        "tabs",
        "bars",
        "blanks",
        "closed",
        "closed but for the names",
        "comments",
        "logger's lines",
        "cut off",
        "latin1",
    ],
)
def test_a_table_is_read_however_it_is_written(sensor, caplog, data, said):
    caplog.set_level("INFO")
    found = list(read_csv(io.BytesIO(data), "data", sensor))
    plain = _read(_PLAIN, sensor)
    for name in ("x", "y", "start_s"):
        one, other = (
            np.concatenate([getattr(block, name) for block in blocks]) for blocks in (found, plain)
        )
        np.testing.assert_array_equal(one, other)
    assert said in caplog.text


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1,5", 1.5),
        ("-0,25", -0.25),
        ("1.234,5", 1234.5),
        (",5", 0.5),
        ("2,5e-3", 0.0025),
        ("3.5", 3.5),
        ("12", 12),
    ],
)
def test_a_decimal_comma_is_a_point_where_no_comma_stands_between_cells(manifest, cell, number):
    (found,) = list(read_csv(io.BytesIO(f"{cell};0;0;0\n".encode()), "data", manifest))
    assert found.x[0][0] == number


def test_labels_that_are_no_classes_are_told_once_and_count_as_none(sensor, manifest, caplog):
    text = "a,b,c,d,label\n1,2,3,4,walk\n5,6,7,8,class1\n1,2,3,4,run\n1,2,3,4,walk\n1,2,3,4,NA\n"
    (found,) = _read(text, manifest)
    assert found.y.tolist() == [-1, 1, -1, -1, -1]
    assert caplog.text.count("is none of the classes class0, class1, class2") == 2
    assert "data, line 2: label 'walk' is none of the classes" in caplog.text
    blocks = _read(_csv(_TIMES, _VALUES, ["class1"] * 25 + ["run"] * 25), sensor)
    assert set(np.concatenate([one.y for one in blocks]).tolist()) == {-1, 1}
    many = "\n".join(f"1,2,3,4,word{k}" for k in range(30))
    caplog.clear()
    _read(f"a,b,c,d,label\n{many}\n", manifest)
    assert caplog.text.count("is none of the classes") == 10


def test_the_index_of_a_table_is_neither_a_time_nor_a_number_of_an_example(sensor, manifest):
    lines = _PLAIN.splitlines()
    indexed = [f",{lines[0]}", *(f"{k},{line}" for k, line in enumerate(lines[1:]))]
    found, plain = (
        np.concatenate([one.x for one in _read(text, sensor)])
        for text in ("\n".join(indexed), _PLAIN)
    )
    np.testing.assert_array_equal(found, plain)
    untimed = [f"{k},{line.partition(',')[2]}" for k, line in enumerate(lines[1:])]
    found = np.concatenate([one.x for one in _read("\n".join([",ay,ax,label", *untimed]), sensor)])
    np.testing.assert_allclose(found, plain, atol=1e-5)
    (found,) = _read(",a,b,c,d,label\n0,1,2,3,4,class1\n1,5,6,7,8,class2\n", manifest)
    assert found.x.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_table_without_names_gets_them_from_its_reader(sensor):
    body = _PLAIN.split("\n", 1)[1]
    plain = np.concatenate([one.x for one in _read(_PLAIN, sensor)])
    found = _read(body, sensor, columns=["time_s", "ay", "ax", "label"])
    np.testing.assert_array_equal(np.concatenate([one.x for one in found]), plain)
    dated = "".join(
        f"2024-05-01 12:00:{k / 10:06.3f},{line.split(',', 1)[1]}\n"
        for k, line in enumerate(body.splitlines())
    )
    found = _read(dated, sensor, columns=["DateTime", "AY", "AX", "Activity"])
    np.testing.assert_allclose(np.concatenate([one.x for one in found]), plain, atol=1e-3)
    with pytest.raises(
        InputError, match=r"--columns: expected 4 names, one for each cell .*, got 2"
    ):
        _read(body, sensor, columns=["time_s", "ay"])


def test_bytes_that_are_no_text_are_refused(sensor):
    with pytest.raises(InputError, match="expected text in UTF-8, got the byte 0x"):
        list(read_csv(io.BytesIO(b"PK\x03\x04\xff\x00\x00\xd8,1\n2,3\n"), "data", sensor))


def test_times_in_milliseconds_and_none_at_all_give_the_same(sensor):
    times, values = _samples(10.0, 5.0)
    seconds = _read(_csv(times, values), sensor)
    milli = _read(_csv(times, values, header="time_ms,ay,ax", scale=1000), sensor)
    without = "\n".join(line.split(",", 1)[1] for line in _csv(times, values).splitlines())
    for other in (milli, _read(without, sensor, rate_hz=10.0), _read(without, sensor)):
        np.testing.assert_allclose(
            np.concatenate([block.x for block in other]),
            np.concatenate([block.x for block in seconds]),
            atol=1e-5,
        )


def test_a_window_has_a_label_if_it_was_the_same_throughout(sensor):
    times, values = _samples(10.0, 4.0)
    labels = ["class1" if time_s < 1.55 else "class0" for time_s in times]
    blocks = _read(_csv(times, values, labels), sensor)
    y = np.concatenate([block.y for block in blocks])
    starts = np.concatenate([block.start_s for block in blocks])
    expected = [1 if start < 0.85 else 0 if start >= 1.55 else -1 for start in starts]
    assert y.tolist() == expected
    assert {0, 1, -1} == set(expected)


def test_lost_samples_are_told(sensor, caplog):
    times, values = _samples(10.0, 4.0)
    values[7, 0] = np.nan
    _read(_csv(times, values), sensor)
    assert "samples that were not used: 1 not finite" in caplog.text


_COARSE = {
    "share each time": lambda t: np.floor(t + 0.001),
    "come together each time": lambda t: np.floor(t + 0.001) + t % 1 / 50,
}


@pytest.mark.parametrize("option", [{}, {"rate_hz": 10.0}])
@pytest.mark.parametrize("how", _COARSE)
def test_samples_without_times_of_their_own_are_spread_evenly_and_it_is_told(
    sensor, caplog, how, option
):
    """One of ten would be used, and nine made of it: a hundredth of the movement."""
    times, values = _samples(10.0, 20.0)
    labels = ["class1" if time_s < 9.95 else "class0" for time_s in times]
    expected = _read(_csv(times, values, labels), sensor)
    found = _read(_csv(_COARSE[how](times), values, labels), sensor, **option)
    for name in ("x", "y", "start_s"):
        parts = [np.concatenate([getattr(one, name) for one in some]) for some in (found, expected)]
        np.testing.assert_allclose(*parts, atol=1e-4)
    assert f"data: about 10 readings {how}, 10 a second by 'time_s': spread evenly" in caplog.text
    assert "not used" not in caplog.text


def test_too_few_samples_for_a_time_are_refused_at_once_with_what_helps(sensor):
    times, values = _samples(4.0, 30.0)
    text = _csv(np.floor(times), values)
    words = r"about 4 readings share each time, 4 a second: --rate 4 if a sensor"
    with _open_pipe(text[:1500], text[1500:]) as (source, seen):
        with pytest.raises(InputError, match=words):
            next(read_csv(source, "pipe", sensor))
        assert not seen.is_set()
        seen.set()
        source.read()
    assert len(_read(text, sensor, rate_hz=4.0)) > 0


def test_samples_that_share_a_tick_finer_than_the_bundle_s_are_dropped_as_before(sensor, caplog):
    """As those of a logger that writes each row twice."""
    times, values = _samples(10.0, 20.0)
    twice = _read(_csv(np.repeat(times, 2), np.repeat(values, 2, axis=0)), sensor)
    expected = _read(_csv(times, values), sensor)
    assert sum(len(one.x) for one in twice) == sum(len(one.x) for one in expected)
    assert "samples that were not used: 200 not forward" in caplog.text


@pytest.mark.parametrize("unit", [1, 1000])
def test_the_unit_of_times_that_are_shared_follows_from_their_number(sensor, caplog, unit):
    caplog.set_level("INFO", "protofleet")
    stamps = lambda times: (np.floor(times + 0.001) * unit).astype(int) + 1_700_000_000  # noqa: E731
    starts = _named("stamp", stamps, sensor, time="stamp")
    assert np.diff(starts) == pytest.approx(0.4)
    assert f"times in 'stamp': {'seconds' if unit == 1 else 'milliseconds'}" in caplog.text


def test_times_that_stand_still_are_told_while_the_stream_is_open(sensor, caplog):
    text = "time_s,ax,ay\n" + "1,2,3\n" * 200
    with _open_pipe(text, "1,2,3\n") as (source, seen):
        seen.set()
        with pytest.raises(InputError, match="got 1 in all rows; without its column 'time_s'"):
            list(read_csv(source, "pipe", sensor))
    assert "readings have 1 different times in 'time_s'" in caplog.text


def test_sensor_samples_without_times_that_ascend_are_refused(sensor):
    with pytest.raises(InputError, match="expected times that ascend"):
        _read("time_s,ax,ay\n" + "1,2,3\n" * 20, sensor)


@contextmanager
def _open_pipe(first: str, then: str):
    """A pipe that holds ``first``, and an event upon which ``then`` follows."""
    reading, writing = os.pipe()
    seen = threading.Event()

    def write() -> None:
        with os.fdopen(writing, "w") as sink:
            sink.write(first)
            sink.flush()
            seen.wait(10)
            sink.write(then)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reading, "rb") as source:
        yield source, seen
    thread.join()


def test_a_stream_gives_windows_while_it_is_open(sensor):
    """The first window is there before the sample that ends the second has come."""
    times, values = _samples(10.0, 6.0)
    lines = _csv(times, values).splitlines(keepends=True)
    with _open_pipe("".join(lines[:40]), "".join(lines[40:])) as (source, seen):
        blocks = read_csv(source, "pipe", sensor)
        first = next(blocks)
        assert not seen.is_set()
        assert len(first.x) < 9
        seen.set()
        rest = list(blocks)
    assert sum(len(block.x) for block in [first, *rest]) == (60 - 8) // 4 + 1


def test_a_stream_whose_clock_is_set_back_goes_on_and_says_so_while_it_is_open(sensor, caplog):
    times, values = _samples(10.0, 12.0)
    times[60:] -= 3600.0
    lines = _csv(times, values).splitlines(keepends=True)
    with _open_pipe("".join(lines[:100]), "".join(lines[100:])) as (source, seen):
        blocks = read_csv(source, "pipe", sensor)
        found = [next(blocks)]
        while found[-1].start_s[-1] > 0:
            found.append(next(blocks))
        assert not seen.is_set()
        assert "pipe: the clock was set back by 3599.9 s at 5.90" in caplog.text
        seen.set()
        found += blocks
    starts = np.concatenate([block.start_s for block in found])
    assert len(starts) == 2 * ((60 - 8) // 4 + 1)
    assert starts[14] == pytest.approx(-3594.0)
    assert "not used" not in caplog.text


def test_files_of_arrays(manifest, world, tmp_path: Path):
    """A device's own file gives its test part; plain arrays need no labels."""
    (own,) = load_examples(str(world.data(1)), manifest)
    assert (own.x.shape, own.y.shape, own.start_s) == ((20, 4), (20,), None)
    path = tmp_path / "x.npz"
    np.savez(path, x=own.x)
    (plain,) = load_examples(str(path), manifest)
    assert set(plain.y.tolist()) == {-1}
    np.savez(path, x=own.x[:2], y=np.array(["class2", "class0"]))
    (named,) = load_examples(str(path), manifest)
    assert named.y.tolist() == [2, 0]
    np.savez(path, x=own.x[:2], y=np.zeros(3))
    with pytest.raises(InputError, match=r"expected x \(n, …\) and y \(n,\)"):
        load_examples(str(path), manifest)
    csv = tmp_path / "x.csv"
    with pytest.raises(MissingDataError, match="no such file"):
        load_examples(str(csv), manifest)
    csv.write_text("1,2,3,4\n")
    (row,) = load_examples(str(csv), manifest)
    assert row.x.tolist() == [[1, 2, 3, 4]]


def _named(name, cells, sensor, **options):
    """Five seconds at 10 Hz with a column of this name and these cells; the windows' starts."""
    times, values = _samples(10.0, 5.0)
    rows = [
        f"{cell},{ay:.6f},{ax:.6f}" for cell, (ax, ay) in zip(cells(times), values, strict=True)
    ]
    found = _read("\n".join([f"{name},ay,ax", *rows, ""]), sensor, **options)
    return np.concatenate([block.start_s for block in found])


_CLOCKS = {
    "seconds": lambda times: times + 3,
    "milliseconds": lambda times: (1000 * times).astype(int) + 170,
    "nanoseconds": lambda times: (1e9 * times).astype(int) + 1_700_000_000_000_000_000,
    "dates": lambda times: [f"2026-11-28 09:00:{time_s:06.3f}" for time_s in times],
    "dates in a zone": lambda times: [f"2026-11-28T09:00:{time_s:06.3f}+01:00" for time_s in times],
}


@pytest.mark.parametrize("clock", _CLOCKS)
def test_times_under_another_name_are_asked_for_and_then_read_in_their_unit(sensor, clock, caplog):
    """Windows of a stream at twice the rate would otherwise be half as long, without a word."""
    with pytest.raises(InputError, match=r"'moment' rises as.*--time moment if.*--rate"):
        _named("moment", _CLOCKS[clock], sensor)
    caplog.set_level("INFO", "protofleet")
    starts = _named("moment", _CLOCKS[clock], sensor, time="moment")
    expected = _named("time_s", lambda times: times, sensor)
    np.testing.assert_allclose(starts - starts[0], expected, atol=1e-3)
    assert f"times in 'moment': {clock.split()[0]}" in caplog.text
    assert "sensor samples at 10 Hz" in caplog.text


@pytest.mark.parametrize(
    ("name", "clock", "said"),
    [
        ("time", "seconds", None),
        ("time", "milliseconds", "times in 'time': milliseconds"),
        ("Timestamp", "nanoseconds", "times in 'Timestamp': nanoseconds"),
        ("Timestamp [ms]", "milliseconds", None),
        ("seconds_elapsed", "seconds", None),
        ("DateTime", "dates", "times in 'DateTime': dates"),
        ("Date", "days", "times in 'Date': days"),
    ],
)
def test_times_whose_column_means_them_are_read_in_their_unit_and_told(
    sensor, name, clock, said, caplog
):
    cells = {**_CLOCKS, "days": lambda times: [f"{45413 + time / 86400:.9f}" for time in times]}
    starts = _named(name, cells[clock], sensor)
    expected = _named("time_s", lambda times: times, sensor)
    np.testing.assert_allclose(starts - starts[0], expected, atol=2e-3)
    assert (said or "") in caplog.text
    assert ("times in" in caplog.text) == (said is not None)


@pytest.mark.parametrize("cells", [lambda t: 21.5 + 0 * t, lambda t: ["Monday"] * len(t)])
def test_a_column_that_only_sounds_like_times_may_be_passed_over(sensor, cells):
    with pytest.raises(InputError, match="--rate HZ if 't' holds no times, --time COLUMN if"):
        _named("t", cells, sensor)
    np.testing.assert_allclose(
        _named("t", cells, sensor, rate_hz=10.0), _named("time_s", lambda times: times, sensor)
    )


def test_a_slow_sensor_is_not_taken_for_a_fast_one_of_another_unit(sensor):
    """A reading a second, where ten are wanted, is none of a thousand a second."""
    lines = [f"{k},{k % 7},{k % 5}" for k in range(60)]
    for name in ("time", "timestamp"):
        with pytest.raises(InputError, match=f"at least a quarter, got 1 by its column '{name}'"):
            _read("\n".join([f"{name},ay,ax", *lines]), sensor)


def test_a_column_that_rises_and_holds_no_times_is_passed_over_where_the_rate_is_said(sensor):
    numbers = lambda times: range(len(times))  # noqa: E731 - an index
    np.testing.assert_allclose(
        _named("index", numbers, sensor, rate_hz=10.0), _named("time_s", lambda t: t, sensor)
    )


@pytest.mark.parametrize("cells", [lambda t: -t, lambda t: t * 0, lambda _: ["x"] * 50])
def test_without_times_the_bundle_s_rate_is_taken_and_said(sensor, caplog, cells):
    """A column that falls, that stays, and one of text are no times."""
    assert len(_named("other", cells, sensor))
    assert (
        "no column of times; taken as 10 samples a second, as the bundle's; --rate HZ"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("cells", "column", "words"),
    [
        (lambda t: t, "when", r"--time: expected one of the columns t, ay, ax, got 'when'"),
        (lambda t: ["soon"] * len(t), "t", r"line 2, column 't': expected a number, got 'soon'"),
        (lambda t: -t, "t", r"expected times that ascend, got -0, -0.1.*sort the rows by 't'"),
        (lambda t: t * 5e3, "t", r"about 10 samples a second, got 0.002 in seconds, 2 in milli"),
    ],
)
def test_a_column_that_is_no_clock_is_refused(sensor, cells, column, words):
    with pytest.raises(InputError, match=words):
        _named("t", cells, sensor, time=column)


def test_a_column_of_times_is_for_sensor_samples(manifest, sensor, tmp_path):
    with pytest.raises(InputError, match="--time is for sensor samples"):
        _read("1,2,3,4\n", manifest, time="t")
    np.savez(tmp_path / "mine.npz", x=np.zeros((1, 4), np.float32))
    with pytest.raises(InputError, match="--time, --columns, --labels and --mapping are for"):
        load_examples(str(tmp_path / "mine.npz"), sensor, time="t")


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("05/01/2024 12:00:00.125", "2024-05-01T12:00:00.125"),
        ("13/05/2024 09:30", "2024-05-13T09:30:00"),
        ("1.2.2024 1:05:07,5 PM", "2024-02-01T13:05:07.5"),
        ("12/31/2024 12:00:00 am", "2024-12-31T00:00:00"),
    ],
)
def test_dates_with_day_and_month_before_the_year(text, iso):
    assert to_time(text) == to_time(iso)
    assert is_value(text)


def test_what_looks_like_a_date_and_is_none():
    for text in ("31/31/2024 12:00", "5/1/2024", "Start 05/01/2024 12:00:00"):
        with pytest.raises(ValueError):
            to_time(text)
        assert not is_value(text)


def test_a_table_of_dates_without_names_is_one(sensor):
    """Its first row is no row of names, and --columns says what they would be."""
    rows = [f"2026-11-28 09:00:{k / 20:06.3f},{k / 7},{k % 3}" for k in range(200)]
    with pytest.raises(InputError, match=r"--columns NAME,\.\.\. names them"):
        _read("\n".join(rows), sensor)
    columns = ["when", *sensor.preprocessing.channels]
    found = _read("\n".join(rows), sensor, columns=columns, time="when")
    assert sum(len(one.y) for one in found) > 0
