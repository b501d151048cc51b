"""Devices on ONNX Runtime and devices on LiteRT in one federation, and in two."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from protofleet.bundle.manifest import Preprocessing
from protofleet.demo.recipes import PROFILES, dealt_backends
from protofleet.firmware_sim.profile import VirtualDevice

_ROUNDS = 3
_CLASSES = ("class0", "class1", "class2")
_ROWS = {"inputs": 4, "classes": 3, "hidden": (8, 6)}
_SETTINGS = '[strategy.settings]\nbatch_size = 8\noptimiser = {kind = "sgd", lr = 0.1}\n'


@pytest.fixture
def bundle(tmp_path, key):
    """A perceptron, exported for both runtimes."""
    import torch  # noqa: PLC0415 - heavy, and only here

    from protofleet.export.build import BundleSpec, export_bundle  # noqa: PLC0415 - torch
    from protofleet.export.models import build_model  # noqa: PLC0415 - torch

    torch.manual_seed(0)
    spec = BundleSpec(
        name="perceptron",
        strategy="fedavg",
        classes=_CLASSES,
        preprocessing=Preprocessing(input_shape=(4,)),
    )
    path = tmp_path / "perceptron.pfb"
    export_bundle(build_model("mlp", **_ROWS), spec, out=path, key=key)
    return path


def _run(federation: Any, backends: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict]:
    """The global model and the results of an undisturbed federation."""
    federation.write(rounds=_ROUNDS, extra=_SETTINGS)
    coordinator = federation.start_coordinator()
    devices = [
        federation.start_device(name, backend=backend)
        for name, backend in zip(federation.devices, backends, strict=True)
    ]
    assert coordinator.finish() == 0, coordinator.log
    for device, backend in zip(devices, backends, strict=True):
        assert device.finish() == 0, device.log
        assert f"programs run on the backend {backend}" in device.log
    result = json.loads((federation.run_dir / "result.json").read_text())
    return load_file(federation.run_dir / "global.safetensors"), result


def test_a_mixed_demonstration_takes_turns_and_changes_nothing_else():
    fleet = [VirtualDevice(id=name, profile="pi") for name in ("a", "b", "c")]
    profiles, devices = dealt_backends("mixed", fleet)
    dealt = [profiles[device.profile] for device in devices]
    assert [profile.backend for profile in dealt] == ["onnx", "litert", "onnx"]
    assert all(profile.imu == PROFILES["pi"].imu for profile in dealt)
    assert [device.id for device in devices] == ["a", "b", "c"]


@pytest.mark.slow(seconds=15)
@pytest.mark.mosquitto
@pytest.mark.timeout(600)
def test_a_federation_of_both_runtimes_learns_what_one_of_onnx_runtime_learns(
    make_federation, bundle
):
    """Partial batches are among them: the devices have 30, 31, 32 and 33 examples."""
    alike, mixed = (make_federation(name, bundle, 4) for name in ("alike", "mixed"))
    onnx, result = _run(alike, ("onnx",) * 4)
    both, mixed_result = _run(mixed, ("onnx", "litert") * 2)
    assert both.keys() == onnx.keys()
    for name, value in onnx.items():
        np.testing.assert_allclose(both[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert any(not np.array_equal(both[name], value) for name, value in onnx.items())
    for kept, other in zip(result["rounds"], mixed_result["rounds"], strict=True):
        assert kept["participants"] == other["participants"]
        assert kept["scores"]["own_loss"] == pytest.approx(other["scores"]["own_loss"], rel=1e-3)
        for name in ("global", "personalisation", "generalisation"):
            want, got = (run["scores"][name]["accuracy"] for run in (kept, other))
            assert got == pytest.approx(want, abs=0.02), name
