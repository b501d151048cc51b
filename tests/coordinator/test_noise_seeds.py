"""Seeds of noise: one for a round, its owner's alone, and gone when it is told so."""

from __future__ import annotations

import pytest

from protofleet.coordinator.noise_seeds import NoiseSeeds
from protofleet.errors import ProtofleetError


def test_a_round_keeps_its_seed_until_it_is_erased(tmp_path):
    seeds = NoiseSeeds(tmp_path / "noise")
    seeds.keep_only({"000001"})
    drawn = [seeds.of_round(round_id) for round_id in (1, 2)]
    assert drawn == [NoiseSeeds(tmp_path / "noise").of_round(round_id) for round_id in (1, 2)]
    assert len(set(drawn)) == 2
    files = sorted(seeds.folder.iterdir())
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert seeds.folder.stat().st_mode & 0o777 == 0o700
    seeds.keep_only({"000002"})
    assert [file.name for file in seeds.folder.iterdir()] == ["000002"]
    assert seeds.of_round(1) not in drawn


def test_a_damaged_seed_is_named(tmp_path):
    seeds = NoiseSeeds(tmp_path)
    seeds.of_round(1)
    (tmp_path / "000001").write_bytes(b"short")
    with pytest.raises(ProtofleetError, match="000001: damaged; expected 32 bytes, got 5"):
        seeds.of_round(1)
