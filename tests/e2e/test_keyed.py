"""A federation with keys over a broker that anybody can reach."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time

import msgspec
import pytest
from brokers import wait_until
from keyed_federation import DATA, keyed_config, outcome, part
from threaded import CrashError, Device, Federation

from protofleet.benchmarks._keys import enrol_here
from protofleet.coordinator import events
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.membership.invitations import find_meeting, invite
from protofleet.coordinator.membership.members import KEY_FILE, Members
from protofleet.coordinator.process import expiry
from protofleet.edge import JoinOptions, waiting
from protofleet.edge.credentials import FOLDER, device_key
from protofleet.federation.plan import make_plan
from protofleet.federation.settings import CohortSettings
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Link, LinkOptions, MqttMessage
from protofleet.wire.trust.identity import public_bytes, verify_offer

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=1)]


@pytest.fixture
def config(tmp_path, mosquitto_url, key):
    return keyed_config(tmp_path, mosquitto_url, key)


class _Eavesdropper:
    """Subscribed to everything."""

    def __init__(self, url: str) -> None:
        broker = BrokerAccess(url=url)
        self._link = Link(LinkOptions(broker=broker, filters=("fl/#",)))
        self._link.start()
        assert isinstance(self._link.get(10), Connected)

    def heard(self) -> list[MqttMessage]:
        found = []
        while (event := self._link.get(0.2)) is not None:
            found.append(event)
        self._link.close()
        return [event for event in found if isinstance(event, MqttMessage)]


def test_keys_change_no_bit_of_the_result_and_hide_every_record_and_blob(config, tmp_path):
    eve = _Eavesdropper(config.broker.url)
    with Federation(config, DATA) as federation:
        keyed = federation.finish()
    heard = eve.heard()
    _check_audit(config)
    plain = msgspec.structs.replace(config, keys=None, run_dir=tmp_path / "plain" / "run")
    plain.run_dir.parent.mkdir()
    with Federation(plain, DATA) as federation:
        assert outcome(federation.finish()) == outcome(keyed)
    assert len(heard) > 20
    for delivery in heard:
        readable = delivery.topic.endswith("/all/ctl") or "/st/" in delivery.topic
        for word in (b"need", b"receipt", b"heartbeat", b"task", b"safetensors", b"params/"):
            assert readable or word not in delivery.payload, delivery
    chunks = [one.payload for one in heard if one.topic.endswith("/c")]
    assert chunks
    assert all(chunk[5] & 2 for chunk in chunks)


def _check_audit(config):
    """Every counted update is signed by its device, and the signature is kept."""
    with (
        Members(config.keys, "home") as members,
        Ledger(config.run_dir, make_plan(config).identity) as ledger,
    ):
        signed = ledger.signed_offers()
        assert [(offer.round_id, name) for name, offer in signed] == [
            (1, "anna"),
            (1, "berta"),
            (2, "anna"),
            (2, "berta"),
        ]
        for name, offer in signed:
            own = device_key(config.run_dir.with_name(f"store-{name}") / FOLDER)
            where = {"federation": members.name, "device_id": name}
            assert verify_offer(public_bytes(own), offer.signature, offer, **where)
            assert offer.key == ""


def test_a_restarted_coordinator_and_device_meet_again(config):
    """Sessions live in memory; everything goes on with new ones."""

    def first_update(report):
        return isinstance(report, events.UpdateReceived)

    with Federation(config, DATA, crash=first_update) as federation:
        with pytest.raises(CrashError):
            federation.coordinator.finish(60)
        federation.devices["anna"].stop()
        federation.start_coordinator()
        federation.start("anna")
        result = federation.finish()
    assert [row["participants"] for row in result["rounds"]] == [2, 2]


def test_a_revoked_device_leaves_at_once_is_told_and_does_not_come_back(
    config, caplog, monkeypatch
):
    def told():
        return caplog.text.count("grant is no longer in force: it was revoked")

    rounds = msgspec.structs.replace(config, rounds=1, cohort=CohortSettings(minimum=3))
    with Federation(rounds, DATA) as federation:
        federation.wait_for(lambda report: getattr(report, "live", 0) == 2)
        with Members(config.keys, "home") as members:
            assert members.revoke("berta")
        federation.wait_for(lambda report: getattr(report, "reason", "") == "revoked")
        wait_until(lambda: told() == 1)
        assert "protofleet device enroll INVITATION" in caplog.text
        federation.devices["berta"].stop()
        federation.start("berta")
        federation.wait_for(lambda report: getattr(report, "rule", "") == "revoked")
        assert getattr(federation.reports[-1], "live", 1) == 1
        wait_until(lambda: told() == 2)  # its next process
        monkeypatch.setattr(waiting, "FIRST_S", 0.1)
        federation.devices["berta"].stop()
        federation.start("berta")
        berta = federation.devices["berta"]
        wait_until(lambda: any("no longer in force" in str(told) for told in berta.events))


def test_a_device_whose_store_was_restored_goes_on_by_itself(config, tmp_path, caplog):
    data, store = dict(DATA), tmp_path / "store-berta"
    shutil.copytree(store, tmp_path / "backup")
    three = msgspec.structs.replace(config, rounds=1, cohort=CohortSettings(minimum=3))
    with Federation(three, data) as federation:
        federation.wait_for(lambda report: getattr(report, "live", 0) == 2)
        for _ in range(2):
            _again(federation, "berta")
        federation.devices["berta"].stop()
        shutil.rmtree(store)
        shutil.copytree(tmp_path / "backup", store)
        store.chmod(0o700)
        told = len(federation.reports)
        federation.start("berta")
        _await_online(federation, "berta", told)
    assert [r.rule for r in federation.reports if isinstance(r, events.DeviceRefused)] == ["replay"]
    assert "the store was restored from a backup" in caplog.text


def _again(federation, device_id):
    federation.devices[device_id].stop()
    told = len(federation.reports)
    federation.start(device_id)
    _await_online(federation, device_id, told)


def _await_online(federation, device_id, told):
    """Until one of the reports behind the first so many is that the device is online."""
    federation.wait_for(
        lambda _: any(
            isinstance(one, events.DeviceOnline) and one.device_id == device_id
            for one in federation.reports[told:]
        )
    )


def test_a_federation_outlives_its_coordinators_certificate(config, monkeypatch):
    """All clocks are a year on, the key elsewhere: told; put back, it is renewed without a start.

    A device that comes after that believes the announcement, and the round ends.
    """
    monkeypatch.setattr(expiry, "LOOK_S", 0.1)
    path, real, data = config.keys / KEY_FILE, time.time, {"anna": DATA["anna"]}
    with Federation(msgspec.structs.replace(config, rounds=1), data) as federation:
        federation.wait_for(lambda report: getattr(report, "live", 0) == 1)
        path.rename(path.with_suffix(".away"))
        monkeypatch.setattr(time, "time", lambda: real() + 370 * 86_400)
        federation.wait_for(lambda report: isinstance(report, events.EndsSoon) and report.over)
        path.with_suffix(".away").rename(path)
        federation.wait_for(lambda report: isinstance(report, events.CertificateRenewed))
        data["berta"] = DATA["berta"]
        federation.start("berta")
        assert [row["participants"] for row in federation.finish()["rounds"]] == [2]


def test_a_device_of_another_federation_key_is_not_let_in(config, tmp_path):
    """A stranger's device with a grant of its own key: neither hears nor is heard."""
    stranger = {"eve": tmp_path / "store-eve"}
    enrol_here(tmp_path / "other", "home", stranger, config.broker.url)
    with Federation(config, {**DATA, "eve": part(3)}) as federation:
        federation.coordinator.finish(60)
        eve = federation.devices["eve"]
        eve.stop()
    reports = [msgspec.to_builtins(report) for report in federation.reports]
    assert not any(report.get("device_id") == "eve" for report in reports)
    assert not any(name == "task" for name, _ in eve.events)


