"""Decoders of files: bundles, keys, stores, a coordinator's folders, settings and data."""

from __future__ import annotations

import functools
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fuzz.target import REFUSALS, Target, scratch
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle, keys
from protofleet.bundle.files import MANIFEST, SIGNATURE, archive
from protofleet.bundle.manifest import Manifest, Preprocessing
from protofleet.bundle.onnx_files import check_onnx
from protofleet.bundle.rules import check_manifest, parse
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.membership.members import Members
from protofleet.datasets import DeviceData, load_device_data
from protofleet.datasets._unpickle import unpickle_arrays
from protofleet.edge import credentials
from protofleet.edge.data.csv_rows import row_blocks
from protofleet.edge.data.examples import read_csv
from protofleet.edge.data.sensor_logger import logged_tables
from protofleet.edge.state.journal import (
    Journal,
    PendingUpdate,
    StoreBinding,
    StoredFile,
    StoredPayload,
    StoredState,
    read_journal,
)
from protofleet.edge.state.store import Store
from protofleet.errors import ProtofleetError
from protofleet.experiments.config import committed, load_experiment
from protofleet.federation.settings import load_config
from protofleet.firmware_sim.profile import load_fleet
from protofleet.wire.trust.identity import DeviceGrant, public_bytes, sign_statement

_KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
_PUBLIC = public_bytes(_KEY)


def _from_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """A decoder of a file's bytes, whose path ``read`` is given."""

    def decode(data: bytes) -> None:
        path = scratch() / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(data)
        read(path)

    return decode


# Bundles and keys


@functools.cache
def _bundle() -> tuple[bytes, dict[str, bytes]]:
    """A good bundle's manifest, and its other files."""
    path = tiny_bundle(scratch() / "good", _KEY)
    manifest = (path / MANIFEST).read_bytes()
    return manifest, {name: (path / name).read_bytes() for name in parse(manifest).files}


def _archived(manifest: bytes) -> bytes:
    _, files = _bundle()
    signature = _PUBLIC + _KEY.sign(manifest)
    return b"".join(archive({MANIFEST: manifest, SIGNATURE: signature, **files}))


def _open_bundle(path: Path) -> None:
    Bundle.open(path, trusted={_PUBLIC}).model()


def _signed_manifest(manifest: bytes) -> None:
    """What somebody whose key is trusted may make up."""
    _from_file("signed.pfb", _open_bundle)(_archived(manifest))


def _check_manifest(data: bytes) -> None:
    check_manifest(parse(data))


def _public_keys() -> Iterator[bytes]:
    keys.save_public_key(_PUBLIC, scratch() / "public.pem")
    yield (scratch() / "public.pem").read_bytes()


def _private_keys() -> Iterator[bytes]:
    yield _KEY.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _onnx_files() -> Iterator[bytes]:
    _, files = _bundle()
    yield from (data for name, data in files.items() if name.endswith(".onnx"))


# Device stores


def _journals() -> Iterator[bytes]:
    file = StoredFile(sha256="ab" * 32, bytes=10)
    state = StoredState(round_id=2, transfer_id="cd" * 16, file=file, residual=file)
    payload = StoredPayload(round_id=3, transfer_id="cd" * 16, file=file)
    full = Journal(
        binding=StoreBinding(federation="lab", bundle="cd" * 32, layout_hash="ef" * 32),
        strategy="fedavg",
        settings={"lr": 0.1},
        state=state,
        received=payload,
        pending=PendingUpdate(round_id=3, update=file, state=state),
        payloads=(file,),
    )
    yield from map(msgspec.json.encode, (full, Journal()))


def _journal(path: Path) -> None:
    journal = read_journal(path.parent)
    assert journal.files is not None
    assert journal.stage
    assert len(journal.transfers) < 4


def _open_store(path: Path) -> None:
    Store.open(path.parent).close()


def _enrolments() -> Iterator[bytes]:
    grant = DeviceGrant(
        federation="lab", device_id="pi-7", key=_PUBLIC.hex(), serial=1, until=2**36
    )
    yield msgspec.json.encode(
        credentials.Enrolment(
            federation="lab",
            device_id="pi-7",
            grant=sign_statement(_KEY, grant),
            federation_key=_PUBLIC.hex(),
            broker={"url": "mqtts://pi-7@broker.example", "ca_file": "ca.pem"},
        )
    )


