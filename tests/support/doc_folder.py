"""A user's folder with what the documentation's blocks speak of: models, a bundle, recordings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import platformdirs
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from doc_blocks import Block, blocks
from safetensors.numpy import save_file
from trained_round import trained_round

from protofleet.bundle import Bundle
from protofleet.bundle.keys import load_public_key
from protofleet.coordinator.membership.members import Members
from protofleet.edge.state.journal import StoreBinding
from protofleet.edge.state.move import BundleMove
from protofleet.edge.state.store import Store
from protofleet.strategies.types import ClientState
from protofleet.wire.trust.identity import public_bytes

# Machine code is not compiled once more for every home.
_KERNELS = str(platformdirs.user_cache_path("protofleet") / "kernels")
CLASSES = ("walking", "sitting", "stairs")
_RATE_HZ = 50
_ALIASES = ("model.pfb", "hart.pfb", "hart-small.pfb", "new.pfb", "my.pfb", "mine.pfb")


def make_folder(folder: Path) -> Path:
    """Export the model of ``docs/guide.md`` and write what its reader would have beside it.

    ``home`` in it is the user's; keys are trusted in ``home/config`` (``PROTOFLEET_CONFIG``).
    """
    guide = [block for block in blocks() if block.page == "guide.md"]
    (folder / "mine.py").write_text(_block(guide, "def build"))
    (folder / "sensor.json").write_text(_block(guide, '"input_shape"'))
    (folder / "home").mkdir()
    _write_windows(folder)
    export = "export mine:build --checkpoint mine.safetensors --strategy fedper --strategy fedavg"
    sensor = "--preprocessing sensor.json"
    made = f"{export} {sensor} --classes {','.join(CLASSES)} --out bundle.pfb"
    for words in (made, "bundle keygen --out signer.pem", "bundle trust signer.pem"):
        command = [sys.executable, "-P", "-m", "protofleet", *words.split()]
        subprocess.run(command, cwd=folder, env=environment(folder), check=True)
    for name in _ALIASES:
        shutil.copy(folder / "bundle.pfb", folder / name)
    _write_recordings(folder)
    _write_store(folder)
    _write_members(folder)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Of a user whose home is in the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    home = folder / "home"
    kept.setdefault("PROTOFLEET_KERNEL_CACHE", _KERNELS)
    ours = {"HOME": str(home), "PROTOFLEET_CONFIG": str(home / "config"), "OMP_NUM_THREADS": "1"}
    return {**kept, **ours}


def _block(candidates: list[Block], containing: str) -> str:
    (found,) = [block.text for block in candidates if containing in block.text]
    return found


def _write_recordings(folder: Path) -> None:
    """Readings as CSV, with and without labels."""
    channels = json.loads((folder / "sensor.json").read_text())["channels"]
    rng = np.random.default_rng(0)
    for name, labelled, seconds in (("mine", True, 30), ("new", False, 10)):
        rows = [",".join(["time_s", *channels, *(["label"] if labelled else [])])]
        for index in range(len(CLASSES) * seconds * _RATE_HZ):
            kind = index // (seconds * _RATE_HZ)
            wave = 0.3 * np.sin((kind + 1) * index / _RATE_HZ) + rng.normal(0, 0.1, len(channels))
            values = [f"{index / _RATE_HZ:.2f}", *(f"{value:.4f}" for value in wave)]
            rows.append(",".join([*values, *([CLASSES[kind]] if labelled else [])]))
        (folder / f"{name}.csv").write_text("\n".join([*rows, ""]))


def _write_windows(folder: Path) -> None:
    """Windows of three far classes as NPZ, and values with which the model tells them apart.

    The same in every run, and so sure of themselves that 8 bits change no class.
    """
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 1, (len(CLASSES), 128 * 6)).astype(np.float32)
    y = np.arange(60) % len(CLASSES)
    noise = rng.normal(0, 0.5, (60, 128 * 6)).astype(np.float32)
    x = (centres[y] + noise).reshape(60, 128, 6)
    for name in ("central", "readings"):
        np.savez(folder / f"{name}.npz", x=x, y=y)
    halves = {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}
    for name in ("mine", "test"):
        np.savez(folder / f"{name}.npz", **halves, classes=np.array(CLASSES))
    hidden, output = np.zeros((64, 128 * 6), np.float32), np.zeros((3, 64), np.float32)
    hidden[:3], output[:, :3] = centres / 100, np.eye(3)
    values = {"1.weight": hidden, "1.bias": np.zeros(64, np.float32)}
    values |= {"3.weight": output, "3.bias": np.zeros(3, np.float32)}
    save_file(values, folder / "mine.safetensors")


def _write_store(folder: Path) -> None:
    """A device's store in which round 12 has counted, ``mine``, and the same in the user's data."""
    keys = frozenset(map(load_public_key, [folder / "signer.pem"]))
    bundle = Bundle.open(folder / "bundle.pfb", trusted=keys)
    store = Store.open(folder / "mine", device_id="pi-1")
    layout = bundle.manifest.layout_hash
    binding = StoreBinding(federation="my-study", bundle=bundle.digest, layout_hash=layout)
    BundleMove(store, binding, bundle).commit()
    store.bind_strategy("fedper", {})
    tensors = {f"params/{name}": value for name, value in bundle.model().params.items()}
    state = ClientState(round_id=12, tensors=tensors)
    store.commit_trained(trained_round(state, b"update"), transfer_id="t12")
    store.commit_delivered()
    store.close()
    devices = folder / "home" / ".local" / "share" / "protofleet" / "devices"
    shutil.copytree(folder / "mine", devices / "my-study")


def _write_members(folder: Path) -> None:
    """The operator's folder ``federation``, with three devices."""
    with Members.create(folder / "federation", "my-study") as members:
        for number, name in enumerate(("anna", "berta", "carl"), start=1):
            key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
            members.grant(members.needed_key(), name, public_bytes(key))
