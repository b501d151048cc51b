"""A local round in a process of its own, and fleets whose devices have too little memory for it."""

from __future__ import annotations

import msgspec
import pytest
from rehearsed import HOST, regrouped

from protofleet.errors import InputError
from protofleet.experiments.processes import processes
from protofleet.federation.settings import load_config
from protofleet.firmware_sim.world.hardware import HARDWARE
from protofleet.rehearsal.dry_run import dry_run
from protofleet.rehearsal.fleet_file import DeviceGroup
from protofleet.rehearsal.run import Rehearsal

_SETTINGS = {"epochs": 1, "batch_size": 16, "optimiser": {"kind": "adam", "lr": 0.002}}
_MB = 1e6


def test_it_takes_what_a_device_s_process_takes_and_no_pytorch(study):
    bundle, data = study / "bundle.pfb", study / "data" / "owner-0.npz"
    found = dry_run(bundle, data, "fedavg", _SETTINGS)
    # tests/e2e measure 120 MB of such devices on Linux; PyTorch alone would be 200 more.
    assert 60 * _MB < found.memory_bytes < 200 * _MB
    assert dry_run(bundle, data, "fedavg", _SETTINGS) is found


def test_what_a_device_cannot_train_on_is_named(study):
    data = study / "data" / "owner-0.npz"
    with pytest.raises(InputError, match=r"owner-0\.npz': a device cannot train on it \(.*moon"):
        dry_run(study / "bundle.pfb", data, "moon", _SETTINGS)


def test_hardware_with_too_little_memory_is_refused_with_both_figures(fleet, tmp_path):
    small = msgspec.structs.replace(HARDWARE["pi-zero-2w"], memory_mb=32)
    group = DeviceGroup(name="tag", count=2, hardware="small")
    file = regrouped(fleet, group, hardware={"small": small})
    expected = (
        r"'tag' \(small\) has 33\.6 MB of memory, and a device's process takes 1\d\d MB for a local"
    )
    config = load_config(file.federation)
    with processes(1) as opened:
        rehearsal = Rehearsal(file=file, opened=opened, folder=tmp_path, host=HOST)
        with pytest.raises(InputError, match=expected):
            rehearsal.answer(config, "", 0, lambda *_: None)
