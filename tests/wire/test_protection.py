from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from keyed import BUNDLE, Keyed, renamed

from protofleet.errors import RefusedError
from protofleet.wire.messages import (
    Announcement,
    Heartbeat,
    LeaseRecord,
    Presence,
    TransferOffer,
    decode,
    encode,
)
from protofleet.wire.topics import Channel, Topics
from protofleet.wire.trust.coordinator_protection import CoordinatorProtection
from protofleet.wire.trust.device_protection import DeviceProtection
from protofleet.wire.trust.identity import KeyRotation, public_bytes, sign_statement
from protofleet.wire.trust.protection import Plain
from protofleet.wire.trust.signed_records import name_in

_TOPICS = Topics("lab")
_ALL = _TOPICS.announcement
_PRESENCE = _TOPICS.of(Channel.PRESENCE, "pi-7")
_STATUS = _TOPICS.of(Channel.UP_STATUS, "pi-7")
_TASK = _TOPICS.of(Channel.DOWN_TASK, "pi-7")
_ANNOUNCEMENT = Announcement(
    federation="lab",
    boot_id="c1",
    phase="training",
    round_id=3,
    rounds=20,
    strategy="fedavg",
    bundle=BUNDLE,
    layout_hash="ef" * 32,
)
_LEASE = LeaseRecord(
    federation="lab", boot_id="c1", step="held", epoch=7, valid_s=30.0, nonce="ab" * 16
)
_ONLINE = Presence(device_id="pi-7", boot_id="b1", status="online")
_BEAT = Heartbeat(
    device_id="pi-7",
    boot_id="b1",
    round_id=3,
    phase="idle",
    bytes_up=1,
    bytes_down=2,
    peak_rss_bytes=3,
)


@pytest.fixture
def keyed() -> Keyed:
    return Keyed()


def _met(keyed: Keyed, coordinator: CoordinatorProtection) -> tuple[DeviceProtection, bytes]:
    """A device that has presented itself, and its presence as it travelled."""
    device = DeviceProtection(keyed.device())
    device.read(coordinator.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)
    sent = device.write(_ONLINE, _PRESENCE, "pi-7")
    assert coordinator.read(sent, _PRESENCE, "pi-7", Presence).status == "online"
    return device, sent


def _refused(rule: str):
    return pytest.raises(RefusedError, check=lambda error: error.rule == rule)


