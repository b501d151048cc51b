"""The published photographs are not at hand: small ones in their layouts are written here."""

import json
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from protofleet.datasets import catalogue
from protofleet.datasets.ppmi import ppmi_pool
from protofleet.datasets.stanford40 import stanford40_pool
from protofleet.datasets.voc2012 import CLASSES, voc2012_pool
from protofleet.errors import InputError, MissingDataError

_INSTRUMENTS = (
    "bassoon cello clarinet erhu flute french_horn guitar harp recorder saxophone trumpet violin"
)


def _picture(path, *, colour=(255, 0, 0), size=(20, 10), mode="RGB"):
    """The left half in one colour, the right half black."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, size, 0)
    image.paste(colour, (0, 0, size[0] // 2, size[1]))
    image.save(path, format="PNG" if path.suffix == ".png" else "JPEG", quality=95)


def _lines(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def stanford(tmp_path):
    folder = tmp_path / "stanford40"
    splits = folder / "ImageSplits"
    _lines(
        splits / "actions.txt",
        "action_name\tnumber_of_train_val_images",
        "applauding\t2",
        "riding_a_bike\t1",
    )
    for action, train, test in (("applauding", (1, 2), (3,)), ("riding_a_bike", (1,), (2, 3))):
        for part, numbers in (("train", train), ("test", test)):
            names = [f"{action}_{number:03d}.jpg" for number in numbers]
            _lines(splits / f"{action}_{part}.txt", *names)
            for name in names:
                _picture(folder / "JPEGImages" / name)
    return tmp_path


def test_stanford40_reads_its_splits(stanford):
    pool = catalogue.load("stanford40", stanford, {"size": 8})
    assert pool.x.shape == (6, 3, 8, 8)
    assert pool.classes == ("applauding", "riding_a_bike")
    assert pool.y.tolist() == [0, 0, 1, 0, 1, 1]
    assert pool.is_test.tolist() == [False] * 3 + [True] * 3
    assert pool.boxes is None
    few = stanford40_pool(stanford, size=8, limit=1)
    assert few.y.tolist() == [0, 1, 0, 1]


def test_images_are_resized_rgb_in_the_wanted_scale(stanford):
    """The left half is red, the right half black: red is the first channel, columns are last."""
    for scale, low in (("unit", 0), ("signed", -1)):
        x = stanford40_pool(stanford, size=8, scale=scale).x[0]
        assert x.dtype == np.float32
        assert np.allclose(x[0, :, :3], 1, atol=0.06)
        assert np.allclose(x[0, :, 5:], low, atol=0.06)
        assert np.allclose(x[1:], low, atol=0.06)


def test_grey_images_get_three_channels(stanford):
    path = stanford / "stanford40" / "JPEGImages" / "applauding_001.jpg"
    _picture(path, colour=255, mode="L")
    x = stanford40_pool(stanford, size=4).x[0]
    assert np.array_equal(x[0], x[1])
    assert np.array_equal(x[0], x[2])


def test_boxes_are_scaled_to_the_resized_image(stanford, tmp_path):
    """20x10 pixels become 40x40: x doubles, y is four times as much; outside parts are clipped."""
    boxes = {
        "applauding_001.jpg": [[2, 1, 6, 5]],
        "riding_a_bike_003.jpg": [[0, 0, 5, 5], [15, 5, 99, 99]],
        "not_in_this_data_set.jpg": [[0, 0, 1, 1]],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    pool = stanford40_pool(stanford, size=40, boxes=str(tmp_path / "boxes.json"))
    assert pool.boxes.shape == (6, 2, 4)
    assert pool.boxes.dtype == np.float32
    assert pool.boxes[0].tolist() == [[4, 4, 12, 20], [0, 0, 0, 0]]
    assert pool.boxes[5].tolist() == [[0, 0, 10, 20], [30, 20, 40, 40]]
    assert not pool.boxes[1:5].any()


def test_boxes_of_another_data_set_are_refused(stanford, tmp_path):
    (tmp_path / "boxes.json").write_text('{"other.jpg": [[0, 0, 1, 1]]}')
    with pytest.raises(InputError, match=r"expected names such as 'applauding_001\.jpg'"):
        stanford40_pool(stanford, size=8, boxes=tmp_path / "boxes.json")


def test_a_listed_image_that_is_absent_or_broken_is_named(stanford):
    path = stanford / "stanford40" / "JPEGImages" / "riding_a_bike_001.jpg"
    path.write_bytes(b"\xff\xd8\xff no image")
    with pytest.raises(InputError, match=r"riding_a_bike_001\.jpg': cannot be read"):
        stanford40_pool(stanford, size=8)
    path.unlink()
    with pytest.raises(MissingDataError, match=r"riding_a_bike_001\.jpg'"):
        stanford40_pool(stanford, size=8)


def test_without_pillow_the_message_names_the_extra(stanford, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"pip install 'protofleet\[images\]'"):
        stanford40_pool(stanford)


@pytest.mark.parametrize(("option", "value"), [("size", 0), ("scale", "x"), ("limit", 0)])
def test_wrong_options_are_refused(stanford, option, value):
    with pytest.raises(InputError, match=f"option '{option}'"):
        stanford40_pool(stanford, **{"size": 8, option: value})


def _ppmi(top, instruments=_INSTRUMENTS):
    for kind, colour in (("play_instrument", (255, 0, 0)), ("with_instrument", (0, 255, 0))):
        for instrument in instruments.split():
            for part in ("train", "test"):
                folder = top / kind / instrument / part
                _picture(folder / "1.jpg", colour=colour, size=(8, 8))
                (folder / "Thumbs.db").write_bytes(b"")


@pytest.mark.parametrize("folder", ["norm_image", "norm_ppmi_12class/norm_image"])
def test_ppmi_merges_playing_and_holding(tmp_path, folder):
    """Twelve classes, the instruments; each has a train and a test image of both kinds."""
    _ppmi(tmp_path / "ppmi" / folder)
    pool = catalogue.load("ppmi", tmp_path, {"size": 4})
    assert pool.classes == tuple(_INSTRUMENTS.split())
    assert np.bincount(pool.y[~pool.is_test]).tolist() == [2] * 12
    assert np.bincount(pool.y[pool.is_test]).tolist() == [2] * 12
    for kind, channel in (("play", 0), ("with", 1)):
        part = ppmi_pool(tmp_path, kind=kind, size=4)
        assert len(part.y) == 24
        assert (part.x[:, channel, :, 0] > 0.9).all()


def test_ppmi_boxes_name_the_path_below_norm_image(tmp_path):
    _ppmi(tmp_path / "ppmi" / "norm_image")
    (tmp_path / "b.csv").write_text(
        "image,left,top,right,bottom\nwith_instrument/flute/test/1.jpg,2,2,4,6\n"
    )
    pool = ppmi_pool(tmp_path, size=4, boxes=tmp_path / "b.csv")
    hidden = np.flatnonzero(pool.boxes.any(axis=(1, 2)))
    assert len(hidden) == 1
    assert pool.classes[pool.y[hidden[0]]] == "flute"
    assert pool.is_test[hidden[0]]
    assert pool.boxes[hidden[0]].tolist() == [[1, 1, 2, 3]]


def test_ppmi_in_another_layout_is_refused(tmp_path):
    with pytest.raises(MissingDataError, match=r"unpack the published 'norm_ppmi_12class\.zip'"):
        ppmi_pool(tmp_path)
    _ppmi(tmp_path / "ppmi" / "norm_image", "flute harp")
    with pytest.raises(InputError, match="expected 12 folders"):
        ppmi_pool(tmp_path)
    with pytest.raises(InputError, match="option 'kind'"):
        ppmi_pool(tmp_path, kind="hold")


@pytest.fixture
def voc(tmp_path):
    """One person on a horse, one with a book and another on a horse, two who run, one idle."""
    folder = tmp_path / "voc2012" / "VOCdevkit" / "VOC2012"
    people = {
        "train": {"2007_1": [5], "2007_2": [3, 5], "2007_3": [None]},
        "val": {"2008_1": [6, 6], "2008_2": [None, 0], "2008_3": [1]},
    }
    for part, images in people.items():
        for label, action in enumerate(CLASSES):
            _lines(
                folder / "ImageSets" / "Action" / f"{action}_{part}.txt",
                *(
                    f"{image}  {number} {1 if does == label else -1:2d}"
                    for image, doing in images.items()
                    for number, does in enumerate(doing, start=1)
                ),
            )
        for image in images:
            _picture(folder / "JPEGImages" / f"{image}.jpg")
    return tmp_path


def test_voc2012_keeps_images_of_one_action(voc):
    """Two people who do the same count once; idle people do not count; two actions are left out."""
    pool = catalogue.load("voc2012", voc, {"size": 4})
    assert [pool.classes[label] for label in pool.y] == [
        "ridinghorse",
        "running",
        "jumping",
        "phoning",
    ]
    assert pool.is_test.tolist() == [False, True, True, True]


def test_voc2012_lists_that_are_not_as_published_are_refused(voc):
    path = voc / "voc2012/VOCdevkit/VOC2012/ImageSets/Action/walking_val.txt"
    _lines(path, "2008_1 1")
    with pytest.raises(InputError, match=r"expected 'image person 1\|-1', got '2008_1 1'"):
        voc2012_pool(voc)
    path.unlink()
    with pytest.raises(MissingDataError, match=r"VOCtrainval_11-May-2012\.tar"):
        voc2012_pool(voc)


def test_reading_images_warns_of_nothing(voc):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        voc2012_pool(voc, size=4)
