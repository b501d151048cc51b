"""Checkpoints on disk that are not there or are none."""

from __future__ import annotations

import pytest

from protofleet.errors import InputError, MissingDataError
from protofleet.export.pretraining.checkpoints import load_checkpoint


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    with pytest.raises(MissingDataError, match="no such file"):
        load_checkpoint(tmp_path / "absent.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no header here")
    with pytest.raises(InputError, match="expected a safetensors file"):
        load_checkpoint(broken)
