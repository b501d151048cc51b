"""Writes what a federation of a tiny model needs: its bundle, its signer, data of its devices.

    python phone_files.py FOLDER DEVICE...

``FOLDER`` gets ``tiny.pfb`` and its ``signer.pem``, by the same signer ``next.pfb``, and of FedPer
``personal.pfb`` and ``personal-next.pfb``, by another one ``foreign.pfb`` and ``foreign.pem``,
``large.pfb`` with more than a small phone can hold, ``DEVICE.npz`` for Python devices, and many
more examples as ``DEVICE.json`` for browsers, whose rounds so take some seconds where those of
Python take none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.keys import save_public_key
from protofleet.datasets import DeviceData

_CLASSES = ("class0", "class1", "class2")
_EXAMPLES, _EXAMPLES_OF_PHONES = 60, 1500
_SETTINGS = {"epochs": 480, "batch_size": 16}
"""36 000 steps in a phone's round: seconds, in which tests can break it off wherever it stands."""


def main(folder: Path, names: list[str]) -> None:
    """Write them."""
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    tiny_bundle(folder / "tiny.pfb", key, settings=_SETTINGS)
    tiny_bundle(folder / "next.pfb", key, settings={"epochs": 2})
    for epochs, name in enumerate(("personal.pfb", "personal-next.pfb"), start=2):
        settings = {"head": "b", "epochs": epochs}
        tiny_bundle(folder / name, key, strategy="fedper", settings=settings)
    tiny_bundle(folder / "foreign.pfb", other, settings={"epochs": 3})
    _large_bundle(folder / "next.pfb", folder / "large.pfb", key)
    save_public_key(key.public_key().public_bytes_raw(), folder / "signer.pem")
    save_public_key(other.public_key().public_bytes_raw(), folder / "foreign.pem")
    for index, name in enumerate(names):
        x, y = tiny_data(index, _EXAMPLES)
        test = tiny_data(1000 + index, 20)
        parts = {"x_train": x, "y_train": y, "x_test": test[0], "y_test": test[1]}
        DeviceData(**parts, classes=_CLASSES).save(folder / f"{name}.npz")
        x, y = tiny_data(index, _EXAMPLES_OF_PHONES)
        (folder / f"{name}.json").write_text(json.dumps({"x": x.tolist(), "y": y.tolist()}))


def _large_bundle(path: Path, large: Path, key: Ed25519PrivateKey) -> None:
    """A bundle whose programs hold a tensor of 32 MiB that they do not need."""
    tiny = Bundle.open(path, any_signer=True)
    values = bytes(32 << 20)
    size = len(values) // 4
    tensor = _field(1, size) + _field(2, 1) + _field(8, b"padding") + _field(9, values)
    # A repeated field of protobuf is merged: the graph has one initial tensor more.
    more = _field(7, _field(5, tensor))
    files = {name: tiny.read(name) for name in tiny.manifest.files}
    files["programs/train.onnx"] += more
    write_bundle(large, tiny.manifest, files, key)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    more, low = divmod(value, 128)
    return bytes([low | 128]) + _varint(more) if more else bytes([low])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
