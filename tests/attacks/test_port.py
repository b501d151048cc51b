from __future__ import annotations

import pytest
from attacks.hostile import PUBLIC, assert_refused

from protofleet.bundle import Bundle


@pytest.mark.parametrize(
    "change",
    [
        {"key": "unknown"},
        {"role": "state"},
        {"role": "loss"},
        {"role": "grad"},
        {"role": "noise"},
        {"shape": [3, 4]},
        {"shape": ["batch", 3]},
        {"dtype": "int64"},
        {"distribution": "normal"},
        {"name": "b"},
    ],
    ids=str,
)
def test_an_input_that_fits_no_tensor_is_refused(forge, change):
    """Inputs of ``train``: w, b, x, y; the change is made to ``w``."""
    forge.manifest["programs"]["train"]["inputs"][0].update(change)
    assert_refused("port", *forge.both(), match="train")


@pytest.mark.parametrize(
    "change",
    [{"key": "unknown"}, {"shape": [4]}, {"role": "param"}, {"role": "input"}, {"name": "loss"}],
    ids=str,
)
def test_an_output_that_fits_no_tensor_is_refused(forge, change):
    forge.manifest["programs"]["train"]["outputs"][1].update(change)
    assert_refused("port", *forge.both(), match="train")


@pytest.mark.parametrize(
    "change",
    [{"dtype": "float32"}, {"shape": ["batch", 3]}, {"shape": ["batch*2"]}, {"shape": [3]}],
    ids=str,
)
def test_true_values_of_another_task_are_refused(forge, change):
    """Classes are ``(batch,) int64``; the change is made to ``y`` of ``train``."""
    forge.manifest["programs"]["train"]["inputs"][3].update(change)
    assert_refused("port", *forge.both(), match="for task classification")


def test_classes_in_a_bundle_of_targets_are_refused(forge):
    names = forge.manifest["classes"]
    forge.manifest |= {"task": "regression", "classes": [], "targets": names}
    assert_refused("port", *forge.both(), match="float32 for task regression")


@pytest.mark.parametrize("shape", [["batch", 4], ["batch"], [2, 3]])
def test_outputs_of_another_number_than_the_names_are_refused(forge, shape):
    forge.manifest["programs"]["infer"]["outputs"][0]["shape"] = shape
    assert_refused("port", *forge.both(), match="infer")


@pytest.mark.parametrize(
    "change",
    [{"shape": []}, {"shape": ["batch"]}, {"shape": ["batch", "batch"]}, {"dtype": "int64"}],
    ids=str,
)
@pytest.mark.parametrize("key", ["features", "layers.w"])
def test_features_and_activations_that_are_no_rows_of_numbers_are_refused(forge, key, change):
    port = {"name": key, "key": key, "role": "output", "dtype": "float32", "shape": ["batch", 4]}
    forge.manifest["programs"]["features"]["outputs"] = [port]
    Bundle.open(forge.directory(), trusted={PUBLIC})
    port.update(change)
    assert_refused("port", *forge.both(), match=key)


@pytest.mark.parametrize("axis", [-1, "Batch", "batch*0", "batch*9999999", "n"])
def test_an_impossible_axis_is_refused(forge, axis):
    forge.manifest["programs"]["infer"]["inputs"][2]["shape"][0] = axis
    assert_refused("port", *forge.both(), match="axis")


def test_a_program_whose_file_is_not_declared_is_refused(forge):
    forge.manifest["programs"]["infer"]["file"] = "../../bin/infer.onnx"
    assert_refused("port", *forge.both(), match="infer")


def test_a_program_without_any_file_is_refused(forge):
    forge.manifest["programs"]["infer"] |= {"file": None, "tflite": None}
    assert_refused("port", *forge.both(), match="neither an ONNX nor a TFLite file")


@pytest.mark.parametrize(
    "shape", [["batch", 2**29], ["batch*999999", 300], [2**40], ["batch", *[1] * 8]], ids=str
)
def test_ports_that_no_memory_holds_are_refused(forge, shape):
    """The runtime makes room for outputs and noise by what the manifest says."""
    port = {"name": "big", "key": "big", "role": "output", "dtype": "float32", "shape": shape}
    forge.manifest["programs"]["features"]["outputs"].append(port)
    assert_refused("port", *forge.both(), match="big")
