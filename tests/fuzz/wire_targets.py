"""Decoders of what comes through a broker."""

from __future__ import annotations

import base64
import functools
import json
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fuzz.target import Target
from packed import pack_update
from tiny_bundle import tiny_bundle

from protofleet.edge.data.mqtt_readings import parse_payload, time_of, value_at
from protofleet.federation.admission import ExpectedUpdate, admit, expect_updates
from protofleet.federation.coding import decode_update
from protofleet.federation.plan import make_plan
from protofleet.federation.records import Costs
from protofleet.federation.settings import FederationConfig
from protofleet.strategies.types import Evaluation, Update
from protofleet.tensors import blobs, strict_json
from protofleet.wire import codecs, messages
from protofleet.wire.codecs import Codec, Coding
from protofleet.wire.messages import (
    Announcement,
    AnyMessage,
    BundleOffer,
    BundleProgress,
    Heartbeat,
    Need,
    Presence,
    Receipt,
    Task,
    TransferOffer,
)
from protofleet.wire.mqtt.broker_access import BrokerAccess, BrokerAddress
from protofleet.wire.topics import Channel, Topics, announced_federation
from protofleet.wire.transfers import chunks
from protofleet.wire.transfers.chunks import Chunk, ChunkCipher
from protofleet.wire.trust.coordinator_protection import (
    CoordinatorCredentials,
    CoordinatorProtection,
)
from protofleet.wire.trust.device_protection import DeviceCredentials, DeviceProtection
from protofleet.wire.trust.identity import (
    CoordinatorCertificate,
    DeviceGrant,
    KeyRotation,
    public_bytes,
    read_statement,
    sign,
    sign_statement,
)
from protofleet.wire.trust.session import Handshake, Session
from protofleet.wire.trust.signed_records import name_in

_FEDERATION, _COORDINATOR, _DEVICE = (
    Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3)
)
_UNTIL = 2**36
_PUBLIC = public_bytes(_DEVICE).hex()
_GRANT = DeviceGrant(federation="lab", device_id="pi-7", key=_PUBLIC, serial=1, until=_UNTIL)
_TOPICS = Topics("lab")
_ALL = _TOPICS.announcement
_ST = _TOPICS.of(Channel.PRESENCE, "pi-7")
_STATUS = _TOPICS.of(Channel.UP_STATUS, "pi-7")
_MAX = 1 << 18
"""Largest blob that these decoders are ready for."""

_OFFER = TransferOffer(
    transfer_id="000102030405060708090a0b0c0d0e0f",
    kind="update",
    round_id=3,
    total_bytes=100_000,
    sha256="ab" * 32,
    chunk_bytes=64_976,
    codec="int8+zlib",
    raw_bytes=120_000,
    reference="cd" * 32,
    key="ef" * 32,
    signature="01" * 64,
)
_ANNOUNCEMENT = Announcement(
    federation="lab",
    boot_id="c1",
    phase="training",
    round_id=3,
    rounds=20,
    strategy="fedavg",
    bundle="cd" * 32,
    layout_hash="ef" * 32,
    bundles=("ab" * 32,),
    withdrawal="A" * 100,
)
_PRESENCE = Presence(
    device_id="pi-7",
    boot_id="b1",
    status="online",
    num_examples=120,
    class_counts=(100, 20),
    strategies=("fedavg", "fedali"),
    chunk_bytes=3900,
    sequence=4,
    takes_bundles=True,
    progress=BundleProgress(bundle="ab" * 32, state="failed", rule="rehearsal", reason="loss"),
)
_HEARTBEAT = Heartbeat(
    device_id="pi-7",
    boot_id="b1",
    round_id=3,
    phase="train",
    bytes_up=10,
    bytes_down=20,
    peak_rss_bytes=30,
)
_RECORDS = (
    _OFFER,
    _ANNOUNCEMENT,
    _PRESENCE,
    _HEARTBEAT,
    Task(task="train", round_id=3, federation="lab", settings={"lr": 0.1}, payload=_OFFER),
    BundleOffer(federation="lab", bundle="ab" * 32, sequence=5, payload=_OFFER),
    Need(transfer_id=_OFFER.transfer_id, missing=((0, 1), (4, 7)), credit=4),
    Receipt(transfer_id=_OFFER.transfer_id, status="reject", reason="late", rule="codec"),
)


# Records


def _grant(text: str) -> DeviceGrant:
    return read_statement(text, DeviceGrant, [public_bytes(_FEDERATION)], federation="lab")


def _coordinator() -> CoordinatorProtection:
    certificate = CoordinatorCertificate(
        federation="lab", run_id="00ff", key=public_bytes(_COORDINATOR).hex(), until=_UNTIL
    )
    rotation = KeyRotation(federation="lab", old="ab" * 32, new=public_bytes(_FEDERATION).hex())
    end = CoordinatorProtection(
        CoordinatorCredentials(
            federation="lab",
            run_id="00ff",
            bundle="cd" * 32,
            federation_key=public_bytes(_FEDERATION),
            key=_COORDINATOR,
            certificate=lambda: sign_statement(_FEDERATION, certificate),
            rotations=(sign_statement(_DEVICE, rotation),),
            grant=_grant,
            announced=0,
            note=lambda _: None,
        )
    )
    # The same in every process, so that a kept presence still answers it.
    end._handshake = Handshake(X25519PrivateKey.from_private_bytes(bytes([4]) * 32), bytes(16))
    return end


