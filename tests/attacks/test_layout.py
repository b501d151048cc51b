from __future__ import annotations

import numpy as np
import pytest
from attacks.hostile import assert_refused


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
