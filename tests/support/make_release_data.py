"""What a release leaves on disks, for the tests of later ones: ``make_release_data.py FOLDER``.

A federation of two device processes runs two rounds of Ditto over a real Mosquitto; its bundle,
federation file, run folder, stores and data become ``FOLDER/VERSION.tar.gz``.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from brokers import mosquitto
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from e2e.conftest import Federation
from tiny_bundle import tiny_bundle

from protofleet import __version__
from protofleet.bundle.keys import save_public_key

_ROUNDS = 2
_LEFT_OUT = {"mosquitto.conf", "mosquitto.log"}


def make(folder: Path) -> Path:
    """The archive's path."""
    key = Ed25519PrivateKey.generate()
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        save_public_key(key.public_key().public_bytes_raw(), place / "key.pem")
        bundle = tiny_bundle(place / "bundle.pfb", key, strategy="ditto")
        with mosquitto(place) as port:
            federation = Federation(
                folder=place,
                url=f"mqtt://127.0.0.1:{port}",
                bundle=bundle,
                trust=place / "key.pem",
                devices=("device0", "device1"),
            )
            federation.write(rounds=_ROUNDS)
            running = [federation.start_coordinator()]
            running += map(federation.start_device, federation.devices)
            for process in running:
                if process.finish() != 0:
                    raise SystemExit(process.log)
        archive = folder / f"{__version__}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for path in sorted(place.iterdir()):
                if path.name not in _LEFT_OUT and path.suffix != ".log":
                    tar.add(path, path.name)
    return archive


if __name__ == "__main__":
    sys.stdout.write(f"{make(Path(sys.argv[1]))}\n")
