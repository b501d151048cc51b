"""Devices enrol over a real Mosquitto: what is lost, guessed, used twice or killed in between."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import multiprocessing
import os
import signal
import time

import msgspec
import pytest
from brokers import mosquitto, wait_until
from deadly_writes import die_at_write
from invited import Inviting, identity_of, password_of
from secured_broker import secured
from threaded import Device, Federation, Thread
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.broker import certificates
from protofleet.coordinator import events
from protofleet.coordinator.membership.enrolment import EnrolmentService
from protofleet.coordinator.membership.invitations import find_meeting, invite, revoke
from protofleet.coordinator.membership.members import KEY_FILE
from protofleet.datasets import DeviceData
from protofleet.edge import enrolment as edge_enrolment
from protofleet.edge.credentials import FOLDER, load_enrolment, open_credentials
from protofleet.edge.join import JoinOptions
from protofleet.edge.learning.training import LocalData
from protofleet.errors import InputError, ProvisionError, RefusedError, UnavailableError
from protofleet.federation.settings import CohortSettings, FederationConfig, RoundSettings
from protofleet.wire.messages import encode
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Link, LinkOptions, MqttMessage
from protofleet.wire.trust.enrolment import EnrolmentAnswer, read_request

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=40)]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A federation with a broker of its own: TLS, accounts, access list."""
    folder = tmp_path_factory.mktemp("own") / "federation"
    folder.mkdir()
    with secured("mosquitto", folder / "broker") as broker:
        inviting = Inviting(folder)
        inviting.broker = broker
        yield inviting


@pytest.fixture(scope="module")
def open_broker_url(tmp_path_factory):
    with mosquitto(tmp_path_factory.mktemp("open")) as port:
        yield f"mqtt://127.0.0.1:{port}"


@pytest.fixture
def anyones(tmp_path, open_broker_url):
    """A federation on a broker that everyone may use: the protocol alone keeps others out."""
    return Inviting(tmp_path / "federation", BrokerAccess(url=open_broker_url))


def _connects(own, user: str, password: str) -> bool:
    access = own.broker.access
    url = access.url.replace("coordinator@", f"{user}:{password}@")
    broker = BrokerAccess(url=url, ca_file=access.ca_file)
    link = Link(LinkOptions(broker=broker))
    link.start()
    found = isinstance(link.get(10), Connected)
    link.close()
    return found


# With the federation's own broker


def test_a_device_gets_its_account_and_the_invitation_ends(own, tmp_path):
    invitation = own.invite("anna")
    accounts = own.broker.folder.accounts
    assert {"anna", "invite.anna"} <= set(accounts.names())
    with own.answering():
        done = own.enrol(invitation, tmp_path / "anna")
    assert (done.new, done.confirmed) == (True, True)
    assert own.check(tmp_path / "anna") == 1
    assert identity_of(tmp_path / "anna") == "anna"
    access = load_enrolment(tmp_path / "anna" / FOLDER).access(tmp_path / "anna" / FOLDER)
    assert access.ca_file.read_text() == own.broker.folder.ca.read_text()
    assert access.password_file.stat().st_mode & 0o077 == 0
    assert _connects(own, "anna", password_of(tmp_path / "anna"))
    assert "invite.anna" not in accounts.names()
    assert not _connects(own, "invite.anna", invitation.keys().password)
    with pytest.raises(UnavailableError, match="used, replaced or is over"):
        own.enrol(invitation, tmp_path / "twin")


def test_a_new_key_takes_over_when_it_is_used_and_not_before(own, tmp_path):
    store = tmp_path / "berta"
    with own.answering():
        own.enrol(own.invite("berta"), store)
        before, password = open_credentials(store / FOLDER).grant, password_of(store)
        (store / "keepsake").write_text("what was learned")
        invitation = own.invite("berta")
        assert _connects(own, "berta", password)
        with own.members() as members:
            assert members.check(before).serial == 1
        own.enrol(invitation, store)
        assert own.check(store) == 2
        assert _connects(own, "berta", password_of(store))
        assert not _connects(own, "berta", password)
        with own.members() as members, pytest.raises(RefusedError, match="no longer in force"):
            members.check(before)
    assert (store / "keepsake").exists()
    assert len([path for path in (store / FOLDER).iterdir() if path.is_dir()]) == 1


