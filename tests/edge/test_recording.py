"""A device's data from a recording with labels."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import protofleet
from protofleet.bundle.keys import load_public_key
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli.main import main
from protofleet.datasets import load_device_data
from protofleet.edge.data.examples import Examples, load_examples
from protofleet.edge.data.recording import to_device_data
from protofleet.edge.data.recordings import read_recordings
from protofleet.edge.learning.training import LocalData, check_data
from protofleet.errors import InputError
from protofleet.report._recordings_figure import draw

_SENSOR = Preprocessing(
    input_shape=(8, 2), rate_hz=10.0, window=8, hop=4, channels=("ax", "ay"), mean=(1.0,)
)


def test_windows_of_a_stream_are_split_in_time_without_a_leak(world, tmp_path):
    """A minute of two activities: the first of each train, no test window shares a sample."""
    lines = ["time_s,ax,ay,label"]
    for k in range(600):
        label = "class0" if k < 300 else "class2"
        lines.append(f"{k / 10},{np.sin(k)},{k / 600},{label}")
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    manifest = msgspec.structs.replace(world.bundle.manifest, preprocessing=_SENSOR)
    blocks = list(load_examples(str(tmp_path / "mine.csv"), manifest))
    data = to_device_data(blocks, manifest, raw=True, test_share=0.3)
    check_data(LocalData(own=data), manifest)
    starts = np.concatenate([block.start_s for block in blocks])
    x = np.concatenate([block.x for block in blocks])
    when = {part.tobytes(): start for part, start in zip(x, starts, strict=True)}
    for label in (0, 2):
        train = [when[one.tobytes()] for one in data.x_train[data.y_train == label]]
        test = [when[one.tobytes()] for one in data.x_test[data.y_test == label]]
        assert len(train) > 45
        assert len(test) > 18
        assert max(train) + 0.8 <= min(test) + 1e-9
    assert set(data.y_train) == {0, 2}


def test_a_recording_whose_clock_was_set_back_loses_no_window_to_it(world, tmp_path):
    """By half an hour, at the end of what trains: the first window of the test overlaps none."""
    lines = ["time_s,ax,ay,label"]
    for k in range(600):
        label = "class0" if k < 300 else "class2"
        lines.append(f"{k / 10 - (1800 if k >= 150 else 0)},{np.sin(k)},{k / 600},{label}")
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    manifest = msgspec.structs.replace(world.bundle.manifest, preprocessing=_SENSOR)
    blocks = load_examples(str(tmp_path / "mine.csv"), manifest)
    data = to_device_data(blocks, manifest, raw=True, test_share=0.5)
    assert np.bincount(data.y_train).tolist() == [36, 0, 37]
    assert np.bincount(data.y_test).tolist() == [36, 0, 35]


def test_rows_are_split_by_class_and_those_without_a_label_left_out(world, caplog):
    y = np.array([0, 1, 0, 0, -1, 1, 0, 1])
    block = Examples(x=np.arange(32.0).reshape(8, 4), y=y)
    data = to_device_data([block], world.bundle.manifest, raw=False, test_share=0.25)
    assert (data.x_train[:, 0] / 4).tolist() == [0, 1, 2, 3, 5]
    assert (data.x_test[:, 0] / 4).tolist() == [6, 7]
    assert "1 of 8 examples have no label" in caplog.text
    with pytest.raises(InputError, match="expected examples with a label"):
        to_device_data(
            [Examples(x=block.x, y=np.full(8, -1))], world.bundle.manifest, raw=False, test_share=0
        )


def test_the_command_makes_what_a_device_joins_with(world, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "config"))
    table, out = tmp_path / "mine.csv", tmp_path / "mine.npz"
    rows = [f"{k},0,0,{k},{'class1' if k % 2 else '0'}" for k in range(20)]
    table.write_text("\n".join(["a,b,c,d,label", *rows]))
    arguments = ["--bundle", str(world.bundle_path), "--trust", str(world.trust)]
    main_arguments = ["device", "prepare", str(table), *arguments, "--out", str(out)]
    with pytest.raises(SystemExit) as end:
        main(main_arguments)
    assert not end.value.code
    said = capsys.readouterr().out.splitlines()
    assert said.pop(0) == f"{tmp_path / 'mine.csv'}: 20 examples: class0 10, class1 10"
    assert said[:2] == ["class0: 7 to train, 3 to test", "class1: 7 to train, 3 to test"]
    data = load_device_data(out)
    assert (data.x_train.shape, data.classes) == ((14, 4), world.bundle.manifest.classes)


def _recorded(place, seconds=(range(60), range(90, 150))):
    """A recording of 10 Hz with a gap, the first minute of class1."""
    rows = [
        f"{s + k / 10},{k},0,0,0,{'class1' if s < 60 else 'class2'}"
        for part in seconds
        for s in part
        for k in range(10)
    ]
    place.write_text("\n".join(["time_s,a,b,c,d,label", *rows]))


def _windowed(world):
    """The bundle, made for windows of two seconds."""
    manifest = world.bundle.manifest
    inputs = msgspec.structs.replace(
        manifest.preprocessing,
        input_shape=(20, 4), window=20, hop=10, rate_hz=10.0, channels=("a", "b", "c", "d"),
    )  # fmt: skip
    return msgspec.structs.replace(manifest, preprocessing=inputs)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_recordings_are_drawn_over_time(world, tmp_path, ending):
    manifest, picture = _windowed(world), tmp_path / f"found.{ending}"
    names = ("one", "two")
    for name in names:
        _recorded(tmp_path / f"{name}.csv")
    recordings = [
        (name, list(read_recordings([str(tmp_path / f"{name}.csv")], manifest))) for name in names
    ]
    draw(recordings, manifest, picture)
    content = picture.read_bytes()
    if ending == "png":
        assert content.startswith(b"\x89PNG")
    else:
        drawn = content.decode()
        for said in ("one: 118 windows", "two: 118 windows", "class1", "seconds since its first"):
            assert f"<!-- {said}" in drawn
        # Two stretches of four channels in each of two panels.
        assert drawn.count("stroke: #1f2933; stroke-width: 0.5;") == 16


def test_what_has_no_times_is_not_drawn(world, tmp_path):
    block = Examples(x=np.zeros((3, 4)), y=np.zeros(3, np.int64))
    with pytest.raises(InputError, match="--plot: expected sensor samples with times"):
        draw([("mine.csv", [block])], world.bundle.manifest, tmp_path / "found.png")
    assert not (tmp_path / "found.png").exists()


@pytest.mark.parametrize(
    ("source", "out", "told"),
    [
        ("data-1.npz", "b.npz", "expected a recording, got a device's data"),
        ("mine.csv", "b.csv", "b.csv': expected FILE.npz"),
    ],
)
def test_what_makes_no_data_of_a_device_is_refused(world, capsys, source, out, told):
    world.data(1)
    (world.root / "mine.csv").write_text("1,2,3,4\n")
    options = ["--bundle", str(world.bundle_path), "--trust", str(world.trust)]
    with pytest.raises(SystemExit):
        main(
            [
                "device",
                "prepare",
                str(world.root / source),
                "--out",
                str(world.root / out),
                *options,
            ]
        )
    assert told in capsys.readouterr().err
    assert not (world.root / out).exists()


def test_python_has_the_same_data_as_the_command(world, tmp_path):
    rows = [f"{k},0,0,{k},{'class1' if k % 2 else '0'}" for k in range(20)]
    (tmp_path / "mine.csv").write_text("\n".join(["a,b,c,d,label", *rows]))
    trusted = {load_public_key(world.trust)}
    one = protofleet.read_recording(tmp_path / "mine.csv", world.bundle_path, trusted=trusted)
    assert (one.x_train.shape, one.x_test.shape) == ((14, 4), (6, 4))
    both = [tmp_path / "mine.csv", str(tmp_path / "mine.csv")]
    two = protofleet.read_recording(both, world.bundle_path, trusted=trusted, test_share=0.5)
    assert (two.x_train.shape, two.x_test.shape) == ((20, 4), (20, 4))
