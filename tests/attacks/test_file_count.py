from __future__ import annotations

from attacks.hostile import assert_refused


def test_more_files_than_the_limit_are_refused(forge):
    for index in range(257):
        forge.manifest["files"][f"f{index}"] = {"bytes": 0, "sha256": "0" * 64}
    assert_refused("file-count", *forge.both())
