"""The memory of a device's round is taken in a process of its own."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.benchmarks import memory


def test_a_round_in_a_process_of_its_own_says_what_it_took(tmp_path):
    bundle = tiny_bundle(tmp_path / "b.pfb", Ed25519PrivateKey.generate())
    found = memory.local_round_figures(bundle, 64, backend="onnx", numba=False)
    assert found.keys() == {"imported_rss_mb", "peak_rss_mb", "train_step_ms", "loss"}
    assert 10 < found["imported_rss_mb"] < found["peak_rss_mb"]
    assert found["loss"] > 0
