"""A tiny bundle, its strategy, and device processes for the tests of the edge."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scripted_coordinator import FEDERATION
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.bundle import Bundle
from protofleet.bundle.keys import save_public_key
from protofleet.datasets import DeviceData

CLASSES = ("class0", "class1", "class2")


@dataclass(frozen=True)
class World:
    """Files that devices need."""

    root: Path
    bundle_path: Path
    bundle: Bundle
    trust: Path

    def data(self, seed: int, n: int = 40) -> Path:
        """A device's examples."""
        path = self.root / f"data-{seed}.npz"
        x_train, y_train = tiny_data(seed, n)
        x_test, y_test = tiny_data(seed + 1000, 20)
        own = DeviceData(
            x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=CLASSES
        )
        own.save(path)
        return path

    def arguments(self, url: str, name: str, seed: int = 1) -> list[str]:
        """Of ``protofleet device join`` for the device ``name``."""
        values = {
            "--broker": url,
            "--federation": FEDERATION,
            "--bundle": self.bundle_path,
            "--data": self.data(seed),
            "--store": self.root / name,
            "--id": name,
            "--trust": self.trust,
        }
        pairs = [str(part) for pair in values.items() for part in pair]
        return ["device", "join", *pairs, "--json"]

    def start(
        self, arguments: list[str], script: Path | None = None, **options
    ) -> subprocess.Popen[str]:
        """Start the command line, or ``script`` with the same arguments."""
        program = [str(script)] if script else ["-c", "from protofleet.cli import main; main()"]
        # NumPy kernels start at once; what they compute is tested where they live.
        environment = {
            **os.environ,
            "PROTOFLEET_CONFIG": str(self.root / "config"),
            "PROTOFLEET_NUMBA": "0",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])])
            ),
        }
        return subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            **options,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A signed tiny bundle and the signer's public key."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    bundle_path = tiny_bundle(tmp_path / "bundle", key)
    save_public_key(public, tmp_path / "signer.pem")
    return World(
        root=tmp_path,
        bundle_path=bundle_path,
        bundle=Bundle.open(bundle_path, trusted={public}),
        trust=tmp_path / "signer.pem",
    )
