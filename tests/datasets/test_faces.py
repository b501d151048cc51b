import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from protofleet.datasets.faces import detect_boxes, read_boxes, write_boxes
from protofleet.errors import InputError, MissingDataError

_needs_opencv = pytest.mark.skipif(
    importlib.util.find_spec("cv2") is None,
    reason="needs OpenCV: pip install 'protofleet[faces]'",
)


def test_json_and_csv_say_the_same(tmp_path):
    (tmp_path / "b.csv").write_text(
        "image,left,top,right,bottom\na.jpg,1,2,3.5,4\nb.jpg,0,0,9,9\na.jpg,5,6,7,8\n\n"
    )
    boxes = {"a.jpg": [(1, 2, 3.5, 4), (5, 6, 7, 8)], "b.jpg": [(0, 0, 9, 9)]}
    assert read_boxes(tmp_path / "b.csv") == boxes
    write_boxes(tmp_path / "b.JSON", {**boxes, "empty.jpg": []})
    assert read_boxes(tmp_path / "b.JSON") == {**boxes, "empty.jpg": []}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.json", "[1]", "expected an object"),
        ("b.json", "{", r"b\.json"),
        ("b.json", '{"a": [[1, 2, 3]]}', "image 'a': expected left, top, right, bottom"),
        ("b.json", '{"a": [[1, 2, 3, NaN]]}', "image 'a': expected left, top, right, bottom"),
        ("b.json", '{"a": [[3, 2, 3, 4]]}', "image 'a': expected left < right"),
        ("b.json", '{"a": [5]}', r"b\.json"),
        ("b.json", '{"a": 5}', r"b\.json"),
        ("b.csv", "a.jpg,1,2,3,4\n", "expected the header image,left,top,right,bottom"),
        ("b.csv", "", "expected the header"),
        ("b.csv", "image,left,top,right,bottom\na,1,2,x,4\n", "could not convert"),
        ("b.txt", "", r"expected a \.json or \.csv file"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_boxes(tmp_path / name)


def test_absent_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"nowhere\.json"):
        read_boxes(tmp_path / "nowhere.json")


def test_without_opencv_the_message_names_the_extra_and_the_file(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(InputError, match=r"pip install 'protofleet\[faces\]', or bring a file"):
        detect_boxes({}, Path("model.onnx"))


@_needs_opencv
def test_absent_or_broken_model_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"put an ONNX model .* at '.*model\.onnx'"):
        detect_boxes({}, tmp_path / "model.onnx")
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"face detection with '.*model\.onnx'"):
        detect_boxes({}, tmp_path / "model.onnx")


def _detector(path):
    """No published detector is at hand: one of its form that always answers one face.

    For each stride 8, 16, 32 it has class and object scores, boxes (offset of the centre in cells,
    logarithm of the size in cells) and five landmarks per cell.
    """
    constants, nodes, outputs = {}, [], []
    for kind, width in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10)):
        for stride in (8, 16, 32):
            values = np.zeros((1, (32 // stride) ** 2, width), np.float32)
            if stride == 8 and kind != "kps":
                values[0, 5] = [0.5, 0.25, np.log(2), 0] if kind == "bbox" else 1
            name = f"{kind}_{stride}"
            constants[f"{name}_values"] = values
            nodes.append(onnx.helper.make_node("Add", ["nothing", f"{name}_values"], [name]))
            outputs.append(onnx.helper.make_tensor_value_info(name, 1, values.shape))
    constants |= {"zero": np.zeros((1, 1, 1, 1), np.float32), "flat": np.array([1, 1, 1])}
    nodes = [
        onnx.helper.make_node("ReduceMean", ["input"], ["mean"], axes=[1, 2, 3], keepdims=1),
        onnx.helper.make_node("Mul", ["mean", "zero"], ["product"]),
        onnx.helper.make_node("Reshape", ["product", "flat"], ["nothing"]),
        *nodes,
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "detector",
        [onnx.helper.make_tensor_value_info("input", 1, [1, 3, 32, 32])],
        outputs,
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = onnx.helper.make_opsetid("", 11)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


@_needs_opencv
def test_detected_faces_are_corners_in_pixels_of_the_image(tmp_path):
    """Centre (1 + 0.5, 1 + 0.25) cells of 8 pixels, two cells wide and one high."""
    _detector(tmp_path / "model.onnx")
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
    found = detect_boxes({"one.png": tmp_path / "one.png"}, tmp_path / "model.onnx")
    assert np.allclose(found["one.png"], [[4, 6, 20, 14]])
    write_boxes(tmp_path / "boxes.json", found)
    assert read_boxes(tmp_path / "boxes.json") == found


@_needs_opencv
def test_absent_image_is_named(tmp_path):
    _detector(tmp_path / "model.onnx")
    with pytest.raises(MissingDataError, match=r"image '.*nowhere\.png'"):
        detect_boxes({"a": tmp_path / "nowhere.png"}, tmp_path / "model.onnx")