def _keyless(config, store):
    """A device that joins as in a federation without keys."""
    options = JoinOptions(
        broker=config.broker,
        federation=config.federation,
        bundle=config.bundle,
        store=store,
        device_id="carl",
    )
    return Device(options, part(3))


def test_a_device_that_is_not_enrolled_says_so_and_what_it_says_enrols_it(config, tmp_path):
    """It waits, because anybody may have sent what it hears; the command is run as it is said."""
    store = tmp_path / "store of carl"
    with Federation(msgspec.structs.replace(config, cohort=CohortSettings(minimum=3)), DATA) as lab:
        carl = _keyless(config, store)
        wait_until(lambda: any(name == "waiting" for name, _ in carl.events))
        awaited = next(figures["awaited"] for name, figures in carl.events if name == "waiting")
        carl.stop()
        assert awaited.startswith("an enrolment: federation 'home' has keys, and this device none")
        assert carl.events[-1][1]["refused"].keys() == {"keys"}
        assert "invited as 'carl'" in awaited
        with Members(config.keys, "home") as members:
            meeting = find_meeting(members, config.broker)
            invitation = invite(members, meeting, "carl", 3600, [].append)
        words = shlex.split(
            awaited.partition("enrol it: ")[2].replace("INVITATION", str(invitation))
        )
        assert words[0] == "protofleet"
        subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)
        lab.devices["carl"] = Device(
            JoinOptions(broker=None, federation=None, bundle=config.bundle, store=store), part(3)
        )
        assert [row["participants"] for row in lab.finish()["rounds"]] == [3, 3]
