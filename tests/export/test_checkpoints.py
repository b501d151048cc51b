"""Checkpoints on disk that are not there or are none."""

from __future__ import annotations

import pytest
import torch

from protofleet.errors import InputError, MissingDataError
from protofleet.export.pretraining.checkpoints import load_checkpoint, save_checkpoint


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    with pytest.raises(MissingDataError, match="no such file"):
        load_checkpoint(tmp_path / "absent.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no header here")
    with pytest.raises(InputError, match="expected a safetensors file"):
        load_checkpoint(broken)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("classes", "sit,walk", "a JSON list"),
        ("classes", "3", "a JSON list"),
        ("targets", "{}", "a JSON list"),
        ("settings", "[1]", "a JSON object"),
    ],
)
def test_metadata_of_another_kind_are_named(tmp_path, name, text, wanted):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, {"w": torch.zeros(2)}, {name: text})
    with pytest.raises(InputError, match=f"metadata '{name}': expected {wanted}, got "):
        load_checkpoint(path)