def _open_enrolment(path: Path) -> None:
    folder = path.parent
    if not (folder / "device.pem").exists():
        (folder / "device.pem").touch(mode=0o600)
        (folder / "device.pem").write_bytes(next(_private_keys()))
    (folder / "memory.json").unlink(missing_ok=True)
    enrolment = credentials.load_enrolment(folder)
    credentials.open_credentials(folder)
    if enrolment is not None:
        enrolment.access(folder)


def _memories() -> Iterator[bytes]:
    yield msgspec.json.encode({"start": 3, "announced": 2**41, "federation_key": _PUBLIC.hex()})


def _open_memory(path: Path) -> None:
    folder = path.parent
    if not (folder / "device.pem").exists():
        (folder / "device.pem").touch(mode=0o600)
        (folder / "device.pem").write_bytes(next(_private_keys()))
        (folder / "enrolment.json").write_bytes(next(_enrolments()))
    credentials.open_credentials(folder)


# A coordinator's folders

_IDENTITY = {"federation": "lab"}


def _ledgers() -> Iterator[bytes]:
    folder = scratch() / "good-ledger"
    with Ledger(folder, _IDENTITY) as ledger:
        ledger.devices.register("pi-7", (1, 2))
        ledger.open_round(1, ["pi-7", "pi-8"], 1.0)
    yield _whole(folder / "ledger.sqlite")


