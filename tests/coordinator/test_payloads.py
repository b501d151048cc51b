"""What each device gets, has and refers to, kept in a real ledger."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.coordinator.payloads import Payloads
from protofleet.errors import InputError, ProtofleetError, RefusedError
from protofleet.federation.coding import (
    decode_update,
    encode_update,
    initial_tensors,
    update_baseline,
)
from protofleet.federation.plan import make_plan
from protofleet.federation.records import Costs, Scores
from protofleet.federation.settings import CodecSettings, FederationConfig
from protofleet.strategies.types import ServerState, Update
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.transfers.transfer import Received, describe

_LIMIT = 1 << 20


class World:
    """A run folder, and one device that answers."""

    def __init__(self, folder, codec):
        bundle = folder / "tiny.pfb"
        if not bundle.exists():
            tiny_bundle(bundle, Ed25519PrivateKey.generate(), features=40)
        config = FederationConfig(
            federation="home",
            broker=BrokerAccess(url="mqtt://127.0.0.1"),
            bundle=bundle,
            run_dir=folder / "run",
            rounds=3,
            codec=codec,
        )
        self.plan = make_plan(config)
        self.ledger = Ledger(config.run_dir, self.plan.identity)
        self.payloads = Payloads(self.plan, self.ledger, self.server)
        self.initial = initial_tensors(self.plan.model)

    @property
    def devices(self):
        return self.ledger.devices

    def close(self):
        self.ledger.close()
        self.close = lambda: None

    def restart(self):
        self.ledger.close()
        self.ledger = Ledger(self.plan.config.run_dir, self.plan.identity)
        self.payloads = Payloads(self.plan, self.ledger, self.server)

    def server(self, round_id):
        """Another model every round."""
        rng = np.random.default_rng(round_id)
        tensors = {
            name: value + rng.normal(0, 0.1, value.shape).astype(np.float32)
            for name, value in self.initial.items()
        }
        return ServerState(round_id=round_id - 1, tensors=tensors)

    def decoded(self, posted, earlier=None):
        """What a device with an ``earlier`` one makes of a payload."""
        blob, known = posted.path.read_bytes(), {**self.initial, **(earlier or {})}
        return codecs.decode(blob, known, posted.coding, max_bytes=_LIMIT)[0]

    def update(self, client_id, round_id, payload, posted, codec):
        """A received update of the payload, a little moved."""
        tensors = {name: value + np.float32(0.25) for name, value in payload.items()}
        update = Update(client_id=client_id, round_id=round_id, num_examples=3, tensors=tensors)
        baseline = update_baseline(self.plan.model, payload)
        encoded = encode_update(update, Costs(), baseline, codec, {})
        path = self.plan.config.run_dir / f"{client_id}.part"
        path.write_bytes(encoded.blob)
        offer = describe(
            encoded.blob,
            kind="update",
            device_id=client_id,
            round_id=round_id,
            coding=encoded.coding(posted.reference),
        )
        return Received(client_id, offer, path)

    def accept(self, event):
        """As the service does."""
        round_id, coding = event.offer.round_id, event.offer.coding
        baseline = self.payloads.update_baseline(round_id, event.device_id, coding)
        decoded = decode_update(event.path.read_bytes(), coding, baseline, max_bytes=_LIMIT)
        event.path.write_bytes(decoded.to_raw(max_bytes=_LIMIT))
        accepted = Accepted(device_id=event.device_id, transfer_id="t", record=decoded.record)
        reference = self.payloads.held_reference(event.device_id)
        self.ledger.accept(ArrivedUpdate(event.path, accepted, reference=reference))

    def a_round(self, round_id, *clients, codec=None):
        """One round from opening to commit; returns what was sent to each client."""
        server, sent = self.server(round_id), {}
        self.ledger.open_round(round_id, clients, 0.0)
        for client_id in clients:
            reference = self.devices.reference_of(client_id)
            known = self.payloads._tensors(reference) if reference else None
            posted = self.payloads.payload_for(round_id, client_id)
            payload = self.decoded(posted, known)
            self.accept(self.update(client_id, round_id, payload, posted, codec or Codec()))
            sent[client_id] = posted, payload
        self.ledger.close_round(round_id)
        after = ServerState(round_id=round_id, tensors=server.tensors)
        self.ledger.commit_round(after, Scores(), 1.0, keep_states=1)
        self.payloads.clear()
        return sent


@pytest.fixture
def make(tmp_path):
    made = []

    def new(**codec):
        made.append(World(tmp_path, CodecSettings(**codec)))
        return made[-1]

    yield new
    for world in made:
        world.close()


def _references(world):
    return sorted(path.stem for path in Path(world.ledger.folder / "references").iterdir())


def test_devices_with_the_same_payload_share_one_copy(make):
    world = make(down="int8")
    sent = world.a_round(1, "anna", "berta")
    assert sent["anna"][0] == sent["berta"][0]
    assert _references(world) == [sent["anna"][0].reference]
    assert world.devices.references() == dict.fromkeys(("anna", "berta"), _references(world)[0])
    world.a_round(2, "anna")
    assert len(_references(world)) == 2
    world.a_round(3, "anna", "berta")
    assert len(_references(world)) == 2


def test_a_payload_refers_to_that_of_the_last_accepted_update(make):
    world = make(down="int8")
    first = world.a_round(1, "anna")["anna"][0]
    posted = world.payloads.payload_for(2, "anna")
    assert posted.coding.reference == first.reference
    assert world.payloads.payload_for(2, "berta").coding.reference == ""
    world.restart()
    assert world.payloads.payload_for(2, "anna") == posted


def test_a_raw_federation_keeps_no_payloads(make):
    world = make()
    posted, payload = world.a_round(1, "anna")["anna"]
    assert (posted.coding.codec, _references(world), world.devices.references()) == (
        "raw",
        [],
        {},
    )
    np.testing.assert_array_equal(payload["params/w"], world.server(1).tensors["params/w"])


@pytest.mark.parametrize("down", ["raw", "int8"])
def test_what_is_spooled_is_the_raw_blob(make, down):
    """A raw payload serves as the reference of a coded update too."""
    world = make(up="int8", down=down)
    world.ledger.open_round(1, ["anna"], 0.0)
    posted = world.payloads.payload_for(1, "anna")
    payload = world.decoded(posted)
    event = world.update("anna", 1, payload, posted, Codec.of("int8+zlib"))
    world.accept(event)
    (update,) = world.ledger.updates(1)
    np.testing.assert_allclose(update.tensors["params/w"], payload["params/w"] + 0.25, atol=1e-6)


def test_an_update_of_another_payload_is_refused(make):
    world = make(up="int8", down="int8")
    world.ledger.open_round(1, ["anna"], 0.0)
    posted = world.payloads.payload_for(1, "anna")
    other = world.payloads.payload_for(2, "berta")
    event = world.update("anna", 1, world.decoded(posted), other, Codec.of("int8"))
    with pytest.raises(RefusedError, match="expected one that refers to payload") as caught:
        world.accept(event)
    assert caught.value.rule == "base"


def test_a_device_without_its_base_gets_one_that_refers_to_the_bundle_once(make):
    world = make(down="int4")
    world.a_round(1, "anna")
    assert world.payloads.payload_for(2, "anna").coding.reference
    assert world.payloads.send_otherwise("anna", "base")
    world.restart()
    assert not world.payloads.payload_for(2, "anna").coding.reference
    assert not world.payloads.send_otherwise("anna", "base")


def test_a_device_that_does_not_know_the_codec_gets_raw_payloads_for_good(make):
    world = make(down="int4")
    assert world.payloads.send_otherwise("old", "codec")
    world.restart()
    posted = world.payloads.payload_for(1, "old")
    assert posted.coding.codec == "raw"
    assert not world.payloads.send_otherwise("old", "codec")
    assert world.payloads.payload_for(1, "new").coding.codec == "int4+zlib"
    assert not world.payloads.send_otherwise("new", "")


def test_a_damaged_reference_is_named(make):
    world = make(down="int8")
    world.a_round(1, "anna")
    (path,) = Path(world.ledger.folder / "references").iterdir()
    path.write_bytes(b"flipped")
    with pytest.raises(ProtofleetError, match="damaged"):
        world.payloads.payload_for(2, "anna")


def test_another_codec_is_another_run(make):
    make(down="int8").close()
    with pytest.raises(InputError, match="holds a run with codec"):
        make(down="int4")


@pytest.mark.parametrize("name", ["payloads", "references", "events.jsonl", "spool"])
def test_a_run_folder_with_a_link_in_it_is_refused_and_nothing_elsewhere_goes(tmp_path, name):
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    for folder in (elsewhere, run):
        folder.mkdir(mode=0o700)
    (elsewhere / "mine.safetensors").write_text("kept")
    (run / name).symlink_to(elsewhere)
    with pytest.raises(InputError, match=f"'{name}' is a link to"):
        World(tmp_path, CodecSettings())
    assert (elsewhere / "mine.safetensors").read_text() == "kept"