def test_another_brokers_certificate_is_noticed_before_anything_is_sent(own, tmp_path):
    """Somebody who stands in between, even with a certificate that the system would trust."""
    invitation = dataclasses.replace(own.invite("dora"), certificate="00" * 32)
    with own.answering(), pytest.raises(InputError, match="somebody stands in between"):
        own.enrol(invitation, tmp_path / "dora")
    assert load_enrolment(tmp_path / "dora" / FOLDER) is None


def test_a_broker_that_serves_another_federation_is_told_from_an_invitation_that_is_over(tmp_path):
    """The operator of another's broker made the accounts, and its list knows no such federation."""
    with secured("mosquitto", tmp_path / "broker", ["other"]) as broker:
        inviting = Inviting(tmp_path / "federation", broker.access)
        with inviting.members() as members:
            meeting = find_meeting(members, broker.access, accounts=True)
            invitation = invite(members, meeting, "anna", 3600, inviting.told.append)
        broker.folder.accounts.add("invite.anna", invitation.keys().password)
        assert broker.folder.reload() == ""
        with pytest.raises(UnavailableError) as refused:
            inviting.enrol(invitation, tmp_path / "anna")
        assert "access list serve federation 'home'" in str(refused.value)
        assert "is over" not in str(refused.value)
        wrong = dataclasses.replace(invitation, token=bytes(16))
        with pytest.raises(UnavailableError, match="used, replaced or is over"):
            inviting.enrol(wrong, tmp_path / "berta")


def test_an_invitation_of_another_name_opens_nothing(own, tmp_path):
    """Its account at the broker reaches its own topics alone."""
    mine, other = own.invite("emil"), own.invite("fritz")
    forged = dataclasses.replace(other, token=mine.token)
    with own.answering(), pytest.raises(UnavailableError, match="Not authorized"):
        own.enrol(forged, tmp_path / "fritz", wait_s=3)


def _part(seed: int) -> LocalData:
    x, y = tiny_data(seed, 12)
    test = tiny_data(1000 + seed, 6)
    classes = ("class0", "class1", "class2")
    own = DeviceData(x_train=x, y_train=y, x_test=test[0], y_test=test[1], classes=classes)
    return LocalData(own=own)


def test_a_running_coordinator_enrols_devices_that_take_part_and_follow_a_new_key(
    own, tmp_path, key
):
    """Without broker, name and password on the devices' side: their stores know."""
    with own.members():
        pass
    config = FederationConfig(
        federation="home",
        broker=own.broker.access,
        bundle=tiny_bundle(tmp_path / "tiny.pfb", key),
        run_dir=tmp_path / "run",
        rounds=1,
        keys=own.folder,
        cohort=CohortSettings(minimum=2),
        round=RoundSettings(deadline_s=30.0),
    )
    federation = Federation(config, {})
    federation.data = {"gerda": _part(1), "hans": _part(2)}
    federation.start_coordinator()
    federation.wait_for(lambda report: isinstance(report, events.BrokerConnected))
    for name in federation.data:
        own.enrol(own.invite(name), federation.store(name))
        federation.start(name)
    assert federation.finish()["rounds"][0]["participants"] == 2
    with own.members() as members:
        new, _ = members.rotate()
    federation.config = msgspec.structs.replace(config, rounds=2)
    federation.reports.clear()
    federation.start_coordinator()
    federation.wait_for(lambda report: isinstance(report, events.BrokerConnected))
    for name in federation.data:
        federation.start(name)
    assert federation.finish()["rounds"][1]["participants"] == 2
    for name in federation.data:
        assert open_credentials(federation.store(name) / FOLDER).federation_key == new


