"""What is known of models and objectives without PyTorch is what they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from protofleet.export.catalogue import MODELS, OBJECTIVES, model_names
from protofleet.export.models._registry import _factory

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"


def test_it_is_read_without_pytorch():
    code = "import sys, protofleet.export.catalogue; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_every_model_can_be_found():
    assert all(callable(_factory(name)) for name in MODELS)
    assert model_names().endswith("vit or vit_digits")


def test_the_page_has_each_model_with_its_shape():
    rows = re.findall(r"(?m)^\| (`[a-z0-9_`, ]+`) \|[^|]*\| ([^|]*) \|", _PAGE.read_text())
    told = {name: shape for names, shape in rows for name in re.findall(r"`(\w+)`", names)}
    for name, known in MODELS.items():
        assert ", ".join(map(str, known.input_shape)) in told[name], name


def test_labels_of_objectives_are_classes_or_numbers():
    numbers = {name for name, one in OBJECTIVES.items() if not one.takes_classes}
    assert numbers == {"mse", "huber", "bce"}