def test_a_device_is_met_and_then_both_ends_seal(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    device, _ = _met(keyed, coordinator)
    sent = device.write(_BEAT, _STATUS, "pi-7")
    assert b"heartbeat" not in sent
    assert len(sent) == len(encode(_BEAT)) + 24
    assert coordinator.read(sent, _STATUS, "pi-7", Heartbeat) == _BEAT
    down = coordinator.seal(b"task", _TASK, "pi-7")
    assert device.open(down, _TASK, "pi-7") == b"task"
    with _refused("replay"):
        coordinator.read(sent, _STATUS, "pi-7", Heartbeat)
    with _refused("replay"):
        device.open(down, _TASK, "pi-7")


def test_nothing_is_sent_before_the_other_end_is_known(keyed):
    coordinator, device = (
        CoordinatorProtection(keyed.coordinator()),
        DeviceProtection(keyed.device()),
    )
    assert device.write(_ONLINE, _PRESENCE, "pi-7") is None
    assert device.write(_BEAT, _STATUS, "pi-7") is None
    assert coordinator.seal(b"task", _TASK, "pi-7") is None
    for end, topic in ((coordinator, _STATUS), (device, _TASK)):
        with _refused("session"):
            end.open(bytes(100), topic, "pi-7")


@pytest.mark.parametrize("where", [0, 63, 64, 200, -1])
def test_an_altered_announcement_or_presence_is_refused(keyed, where):
    coordinator = CoordinatorProtection(keyed.coordinator())
    _, presence = _met(keyed, coordinator)
    announcement = coordinator.write(_ANNOUNCEMENT, _ALL, "")
    other = DeviceProtection(keyed.device("pi-8"))
    for end, sent, topic, device_id, kind in (
        (coordinator, presence, _PRESENCE, "pi-7", Presence),
        (other, announcement, _ALL, "", Announcement),
    ):
        altered = bytearray(sent)
        altered[where] ^= 1
        with pytest.raises(RefusedError):
            end.read(bytes(altered), topic, device_id, kind)


def test_an_announcement_needs_the_federations_key(keyed):
    """Of another federation key, of a certificate that is over, of another name, without keys."""
    device = DeviceProtection(keyed.device())
    stranger = CoordinatorProtection(Keyed().coordinator())
    for announced, rule in (
        (stranger.write(_ANNOUNCEMENT, _ALL, ""), "statement"),
        (CoordinatorProtection(keyed.coordinator(until=int(time.time()))), "statement"),
        (CoordinatorProtection(keyed.coordinator(federation="other")), "statement"),
        (Plain().write(_ANNOUNCEMENT, _ALL, ""), "signature"),
    ):
        payload = (
            announced.write(_ANNOUNCEMENT, _ALL, "")
            if isinstance(announced, CoordinatorProtection)
            else announced
        )
        with _refused(rule):
            device.read(payload, _ALL, "", Announcement)


def test_a_certificate_of_another_key_does_not_sign(keyed):
    """A certificate is public: whoever repeats it lacks the key."""
    honest, thief = keyed.coordinator(), Ed25519PrivateKey.generate()
    forged = CoordinatorProtection(replace(honest, key=thief)).write(_ANNOUNCEMENT, _ALL, "")
    with _refused("signature"):
        DeviceProtection(keyed.device()).read(forged, _ALL, "", Announcement)


def test_an_older_announcement_is_a_replay_even_after_a_restart(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    old = coordinator.write(_ANNOUNCEMENT, _ALL, "")
    new = coordinator.write(_ANNOUNCEMENT, _ALL, "")
    device = DeviceProtection(keyed.device())
    for _ in range(2):
        device.read(new, _ALL, "", Announcement)  # retained: it comes with every connection
    for process in (device, DeviceProtection(keyed.device())):
        with _refused("replay"):
            process.read(old, _ALL, "", Announcement)


def test_announcements_rise_over_restarts_with_a_clock_that_went_back(keyed, monkeypatch):
    first = CoordinatorProtection(keyed.coordinator()).write(_ANNOUNCEMENT, _ALL, "")
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    second = CoordinatorProtection(keyed.coordinator(until=4_000_000_000)).write(
        _ANNOUNCEMENT, _ALL, ""
    )
    assert name_in(first).handshake.sequence < name_in(second).handshake.sequence


def test_an_announcement_is_read_whatever_byte_its_signature_begins_with(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    seen = set()
    while ord("{") not in seen:
        payload = coordinator.write(_ANNOUNCEMENT, _ALL, "")
        seen.add(payload[0])
        assert name_in(payload).federation == _ANNOUNCEMENT.federation


def test_a_presence_counts_for_one_process_of_the_coordinator(keyed):
    """Between runs and over restarts: what answers another nonce is out of date."""
    coordinator = CoordinatorProtection(keyed.coordinator())
    device, presence = _met(keyed, coordinator)
    beat = device.write(_BEAT, _STATUS, "pi-7")
    restarted = CoordinatorProtection(keyed.coordinator())
    assert restarted.read(presence, _PRESENCE, "pi-7", Presence) is None
    with _refused("session"):
        restarted.read(beat, _STATUS, "pi-7", Heartbeat)


def test_a_presence_cannot_be_repeated_to_go_back(keyed):
    """An earlier presence of the process, or one of an earlier process, changes nothing."""
    coordinator = CoordinatorProtection(keyed.coordinator())
    device, first = _met(keyed, coordinator)
    assert coordinator.read(first, _PRESENCE, "pi-7", Presence)  # retained: it may come again
    second = device.write(_ONLINE, _PRESENCE, "pi-7")
    coordinator.read(second, _PRESENCE, "pi-7", Presence)
    with _refused("replay"):
        coordinator.read(first, _PRESENCE, "pi-7", Presence)
    beat = device.write(_BEAT, _STATUS, "pi-7")
    later, _ = _met(keyed, coordinator)
    with _refused("replay"):
        coordinator.read(second, _PRESENCE, "pi-7", Presence)
    with _refused("seal"):
        coordinator.read(beat, _STATUS, "pi-7", Heartbeat)
    assert coordinator.read(later.write(_BEAT, _STATUS, "pi-7"), _STATUS, "pi-7", Heartbeat)


def test_two_copies_of_a_store_are_told_apart(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    _met(keyed, coordinator)
    keyed.starts["pi-7"] -= 1  # as the copy counts
    copy = DeviceProtection(keyed.device())
    copy.read(coordinator.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)
    with pytest.raises(RefusedError, match="two devices have copies of one store"):
        coordinator.read(copy.write(_ONLINE, _PRESENCE, "pi-7"), _PRESENCE, "pi-7", Presence)


def _says(coordinator, device):
    """An announcement to the device, and its presence after it, if that is due again."""
    device.read(coordinator.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)
    return device.write(_ONLINE, _PRESENCE, "pi-7") if device.overtakes else None


def test_a_restored_store_goes_on_behind_the_start_that_is_known(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    for _ in range(5):
        _, former = _met(keyed, coordinator)
    keyed.starts["pi-7"] = 1  # as of the backup
    kept: list[int] = []
    device = DeviceProtection(replace(keyed.device(), overtake=kept.append))
    assert _says(coordinator, device) is None
    with _refused("replay"):
        sent = device.write(_ONLINE, _PRESENCE, "pi-7")
        coordinator.read(sent, _PRESENCE, "pi-7", Presence)
    presence = _says(coordinator, device)
    assert kept == [6]
    assert coordinator.read(presence, _PRESENCE, "pi-7", Presence).status == "online"
    beat = device.write(_BEAT, _STATUS, "pi-7")
    assert coordinator.read(beat, _STATUS, "pi-7", Heartbeat) == _BEAT
    assert _says(coordinator, device) is None
    for replayed in (former, sent):
        with _refused("replay"):
            coordinator.read(replayed, _PRESENCE, "pi-7", Presence)


def test_of_two_copies_of_a_store_each_overtakes_once(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    _met(keyed, coordinator)
    told: list[int] = []
    copies = []
    for _ in range(2):
        keyed.starts["pi-7"] = 0
        copies.append(DeviceProtection(replace(keyed.device(), overtake=told.append)))
    for copy in copies * 3:
        _says(coordinator, copy)
        with contextlib.suppress(RefusedError):
            coordinator.read(copy.write(_ONLINE, _PRESENCE, "pi-7"), _PRESENCE, "pi-7", Presence)
    assert told == [2, 3]


def test_a_device_whose_earlier_presence_is_sent_again_stays_what_it_is(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    _, former = _met(keyed, coordinator)
    device, _ = _met(keyed, coordinator)
    with _refused("replay"):
        coordinator.read(former, _PRESENCE, "pi-7", Presence)
    assert _says(coordinator, device) is None
    assert (
        coordinator.read(device.write(_BEAT, _STATUS, "pi-7"), _STATUS, "pi-7", Heartbeat) == _BEAT
    )


def test_another_devices_start_overtakes_nobody(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    _met(keyed, coordinator)
    keyed.starts["pi-7"] = 0
    with _refused("replay"):
        copy = DeviceProtection(keyed.device())
        _says(coordinator, copy)
        coordinator.read(copy.write(_ONLINE, _PRESENCE, "pi-7"), _PRESENCE, "pi-7", Presence)
    other = DeviceProtection(keyed.device("pi-8"))
    assert _says(coordinator, other) is None


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"device_id": "pi-8"}, "grant"),
        ({"key": "ab" * 32}, "signature"),
        ({"until": 1}, "statement"),
        ({"federation": "other"}, "statement"),
    ],
)
def test_a_presence_needs_a_grant_for_its_device_and_key(keyed, changed, rule):
    coordinator = CoordinatorProtection(keyed.coordinator())
    device = DeviceProtection(keyed.device(**changed))
    device.read(coordinator.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)
    sent = device.write(_ONLINE, _PRESENCE, "pi-7")
    with _refused(rule):
        coordinator.read(sent, _PRESENCE, "pi-7", Presence)


def test_a_member_cannot_speak_as_another(keyed):
    """With its own grant on another's topic, or with its own session."""
    coordinator = CoordinatorProtection(keyed.coordinator())
    _met(keyed, coordinator)
    member = DeviceProtection(renamed(keyed.device("pi-8"), "pi-7"))
    member.read(coordinator.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)
    with _refused("grant"):
        coordinator.read(member.write(_ONLINE, _PRESENCE, "pi-7"), _PRESENCE, "pi-7", Presence)
    with _refused("seal"):
        coordinator.read(member.write(_BEAT, _STATUS, "pi-7"), _STATUS, "pi-7", Heartbeat)


def test_a_revoked_device_is_refused_and_its_session_ends(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    device, _ = _met(keyed, coordinator)
    keyed.revoked.add("pi-7")
    assert not coordinator.end_session("pi-7", 2)
    assert coordinator.end_session("pi-7", 1)
    with _refused("session"):
        coordinator.read(device.write(_BEAT, _STATUS, "pi-7"), _STATUS, "pi-7", Heartbeat)
    with _refused("revoked"):
        coordinator.read(device.write(_ONLINE, _PRESENCE, "pi-7"), _PRESENCE, "pi-7", Presence)


def test_a_device_believes_the_coordinator_alone_that_its_grant_is_no_longer_in_force(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    device, _ = _met(keyed, coordinator)
    other = DeviceProtection(keyed.device("pi-8"))
    keyed.revoked.add("pi-7")
    coordinator.end_session("pi-7", 1)
    told = coordinator.write(_ANNOUNCEMENT, _ALL, "")
    with _refused("statement"):
        stranger = CoordinatorProtection(Keyed().coordinator()).write(_ANNOUNCEMENT, _ALL, "")
        named = msgspec.structs.replace(
            decode(stranger[64:], Announcement).handshake,
            refused=decode(told[64:], Announcement).handshake.refused,
        )
        forged = encode(msgspec.structs.replace(_ANNOUNCEMENT, handshake=named))
        device.read(stranger[:64] + forged, _ALL, "", Announcement)
    with _refused("signature"):
        device.read(bytes(64) + told[64:], _ALL, "", Announcement)
    assert keyed.told == []
    other.read(told, _ALL, "", Announcement)
    device.read(told, _ALL, "", Announcement)
    assert keyed.told == ["pi-7"]


def test_a_device_that_comes_back_with_a_revoked_grant_is_named_once(keyed):
    keyed.revoked.add("pi-7")
    coordinator = CoordinatorProtection(keyed.coordinator())
    device = DeviceProtection(keyed.device())
    device.read(coordinator.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)
    assert keyed.told == []
    for _ in range(100):
        with _refused("revoked"):
            coordinator.read(device.write(_ONLINE, _PRESENCE, "pi-7"), _PRESENCE, "pi-7", Presence)
    told = coordinator.write(_ANNOUNCEMENT, _ALL, "")
    assert len(decode(told[64:], Announcement).handshake.refused) == 1
    device.read(told, _ALL, "", Announcement)
    assert keyed.told == ["pi-7"]


def test_a_last_will_counts_for_its_own_process(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    gone = Presence(device_id="pi-7", boot_id="b1", status="offline")
    old = DeviceProtection(keyed.device()).write(gone, _PRESENCE, "pi-7")
    assert coordinator.read(old, _PRESENCE, "pi-7", Presence) is None
    device, _ = _met(keyed, coordinator)
    will = device.write(gone, _PRESENCE, "pi-7")
    assert coordinator.read(old, _PRESENCE, "pi-7", Presence) is None
    assert coordinator.read(will, _PRESENCE, "pi-7", Presence).status == "offline"
    forged = bytearray(will)
    forged[10] ^= 1
    with _refused("signature"):
        coordinator.read(bytes(forged), _PRESENCE, "pi-7", Presence)


def test_an_offer_needs_the_devices_signature(keyed):
    coordinator = CoordinatorProtection(keyed.coordinator())
    device, _ = _met(keyed, coordinator)
    offer = TransferOffer(
        transfer_id="0" * 32,
        kind="update",
        round_id=3,
        total_bytes=10,
        sha256="ab" * 32,
        chunk_bytes=256,
    )
    coordinator.check_offer("pi-7", device.sign_offer(offer))
    with _refused("signature"):
        coordinator.check_offer("pi-7", offer)


def test_a_device_follows_the_federation_key_as_it_rotates(keyed):
    """Step by step, wherever it was when it last heard; never to a key that none handed over to."""
    device, lost = DeviceProtection(keyed.device()), DeviceProtection(keyed.device("lost"))
    keys = [keyed.key, Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()]
    rotations = tuple(
        sign_statement(
            old,
            KeyRotation(federation="lab", old=public_bytes(old).hex(), new=public_bytes(new).hex()),
        )
        for old, new in itertools.pairwise(keys)
    )
    for count in (1, 2):
        keyed.key = keys[count]
        credentials = replace(keyed.coordinator(), rotations=rotations[:count])
        announced = CoordinatorProtection(credentials).write(_ANNOUNCEMENT, _ALL, "")
        device.read(announced, _ALL, "", Announcement)
        assert keyed.trusted["pi-7"] == public_bytes(keys[count])
    lost.read(announced, _ALL, "", Announcement)
    keyed.key = keys[0]
    with _refused("statement"):
        back = CoordinatorProtection(keyed.coordinator())
        device.read(back.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)


def test_a_coordinator_hears_another_of_its_federation_and_no_impostor(keyed):
    ours, other = (CoordinatorProtection(keyed.coordinator()) for _ in range(2))
    announced = other.write(_ANNOUNCEMENT, _ALL, "")
    assert ours.read(announced, _ALL, "", Announcement).boot_id == "c1"
    impostor = CoordinatorProtection(Keyed().coordinator())
    with _refused("statement"):
        ours.read(impostor.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)


def test_a_blobs_key_is_one_per_grid(keyed):
    end = CoordinatorProtection(keyed.coordinator())
    assert end.content_key("ab" * 32, 256) == end.content_key("ab" * 32, 256)
    found = {end.content_key("ab" * 32, size) for size in (256, 512)}
    found.add(CoordinatorProtection(keyed.coordinator()).content_key("ab" * 32, 256))
    assert len(found) == 3


def test_a_lease_is_believed_from_certified_coordinators_alone(keyed):
    """Nobody else can end one, or keep one out."""
    ours, theirs = keyed.coordinator(), CoordinatorProtection(keyed.coordinator())
    sent = CoordinatorProtection(ours).write(_LEASE, _TOPICS.lease, "")
    assert theirs.read(sent, _TOPICS.lease, "", LeaseRecord).epoch == 7
    wrong = CoordinatorProtection(replace(ours, key=Ed25519PrivateKey.generate()))
    stranger = CoordinatorProtection(Keyed().coordinator())
    higher = sent.replace(b'"epoch":7', b'"epoch":8')
    cases = {
        higher: "signature",
        encode(_LEASE): "signature",
        wrong.write(_LEASE, _TOPICS.lease, ""): "signature",
        stranger.write(_LEASE, _TOPICS.lease, ""): "statement",
        b"\0" * 64 + encode(_LEASE): "statement",
    }
    for payload, rule in cases.items():
        with pytest.raises(RefusedError) as refused:
            theirs.read(payload, _TOPICS.lease, "", LeaseRecord)
        assert refused.value.rule == rule
    with pytest.raises(RefusedError, match="lease"):
        theirs.read(sent, _ALL, "", LeaseRecord)


def test_what_a_successor_announces_comes_after_all_that_was_announced(keyed, monkeypatch):
    """Its machine's clock may be hours behind."""
    before = CoordinatorProtection(keyed.coordinator())
    after = CoordinatorProtection(keyed.coordinator())
    device = DeviceProtection(keyed.device())
    sent = before.write(_ANNOUNCEMENT, _ALL, "")
    device.read(sent, _ALL, "", Announcement)
    monkeypatch.setattr("protofleet.wire.trust.coordinator_protection.time.time", lambda: 1.0)
    after.read(sent, _ALL, "", Announcement)
    device.read(after.write(_ANNOUNCEMENT, _ALL, ""), _ALL, "", Announcement)


def test_an_end_without_keys_says_that_the_other_has_some(keyed):
    """Not that a signature is no JSON."""
    device, coordinator = (
        DeviceProtection(keyed.device()),
        CoordinatorProtection(keyed.coordinator()),
    )
    announced = coordinator.write(_ANNOUNCEMENT, _ALL, "")
    device.read(announced, _ALL, "", Announcement)
    signed = {
        _ALL: (announced, Announcement),
        _PRESENCE: (device.write(_ONLINE, _PRESENCE, "pi-7"), Presence),
        _TOPICS.lease: (coordinator.write(_LEASE, _TOPICS.lease, ""), LeaseRecord),
    }
    for topic, (payload, kind) in signed.items():
        with _refused("keys"):
            Plain().read(payload, topic, "pi-7", kind)
    with _refused("message-schema"):
        Plain().read(bytes(80), _ALL, "", Announcement)
