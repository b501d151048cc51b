"""Brokers that are wrong in one way each: real Mosquitto, real certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import subprocess
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest
from brokers import free_port, mosquitto
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from doctor_rows import levels, the
from secured_broker import PASSWORD, let_in, secured, skip_without

from protofleet.broker.certificates import make_authority
from protofleet.broker.probe import BrokerPlace, BrokerProbe, Credential
from protofleet.doctor import BrokerSubject
from protofleet.wire.messages import LeaseRecord
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.topics import PREFIX

pytestmark = pytest.mark.slow(seconds=25)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """As ``protofleet broker init`` makes it."""
    with secured("mosquitto", tmp_path_factory.mktemp("run") / "broker") as running:
        yield running


def test_a_broker_of_ours_is_well(told, ours):
    rows = told(ours.folder.path)
    assert {row["level"] for row in rows} == {"ok"}, rows
    assert "MQTT 5" in the(rows, "broker.account", "ok")["text"]
    assert "65,536 bytes" in the(rows, "broker.packet", "ok")["text"]


def _subject(ours, **changes):
    given = {"ca_file": ours.folder.ca, "password_file": ours.folder.password_file, **changes}
    url = given.pop("url", ours.access.url)
    return BrokerSubject(access=BrokerAccess(url=url, **given))


def test_a_wrong_authority_a_wrong_name_and_no_tls_each_say_what_to_give(told, ours, tmp_path):
    (tmp_path / "other.pem").write_bytes(make_authority("another").certificate)
    (found,) = [
        row
        for row in told(_subject(ours, ca_file=tmp_path / "other.pem"))
        if row["level"] == "problem"
    ]
    assert found["check"] == "broker.tls"
    assert "by an authority that we do not know" in found["text"]
    assert "--broker-ca" in found["remedy"]
    (tmp_path / "no.pem").write_text("no certificate")
    rows = told(_subject(ours, ca_file=tmp_path / "no.pem"))
    assert "no.pem': expected PEM" in the(rows, "broker.expiry")["text"]
    assert "certificate files" in the(rows, "broker.tls")["text"]
    port = ours.folder.listener()[1]
    with mosquitto(tmp_path) as plain:
        rows = told(_subject(ours, url=f"mqtts://coordinator@127.0.0.1:{plain}"))
    assert [row["check"] for row in rows if row["level"] == "problem"] == ["broker.tls"]
    rows = told(_subject(ours, url=f"mqtts://coordinator@127.0.0.2:{port}"))
    assert "another address" in the(rows, "broker.tls")["text"]
    assert "--renew" in the(rows, "broker.tls")["remedy"]


def test_an_account_that_is_refused_and_a_name_that_nobody_has(told, ours, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("wrong")
    rows = told(_subject(ours, password_file=wrong))
    assert "account 'coordinator'" in the(rows, "broker.account")["text"]
    assert levels(rows, "broker.rights") == []
    rows = told(BrokerSubject(access=BrokerAccess(url="mqtt://broker.invalid")))
    assert "no such name" in the(rows, "broker.reach")["text"]


def test_a_device_tries_its_own_account(told, ours, tmp_path):
    """All that it may not is closed; what the coordinator would see is not known."""
    let_in(ours, "pi-1")
    password = tmp_path / "pi-1.password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    url = ours.access.url.replace("coordinator@", "pi-1@")
    rows = told(_subject(ours, url=url, password_file=password))
    assert [row for row in rows if row["level"] == "problem"] == []
    assert levels(rows, "broker.rights") == ["warning", "ok"]


@pytest.mark.parametrize(("limit", "level"), [(20_000, "warning"), (2_000, "problem")])
@pytest.mark.parametrize(
    ("word", "query"),
    [
        ("max_packet_size", ""),
        ("message_size_limit", ""),
        ("message_size_limit", "?version=3.1.1"),
    ],
)
def test_a_small_largest_packet_is_found_by_trying(  # noqa: PLR0917 - of two tables
    told, tmp_path, limit, level, word, query
):
    """Also where each is dropped by itself: with a reason in MQTT 5, without a word in 3.1.1."""
    with mosquitto(tmp_path, f"{word} {limit}") as port:
        rows = told(BrokerSubject(access=BrokerAccess(url=f"mqtt://127.0.0.1:{port}{query}")))
    found = the(rows, "broker.packet", level)
    most = int(found["text"].split("about ")[1].split(" bytes")[0].replace(",", ""))
    assert limit - 1100 < most <= limit + 100  # of the payload, or of all of the packet
    assert "passes on" in found["text"]
    assert "max_packet_size" in found["remedy"]


def test_what_is_retained_and_belongs_nowhere_is_named(told, tmp_path):
    with mosquitto(tmp_path) as port:
        access = BrokerAccess(url=f"mqtt://127.0.0.1:{port}")
        place = BrokerPlace.find(access.address(), None)
        with BrokerProbe(place, Credential()) as probe:
            for tail in ("dn/pi-1/t", "st/pi-2", "all/ctl"):
                content = b'{"type": "presence"}' if tail == "all/ctl" else b"\xff"
                probe.publish(f"{PREFIX}/home/{tail}", content, retain=True)
            lease = msgspec.json.encode(
                LeaseRecord(
                    federation="home",
                    boot_id="a",
                    step="held",
                    epoch=9_999_999_999,
                    valid_s=30.0,
                    nonce="0" * 32,
                )
            )
            probe.publish(f"{PREFIX}/home/all/lease", lease, retain=True)
        rows = told(BrokerSubject(access=access))
    found = [row for row in rows if row["check"] == "broker.retained"]
    assert [row["level"] for row in found] == ["warning", "warning"]
    assert {row["text"].split(":")[0] for row in found[:2]} == {
        f"{PREFIX}/home/dn/pi-1/t",
        f"{PREFIX}/home/st/pi-2",
    }
    wrong = the(rows, "broker.clock")
    assert "before the coordinator spoke last" in wrong["text"]  # by the lease, in the year 2286
    assert all(row["remedy"] for row in (*found, wrong))


def _lease(**changes):
    given = {"federation": "home", "boot_id": "a", "step": "held", "epoch": 1, "valid_s": 5.0}
    return msgspec.json.encode(LeaseRecord(**{**given, "nonce": "0" * 32, **changes}))


@pytest.mark.parametrize(
    ("ahead_s", "level", "words"),
    [
        (0.0, "ok", "within"),
        (7200.0, "problem", "2 h 0 min ahead of the clock of the coordinator of 'home'"),
        (-3 * 86_400.0, "problem", "3 days behind the clock of the coordinator of 'home'"),
    ],
)
@pytest.mark.parametrize("signature", [b"", b"s" * 64])
def test_a_clock_ahead_of_a_coordinator_that_runs_is_told_as_one_behind(  # noqa: PLR0917 - a table
    told, tmp_path, ahead_s, level, words, signature
):
    """The coordinator says with each renewal of its lease what time it is; keys change nothing."""
    with mosquitto(tmp_path) as port:
        access = BrokerAccess(url=f"mqtt://127.0.0.1:{port}")
        with renewed(access, lambda: signature + _lease(time_s=time.time() - ahead_s)):
            rows = told(BrokerSubject(access=access, federation="home"))
    assert words in the(rows, "broker.clock", level)["text"]
    assert levels(rows, "broker.retained") == ["ok"]


def test_without_a_coordinator_no_clock_is_said_to_be_right(told, tmp_path):
    with mosquitto(tmp_path) as port:
        rows = told(BrokerSubject(access=BrokerAccess(url=f"mqtt://127.0.0.1:{port}")))
    assert "a clock that is ahead is not noticed" in the(rows, "broker.clock", "ok")["text"]


@contextmanager
def renewed(access, lease):
    """Somebody who publishes what ``lease`` makes, four times a second."""
    done = threading.Event()

    def publish():
        with BrokerProbe(BrokerPlace.find(access.address(), None), Credential()) as probe:
            while not done.wait(0.25):
                probe.publish(f"{PREFIX}/home/all/lease", lease(), retain=True)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_an_access_list_that_is_open_is_a_problem_with_its_remedy(told, tmp_path):
    """Accounts there are, and all may do everything."""
    skip_without("mosquitto")
    users, rules = tmp_path / "users", tmp_path / "acl"
    subprocess.run(["mosquitto_passwd", "-b", "-c", users, "coordinator", PASSWORD], check=True)
    subprocess.run(["mosquitto_passwd", "-b", users, "pi-1", PASSWORD], check=True)
    rules.write_text("pattern readwrite #\n")
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    lines = (f"password_file {users}", f"acl_file {rules}")
    with mosquitto(tmp_path, *lines, anonymous=False) as port:
        access = BrokerAccess(url=f"mqtt://coordinator@127.0.0.1:{port}", password_file=password)
        rows = told(BrokerSubject(access=access, device="pi-1", device_password_file=password))
    found = {row["text"]: row for row in rows if row["check"] == "broker.rights"}
    asked = next(text for text in found if "read what goes to another device?" in text)
    assert found[asked]["level"] == "problem"
    assert "acl_file" in found[asked]["remedy"]


def _certified(folder, begins, ends):
    """A Mosquitto whose own certificate is valid from one day from now to another."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = dt.datetime.now(dt.UTC)
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(days=begins))
        .not_valid_after(now + dt.timedelta(days=ends))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "server.pem").write_bytes(made.public_bytes(pem))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.key").write_bytes(key.private_bytes(pem, *private))
    return f"certfile {folder}/server.pem", f"keyfile {folder}/server.key"


@pytest.mark.parametrize(
    ("days", "level", "words", "remedy"),
    [
        ((-10, -1), "problem", "has expired", "--renew"),
        ((-10, 9), "warning", "in 8 days", "--renew"),
        ((2, 9), "problem", "before the broker's certificate begins", "timedatectl"),
    ],
)
def test_certificates_that_have_expired_end_soon_or_begin_later(  # noqa: PLR0917 - a table
    told, tmp_path, days, level, words, remedy
):
    lines = _certified(tmp_path, *days)
    with mosquitto(tmp_path, *lines, port=free_port()) as port:
        access = BrokerAccess(url=f"mqtts://127.0.0.1:{port}", ca_file=tmp_path / "server.pem")
        rows = told(BrokerSubject(access=access))
    found = [row for row in rows if row["check"] == "broker.expiry" and row["level"] == level]
    assert words in found[0]["text"]
    assert remedy in found[0]["remedy"]
    tls = "ok" if level == "warning" else "problem"
    assert levels(rows, "broker.tls") == [tls]
