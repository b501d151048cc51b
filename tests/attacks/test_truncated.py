from __future__ import annotations

import pytest
from attacks.hostile import assert_refused


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.5, 0.7, 0.9])
def test_a_single_file_cut_anywhere_is_refused(forge, keep):
    path = forge.single()
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    assert_refused("truncated", path)


def test_a_single_file_without_its_last_byte_is_refused(forge):
    path = forge.single()
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused("truncated", path)


def test_a_size_that_points_past_the_end_of_the_archive_is_refused(forge):
    """The manifest's size in its archive header is believed only within the file."""
    path = forge.single()
    data = bytearray(path.read_bytes())
    data[18:26] = (2_000_000).to_bytes(4, "little") * 2
    path.write_bytes(data)
    assert_refused("truncated", path)