def test_a_revoked_device_says_that_the_broker_takes_its_account_no_more(own, tmp_path, key):
    """The broker is told at once, a coordinator need not be there."""
    bundle, store = tiny_bundle(tmp_path / "tiny.pfb", key), tmp_path / "iris"
    with own.answering():
        own.enrol(own.invite("iris"), store)
    options = JoinOptions(broker=None, federation=None, bundle=bundle, store=store)
    device = Device(options, _part(1))
    wait_until(lambda: device.events)
    with own.members() as members:
        assert revoke(members, own.broker.folder, "iris", own.told.append)
    with pytest.raises(UnavailableError, match=r"it alone, .* enroll INVITATION"):
        device.thread.finish(30)
    with pytest.raises(UnavailableError, match=r"it alone, .* enroll INVITATION"):
        Device(options, _part(1)).thread.finish(30)


def test_a_certificate_that_is_over_may_be_a_clock_that_is_wrong(tmp_path, monkeypatch):
    """A small computer without a battery wakes up in 1970, or in the future."""
    monkeypatch.setattr(certificates, "_LEAD", dt.timedelta(days=9))
    monkeypatch.setattr(certificates, "SERVER_DAYS", -1)
    folder = tmp_path / "federation"
    folder.mkdir()
    with secured("mosquitto", folder / "broker"):
        inviting = Inviting(folder)
        with pytest.raises(UnavailableError, match=r"has expired.*\(this device's clock: 20"):
            inviting.enrol(inviting.invite("anna"), tmp_path / "anna")


# The protocol alone


def test_a_device_may_ask_before_anybody_answers(anyones, tmp_path):
    invitation = anyones.invite("anna")
    with pytest.raises(UnavailableError, match="the same command goes on"):
        anyones.enrol(invitation, tmp_path / "anna", wait_s=1.0)
    device = Thread("device", lambda: anyones.enrol(invitation, tmp_path / "anna"))
    wait_until((tmp_path / "anna" / "identity.json").exists)
    with anyones.answering():
        device.finish(30)
    assert anyones.check(tmp_path / "anna") == 1


class _LosesAnswers(EnrolmentService):
    """The first two answers to every step get lost."""

    lost = 2

    def answer(self, device_id, payload, now):
        answer = super().answer(device_id, payload, now)
        self.lost -= 1
        return answer if self.lost < 0 else None


def test_lost_answers_are_given_again(anyones, tmp_path, monkeypatch):
    monkeypatch.setattr(edge_enrolment, "_REPEAT_S", (0.2,))
    invitation = anyones.invite("anna")
    with anyones.answering(_LosesAnswers):
        assert anyones.enrol(invitation, tmp_path / "anna").confirmed
    assert anyones.check(tmp_path / "anna") == 1


def test_the_command_entered_twice_changes_nothing(anyones, tmp_path):
    invitation = anyones.invite("anna")
    with anyones.answering():
        first = anyones.enrol(invitation, tmp_path / "anna")
        again = anyones.enrol(invitation, tmp_path / "anna")
    assert (again.new, again.confirmed) == (False, True)
    assert again.enrolment == first.enrolment
    assert anyones.check(tmp_path / "anna") == 1


def test_of_two_devices_with_one_invitation_one_is_told(anyones, tmp_path):
    invitation = anyones.invite("anna")
    with anyones.answering():
        anyones.enrol(invitation, tmp_path / "first")
        with pytest.raises(RefusedError, match="another device has used this invitation"):
            anyones.enrol(invitation, tmp_path / "second")
    assert load_enrolment(tmp_path / "second" / FOLDER) is None
    assert any("another device" in line for line in anyones.told)


def test_of_two_devices_at_once_one_is_enrolled(anyones, tmp_path):
    invitation = anyones.invite("anna")
    stores = [tmp_path / "first", tmp_path / "second"]
    devices = [
        Thread(store.name, lambda store=store: anyones.enrol(invitation, store)) for store in stores
    ]
    refused = 0
    with anyones.answering():
        for device in devices:
            try:
                device.finish(30)
            except RefusedError:
                refused += 1
    enrolled = [store for store in stores if load_enrolment(store / FOLDER)]
    assert (len(enrolled), refused) == (1, 1)
    assert anyones.check(enrolled[0]) == 1