def _device() -> DeviceProtection:
    return DeviceProtection(
        DeviceCredentials(
            federation="lab",
            device_id="pi-7",
            key=_DEVICE,
            grant=sign_statement(_FEDERATION, _GRANT),
            federation_key=public_bytes(_FEDERATION),
            start=1,
            announced=0,
            note=lambda *_: None,
        )
    )


def _announcements() -> Iterator[bytes]:
    yield _sent(_coordinator().write(_ANNOUNCEMENT, _ALL, ""))


def _presences() -> Iterator[bytes]:
    device = _device()
    device.read(next(_announcements()), _ALL, "", Announcement)
    yield _sent(device.write(_PRESENCE, _ST, "pi-7"))
    gone = Presence(device_id="pi-7", boot_id="b1", status="offline")
    yield _sent(device.write(gone, _ST, "pi-7"))


def _sent(payload: bytes | None) -> bytes:
    assert payload is not None
    return payload


def _read_announcement(payload: bytes) -> None:
    name_in(payload)
    _device().read(payload, _ALL, "", Announcement)


def _read_presence(payload: bytes) -> None:
    _coordinator().read(payload, _ST, "pi-7", Presence)


def _signed_announcement(body: bytes) -> None:
    """What a coordinator with a certificate may make up."""
    place = _ALL.encode() + b"\0" + body
    _read_announcement(sign(_COORDINATOR, "announcement", place) + body)


def _signed_presence(body: bytes) -> None:
    """What a member may make up."""
    place = _ST.encode() + b"\0" + body
    _read_presence(sign(_DEVICE, "presence", place) + body)


def _sealed() -> Iterator[bytes]:
    yield Session(bytes(32), bytes(32)).seal(_STATUS, messages.encode(_HEARTBEAT))


def _statements() -> Iterator[bytes]:
    yield sign_statement(_FEDERATION, _GRANT).encode()


def _statement_bodies() -> Iterator[bytes]:
    yield msgspec.json.encode(_GRANT)


def _signed_statement(body: bytes) -> None:
    """What somebody with the federation key may make up: its own mistakes, at most."""
    signed = sign(_FEDERATION, "device statement", body) + body
    _grant(base64.urlsafe_b64encode(signed).rstrip(b"=").decode())


def _topics() -> Iterator[bytes]:
    for channel in Channel:
        if not channel.value.startswith("all"):
            yield _TOPICS.of(channel, "pi-7").encode()
    yield _ALL.encode()
    yield _TOPICS.lease.encode()


def _parse_topic(data: bytes) -> None:
    topic = data.decode("utf-8", "surrogateescape")
    announced_federation(topic)
    if (found := _TOPICS.parse(topic)) is not None and found.device_id:
        assert _TOPICS.of(found.channel, found.device_id) == topic


# Chunks


def _chunks() -> Iterator[bytes]:
    cipher = ChunkCipher("ef" * 32, _OFFER.transfer_id)
    for index, last in ((0, False), (7, True)):
        chunk = Chunk(transfer_id=_OFFER.transfer_id, index=index, last=last, data=bytes(40))
        yield chunks.pack(chunk)
        yield chunks.pack(cipher.seal(chunk))


def _open_chunk(payload: bytes) -> None:
    chunk = chunks.parse(payload)
    if chunk.sealed:
        ChunkCipher("ef" * 32, _OFFER.transfer_id).open(chunk)


def _checked_chunk(payload: bytes) -> None:
    """With the checksum that whoever makes up a chunk computes, too."""
    if len(payload) >= chunks.HEADER_BYTES:
        crc = zlib.crc32(payload[chunks.HEADER_BYTES :], zlib.crc32(payload[:28]))
        payload = payload[:28] + struct.pack(">I", crc) + payload[chunks.HEADER_BYTES :]
    _open_chunk(payload)


# Tensors


def _tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "params/w": rng.standard_normal((9, 8)).astype(np.float32),
        "state/p": rng.standard_normal(300).astype(np.float32),
        "labels": np.arange(5),
        "mask": rng.random(7) > 0.5,
    }


def _blobs() -> Iterator[bytes]:
    yield blobs.encode(_tensors(), {"update": "{}"})
    yield blobs.encode({})
    for dtype in ("<f8", "<f2", "|i1", "<u8"):
        yield blobs.encode({"a": np.zeros((2, 3), dtype), "b": np.zeros((0, 4), dtype)})


def _reread(data: bytes) -> None:
    """What is accepted can be written, and is the same then."""
    tensors, metadata = blobs.decode(data, max_bytes=_MAX)
    again, about = blobs.decode(blobs.encode(tensors, metadata), max_bytes=1 << 62)
    assert (again.keys(), about) == (tensors.keys(), metadata)