def _whole(path: Path) -> bytes:
    """A database's bytes without a journal beside it."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return path.read_bytes()


def _read_ledger(path: Path) -> None:
    for beside in path.parent.glob("*-*"):
        beside.unlink()
    with Ledger(path.parent, _IDENTITY) as ledger:
        ledger.state()
        ledger.devices.registered()
        ledger.committed()
        ledger.server_state()
        list(ledger.usage.latest())
        ledger.devices.references()
        ledger.signed_offers()


_TOLD_BY_RUN = (msgspec.DecodeError, ProtofleetError)
"""``coordinator.process.run`` makes one line of the former."""


def _members() -> Iterator[bytes]:
    folder = scratch() / "good-members"
    with Members.create(folder, "lab") as members:
        key = members.private_key()
        assert key is not None
        members.grant(key, "pi-7", _PUBLIC)
    yield _whole(folder / "members.sqlite")


def _read_members(path: Path) -> None:
    for beside in path.parent.glob("*-*"):
        beside.unlink()
    with Members(path.parent, "lab") as members:
        assert members.members() is not None
        assert members.rotations is not None
        assert members.revoked() is not None
        assert members.federation_key


# Settings


_FEDERATION_FILE = b"""\
federation = "home"
broker = "mqtt://127.0.0.1:1883"
bundle = "model.pfb"
run_dir = "runs/home"
rounds = 20
seed = 1
[strategy]
name = "fedavg"
settings = {optimiser = {lr = 0.1, kind = "adam"}, epochs = 5}
[cohort]
minimum = 8
size = 0.5
[round]
deadline_s = 120.0
quorum = 0.75
[evaluation]
pooled = "pooled.npz"
[codec]
up = "int8"
"""
_FLEET_FILE = b"""\
federation = "study"
broker = {url = "mqtts://user@broker.example", ca_file = "ca.pem"}
bundle = "bundle.pfb"
folder = "fleet"
seed = 7
[profiles.watch]
threads = 1
memory_mb = 512
[profiles.watch.link]
up_kbit_s = 1000
[profiles.watch.imu]
rate_hz = 26
[[devices]]
id = "watch-1"
profile = "watch"
data = "watch-1.npz"
"""


def _experiments() -> Iterator[bytes]:
    yield from (path.read_bytes() for path in list(committed().values())[:3])


# Data


def _sensor_manifest() -> Manifest:
    manifest = parse(_bundle()[0])
    windows = Preprocessing(
        input_shape=(8, 2), rate_hz=20.0, window=8, hop=4, channels=("ax", "ay")
    )
    return msgspec.structs.replace(manifest, preprocessing=windows)


def _csvs() -> Iterator[bytes]:
    rows = [f"{k / 20},{k % 3},{k % 5}.5,class{k // 20}" for k in range(40)]
    yield "\n".join(["time_s,ax,ay,label", *rows]).encode()
    yield "\n".join(",".join("1" * 16) for _ in range(3)).encode()


def _read_csv(data: bytes) -> None:
    for _ in read_csv(io.BytesIO(data), "data", _sensor_manifest()):
        pass


def _sensor_loggers() -> Iterator[bytes]:
    yield json.dumps(
        [
            {"sensor": "Accelerometer", "time": str(k), "x": k / 3, "y": [k, {"z": None}]}
            for k in range(9)
        ]
    ).encode()


def _read_sensor_logger(data: bytes) -> None:
    for table in logged_tables(io.BytesIO(data), "data"):
        for _ in row_blocks(table.stream(io.BytesIO(data)), "data"):
            pass


def _npzs() -> Iterator[bytes]:
    rng = np.random.default_rng(1)
    data = DeviceData(
        x_train=rng.standard_normal((6, 4)).astype(np.float32),
        y_train=np.arange(6) % 3,
        x_test=rng.standard_normal((3, 4)).astype(np.float32),
        y_test=np.arange(3),
        classes=("a", "b", "c"),
    )
    data.save(scratch() / "good.npz")
    yield (scratch() / "good.npz").read_bytes()
    file = io.BytesIO()
    arrays = {n: getattr(data, n) for n in ("x_train", "y_train", "x_test", "y_test")}
    np.savez_compressed(file, **arrays, classes=np.array(data.classes))
    yield file.getvalue()


def _pickles() -> Iterator[bytes]:
    content = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], b"x": "y"}
    for protocol in (2, 4):
        yield _pickled(content, protocol)


def _pickled(content: object, protocol: int) -> bytes:
    import pickle  # noqa: PLC0415 - only written here

    return pickle.dumps(content, protocol)


TARGETS = (
    Target("bundle", _from_file("fuzzed.pfb", _open_bundle), lambda: [_archived(_bundle()[0])],
           max_len=16384, constant=4 << 20),
    Target("bundle-signed", _signed_manifest, lambda: [_bundle()[0]],
           max_len=16384, constant=4 << 20),
    Target("manifest", _check_manifest, lambda: [_bundle()[0]], max_len=16384),
    Target("public-key", _from_file("key.pem", keys.load_public_key), _public_keys),
    Target("private-key", _from_file("private.pem", keys.load_signing_key), _private_keys),
    Target("store-journal", _from_file("journal/journal.json", _journal), _journals),
    Target("store-identity", _from_file("store/identity.json", _open_store),
           lambda: [b'{"device_id": "pi-7"}']),
    Target("enrolment", _from_file("enrolled/enrolment.json", _open_enrolment), _enrolments),
    Target("enrolment-memory", _from_file("memory/memory.json", _open_memory), _memories),
    Target("ledger", _from_file("run/ledger.sqlite", _read_ledger), _ledgers, max_len=1 << 16,
           refusals=(*REFUSALS, *_TOLD_BY_RUN)),
    Target("members", _from_file("keys/members.sqlite", _read_members), _members,
           max_len=1 << 16),
    Target("federation-file", _from_file("federation.toml", load_config),
           lambda: [_FEDERATION_FILE], per_byte=200),
    Target("fleet-file", _from_file("fleet.toml", load_fleet), lambda: [_FLEET_FILE], per_byte=200),
    Target("onnx", lambda data: check_onnx(data, "model.onnx"), _onnx_files),
    Target("experiment-file", _from_file("experiment.toml", load_experiment), _experiments,
           per_byte=200),
    # Up to 100 samples are made of one.
    Target("csv", _read_csv, _csvs, per_byte=2000),
    Target("sensor_logger", _read_sensor_logger, _sensor_loggers, per_byte=2000),
    # Deflate makes at most 1032 bytes of one.
    Target("npz", _from_file("data.npz", load_device_data), _npzs, per_byte=5000),
    Target("pickle", lambda data: unpickle_arrays(io.BytesIO(data), "data"), _pickles),
)  # fmt: skip