def test_expired_replaced_and_guessed_invitations_are_refused_by_name(anyones, tmp_path):
    over, old = anyones.invite("anna", valid_s=-1), anyones.invite("berta")
    anyones.invite("berta")
    guessed = dataclasses.replace(old, token=bytes(16))
    unknown = dataclasses.replace(old, device_id="nobody")
    with anyones.answering():
        for number, (invitation, rule) in enumerate(
            [(over, "expired"), (old, "token"), (guessed, "token"), (unknown, "token")]
        ):
            with pytest.raises(RefusedError, match="ask for a new") as refused:
                anyones.enrol(invitation, tmp_path / f"store-{number}")
            assert refused.value.rule == rule
    assert any(line.startswith("berta: a wrong invitation") for line in anyones.told)


def test_a_store_of_another_device_or_federation_is_not_touched(anyones, tmp_path):
    with anyones.answering():
        anyones.enrol(anyones.invite("anna"), tmp_path / "anna")
    before = load_enrolment(tmp_path / "anna" / FOLDER)
    with pytest.raises(ProvisionError, match="belongs to device 'anna'"):
        anyones.enrol(anyones.invite("berta"), tmp_path / "anna")
    other = dataclasses.replace(anyones.invite("anna"), federation="elsewhere")
    with pytest.raises(ProvisionError, match="belongs to federation 'home'"):
        anyones.enrol(other, tmp_path / "anna")
    assert load_enrolment(tmp_path / "anna" / FOLDER) == before


def test_another_federations_key_is_refused(anyones, tmp_path):
    """Whoever took the broker and the operator's database, but not the key."""
    invitation = dataclasses.replace(anyones.invite("anna"), fingerprint="ab" * 16)
    with anyones.answering(), pytest.raises(RefusedError, match="expected fingerprint abab"):
        anyones.enrol(invitation, tmp_path / "anna")


def test_clocks_that_differ_are_told_at_both_ends(anyones, tmp_path, monkeypatch):
    ahead = time.time() + 86_400
    monkeypatch.setattr("protofleet.wire.trust.enrolment.time", _Clock(ahead))
    with anyones.answering():
        anyones.enrol(anyones.invite("anna"), tmp_path / "anna")
    assert any("its clock is 86" in line and "ahead of this one" in line for line in anyones.told)


class _Clock:
    def __init__(self, now: float) -> None:
        self._now = now

    def time(self) -> float:
        return self._now


def test_without_the_federation_key_devices_wait(anyones, tmp_path):
    invitation = anyones.invite("anna")
    kept = anyones.folder / KEY_FILE
    kept.rename(tmp_path / "away.pem")
    with anyones.answering():
        while not any("waits for federation.pem" in line for line in anyones.told):
            with pytest.raises(UnavailableError, match="no answer in 1 s"):
                anyones.enrol(invitation, tmp_path / "anna", wait_s=1.0)
        (tmp_path / "away.pem").rename(kept)
        anyones.enrol(invitation, tmp_path / "anna")


class _Eavesdropper:
    """Hears everything on an open broker, and answers every request before the federation does."""

    def __init__(self, url: str) -> None:
        self.heard: list[bytes] = []
        broker = BrokerAccess(url=url)
        self._link = Link(LinkOptions(broker=broker, filters=("fl/#",)))
        self._link.start()
        assert isinstance(self._link.get(10), Connected)
        self._stopped = False
        self._thread = Thread("eve", self._run)

    def _run(self) -> None:
        while not self._stopped:
            event = self._link.get(0.1)
            if not isinstance(event, MqttMessage):
                continue
            self.heard.append(event.payload)
            if event.topic.endswith("/q"):
                nonce = read_request(event.payload).nonce
                good = EnrolmentAnswer(answers=nonce, time=0, share="ab" * 32, sealed="A" * 80)
                refusal = EnrolmentAnswer(answers=nonce, time=0, rule="used", reason="go away")
                for forged in (b"noise", encode(good), encode(refusal)):
                    self._link.publish(event.topic[:-1] + "a", forged)

    def stop(self) -> None:
        self._stopped = True
        self._thread.finish(10)
        self._link.close()