def _documents() -> Iterator[bytes]:
    yield json.dumps({"a": [1, 2.5, None, True, {"b": "\ud83d\ude00"}], "c": {}}).encode()
    yield b"[]"


def _coded(kind: str) -> Iterator[bytes]:
    for baseline in ({}, _tensors(1)):
        codec = Codec.of(kind, keep=0.2)
        yield codecs.encode(_tensors(), baseline, codec, residual={}, metadata={"a": "b"}).blob
        yield codecs.encode(_tensors(), baseline, codec).blob


def _decode_coded(codec: str, data: bytes) -> None:
    raw = codecs.to_raw(data, _tensors(1), Coding(codec=codec, raw_bytes=len(data)), max_bytes=_MAX)
    blobs.decode(raw, max_bytes=4 * _MAX)


def _zlibbed() -> Iterator[bytes]:
    """The size that an offer states, and the stream."""
    for blob in _coded("int8"):
        yield struct.pack("<I", len(blob)) + zlib.compress(blob)


def _inflate(data: bytes) -> None:
    raw_bytes = int.from_bytes(data[:4], "little")
    coding = Coding(codec="int8+zlib", raw_bytes=raw_bytes)
    codecs.to_raw(data[4:], _tensors(1), coding, max_bytes=_MAX)


@functools.cache
def _expected() -> ExpectedUpdate:
    with tempfile.TemporaryDirectory() as folder:
        config = FederationConfig(
            federation="lab",
            broker=BrokerAccess(url="mqtt://127.0.0.1"),
            bundle=tiny_bundle(Path(folder) / "tiny.pfb", _FEDERATION),
            run_dir=Path(folder) / "run",
            rounds=2,
            trusted=(public_bytes(_FEDERATION).hex(),),
        )
        return expect_updates(make_plan(config))


def _updates() -> Iterator[bytes]:
    tensors = {n: np.ones(f.shape, f.dtype) for n, f in _expected().uplink.required.items()}
    counts = np.array([[5, 1, 0], [2, 8, 0], [0, 0, 4]])
    update = Update(
        client_id="pi-7",
        round_id=3,
        num_examples=20,
        tensors=tensors,
        evaluation=Evaluation(own=counts, pooled=counts),
        loss=0.5,
    )
    costs = Costs(
        train_step_ms=(1.5,),
        infer_ms=(0.25,),
        phases_s={"train": 2.5},
        cpu_s={"train": 2.25},
        peak_rss_bytes=1_000_000,
    )
    yield pack_update(update, costs)


def _admit(data: bytes) -> None:
    forms = _expected().uplink
    decoded = decode_update(
        data, Coding(), {}, forms=forms, max_bytes=_MAX, class_counts=(5, 5, 10)
    )
    admit(decoded, _expected(), client_id="pi-7", round_id=3, baseline={})


def _urls() -> Iterator[bytes]:
    yield b"mqtts://user:p%2Fss@broker.example:8883?version=5"
    yield b"mqtt://[::1]"


def _read_sensor(data: bytes) -> None:
    said = parse_payload(data)
    time_of(said, 1_780_000_000.0)
    value_at(said, "accel.x" if b"{" in data else "")


def _sensor_payloads() -> Iterator[bytes]:
    yield b"21.5"
    yield b"unavailable"
    yield b'{"accel": {"x": 0.1}, "last_seen": "2026-05-28T20:26:45.250Z"}'
    yield b'{"accel": {"x": "-1e-3"}, "time": 1780000000250}'


def _parse_url(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    BrokerAddress.parse(text)
    str(BrokerAccess(url=text))


TARGETS = (
    Target("message", lambda data: messages.decode(data, AnyMessage),
           lambda: map(messages.encode, _RECORDS)),
    Target("announcement", _read_announcement, _announcements),
    Target("announcement-signed", _signed_announcement, lambda: (p[64:] for p in _announcements())),
    Target("presence", _read_presence, _presences),
    Target("presence-signed", _signed_presence, lambda: (p[64:] for p in _presences())),
    Target("sealed", lambda data: Session(bytes(32), bytes(32)).open(_STATUS, data), _sealed),
    Target("statement", lambda data: _grant(data.decode("latin-1")), _statements),
    Target("statement-signed", _signed_statement, _statement_bodies),
    Target("topic", _parse_topic, _topics, max_len=256),
    Target("chunk", _open_chunk, _chunks),
    Target("chunk-checked", _checked_chunk, _chunks),
    Target("json", lambda data: strict_json.loads(data, rule="blob-header", what="json"),
           _documents),
    Target("blob", _reread, _blobs),
    *(
        Target(f"codec-{kind}", functools.partial(_decode_coded, kind),
               functools.partial(_coded, kind), constant=8 * _MAX)
        for kind in codecs.CODECS
    ),
    Target("codec-zlib", _inflate, _zlibbed, constant=10 * _MAX),
    Target("update", _admit, _updates),
    Target("broker-url", _parse_url, _urls, max_len=512),
    Target("mqtt-reading", _read_sensor, _sensor_payloads, refusals=(ValueError,)),
)  # fmt: skip
