from __future__ import annotations

import numpy as np
import pytest
from attacks.hostile import PUBLIC, assert_refused

from protofleet.bundle import Bundle
from protofleet.tensors import Layout


def test_a_layout_hash_of_other_tensors_is_refused(forge):
    forge.manifest["layout_hash"] = "0" * 64
    assert_refused("layout", *forge.both(), match="layout hash")


def test_declared_tensors_in_another_order_are_refused(forge):
    """The order is the buffer's: the same names in another order mean other parameters."""
    forge.manifest["params"].reverse()
    assert_refused("layout", *forge.both(), match="layout hash")


def _rename(tensors):
    tensors["v"] = tensors.pop("w")


def _add(tensors):
    tensors["extra"] = np.zeros(1, np.float32)


def _transpose(tensors):
    tensors["w"] = tensors["w"].T


def _double(tensors):
    tensors["w"] = tensors["w"].astype(np.float64)


@pytest.mark.parametrize("change", [_rename, _add, _transpose, _double])
def test_parameters_that_do_not_fit_the_declaration_are_refused(forge, change):
    assert_refused("layout", *forge.change_params(change).both(), match="tensor")


@pytest.mark.parametrize(
    "decl",
    [
        {"name": "w", "shape": [4, 3]},
        {"name": "", "shape": []},
        {"name": "a b", "shape": []},
        {"name": "a\nb", "shape": []},
        {"name": "x" * 257, "shape": []},
        {"name": "v", "shape": [-1]},
        {"name": "v", "shape": [1 << 40]},
        {"name": "v", "shape": [0, 1 << 40]},
    ],
)
def test_an_impossible_declaration_is_refused(forge, decl):
    forge.manifest["params"].append(decl)
    assert_refused("layout", *forge.both(), match="tensor")


@pytest.mark.parametrize("head", [["w", "w"], ["w", "unknown"], [""]], ids=str)
def test_a_head_that_is_not_of_the_parameters_is_refused(forge, head):
    forge.manifest["head"] = head
    assert_refused("layout", *forge.both(), match="head: expected names of params")


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        ([{"name": "unknown"}], "expected params to have its weight"),
        ([{"name": "a"}, {"name": "a"}], "once"),
        ([{"name": "vector"}], "two axes"),
        ([{"name": "b", "before": "a"}, {"name": "a"}], "an earlier hidden layer"),
        ([{"name": "b", "before": "b"}], "an earlier hidden layer"),
        ([{"name": "c"}, {"name": "b", "before": "c"}], "an earlier hidden layer"),
        ([{"name": "a"}, {"name": "d", "before": "a"}], "7 inputs are not those of 4 units"),
        ([{"name": "e"}], "its activations are not those of 2 units"),
    ],
)
def test_layers_that_do_not_fit_the_parameters_are_refused(forge, layers, match):
    """Layers a (4 units), b and c exist, a is hidden; c tells nothing; d has 7 inputs, e lies."""
    shapes = {"a": (4, 3), "b": (2, 4), "c": (2, 4), "d": (2, 7), "e": (2, 4), "vector": (3,)}
    forge.change_params(
        lambda tensors: tensors.update(
            {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
        )
    )
    declared = {decl["name"]: tuple(decl["shape"]) for decl in forge.manifest["params"]}
    declared |= {f"{name}.weight": shape for name, shape in shapes.items()}
    forge.manifest["params"] = [{"name": n, "shape": list(s)} for n, s in declared.items()]
    forge.manifest["layout_hash"] = Layout.of(declared).hash
    told = {"role": "output", "dtype": "float32"}
    outputs = forge.manifest["programs"]["features"]["outputs"]
    outputs += [
        {"name": f"layers.{name}", "key": f"layers.{name}", "shape": ["batch", width], **told}
        for name, width in {"a": 4, "b": 2, "d": 2, "e": 3}.items()
    ]
    forge.manifest["layers"] = [{"name": "a"}, {"name": "b", "before": "a"}]
    Bundle.open(forge.directory(), trusted={PUBLIC})
    forge.manifest["layers"] = layers
    assert_refused("layout", *forge.both(), match=match)