class _Slow(EnrolmentService):
    def answer(self, device_id, payload, now):
        time.sleep(0.3)
        return super().answer(device_id, payload, now)


def test_who_hears_all_and_answers_first_learns_nothing_and_stops_nobody(
    anyones, tmp_path, monkeypatch
):
    # The federation only starts here, which a busy machine may take longer for.
    monkeypatch.setattr(edge_enrolment, "_DOUBT_S", 15.0)
    with anyones.members() as members:
        meeting = find_meeting(members, anyones.access, accounts=True)
        invitation = invite(members, meeting, "anna", 3600, anyones.told.append)
        keys, password = invitation.keys(), members.invitation("anna").password
    eve = _Eavesdropper(anyones.access.url)
    with anyones.answering(_Slow):
        anyones.enrol(invitation, tmp_path / "anna")
    eve.stop()
    assert password_of(tmp_path / "anna") == password
    grant = open_credentials(tmp_path / "anna" / FOLDER).grant
    secret = (password, grant, str(invitation), keys.password)
    binary = (invitation.token, keys.proof, keys.answer)
    heard = b"".join(eve.heard)
    assert b"enrolment-request" in heard
    for one in (*(text.encode() for text in secret), *binary, *(b.hex().encode() for b in binary)):
        assert one not in heard
    assert any("clock" in line for line in anyones.heard)


# Killed in between


def _enrol_and_die(inviting, invitation, store, fatal: int) -> None:
    die_at_write(fatal)
    inviting.enrol(invitation, store)


def test_a_device_killed_at_any_write_has_its_old_or_its_new_grant(anyones, ram_path):
    """Enrolled anew; whichever it has works, and the same command ends with the new one."""
    fork = multiprocessing.get_context("fork")
    store, serials = ram_path / "anna", set()
    with anyones.answering():
        anyones.enrol(anyones.invite("anna"), store)
        for fatal in itertools.count(1):
            before, invitation = anyones.check(store), anyones.invite("anna")
            process = fork.Process(target=_enrol_and_die, args=(anyones, invitation, store, fatal))
            process.start()
            process.join(60)
            now = anyones.check(store)
            assert now in (before, before + 1)
            serials.add(now - before)
            anyones.enrol(invitation, store)
            assert anyones.check(store) == before + 1
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL
    assert serials == {0, 1}
    assert fatal > 8


def test_a_new_device_killed_at_any_write_enrols_by_the_same_command(anyones, ram_path):
    fork = multiprocessing.get_context("fork")
    with anyones.answering():
        for fatal in range(1, 20, 3):
            store, name = ram_path / f"store-{fatal}", f"device-{fatal}"
            invitation = anyones.invite(name)
            process = fork.Process(target=_enrol_and_die, args=(anyones, invitation, store, fatal))
            process.start()
            process.join(60)
            anyones.enrol(invitation, store)
            assert anyones.check(store) == 1


class _Dies(EnrolmentService):
    """Killed behind one of its steps, which the file ``step`` names."""

    step = ""

    def _after(self, step: str) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def _give_account(self, device_id, password):
        self._after("granted")
        super()._give_account(device_id, password)
        self._after("account")

    def _on_request(self, event):
        super()._on_request(event)
        self._link.close()
        self._after("answered")


def _answer_and_die(inviting, step: str) -> None:
    _Dies.step = step
    with inviting.answering(_Dies):
        time.sleep(60)


@pytest.mark.parametrize("step", ["granted", "account", "answered"])
def test_answering_killed_at_any_step_goes_on_with_the_next_process(own, tmp_path, step):
    """The one grant of the invitation, and the password that the broker knows."""
    store, name = tmp_path / "store", f"killed-{step}"
    invitation = own.invite(name)
    process = multiprocessing.get_context("fork").Process(target=_answer_and_die, args=(own, step))
    process.start()
    device = Thread("device", lambda: own.enrol(invitation, store))
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    with own.answering():
        device.finish(30)
    assert own.check(store) == 1
    assert _connects(own, name, password_of(store))
