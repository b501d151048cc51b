"""The questions, put to brokers of which we know what they must answer."""

from __future__ import annotations

import subprocess
import time

import pytest
from brokers import mosquitto
from click.testing import CliRunner
from secured_broker import PASSWORD, let_in, skip_without

from protofleet.broker.check import Target, check
from protofleet.broker.findings import Verdict
from protofleet.broker.folder import BrokerFolder
from protofleet.broker.probe import BrokerPlace, BrokerProbe, Credential
from protofleet.broker.trial import trial_accounts
from protofleet.cli.broker import broker
from protofleet.errors import UnavailableError
from protofleet.firmware_sim.broker import local_broker
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.topics import PREFIX

pytestmark = pytest.mark.slow(seconds=5)

# What MQTT itself allows, or has no word for; amqtt has.
_NOTED = {
    "may a device leave retained messages where none belong?",
    "may a device take over a connection whose client id it knows?",
    "may a device publish under a federation that it invents?",
}


def _verdicts(findings):
    return {finding.question: finding.verdict for finding in findings}


def test_our_own_set_up_is_closed(secured_broker):
    folder = secured_broker.folder
    before = folder.accounts.file.read_bytes(), folder.accounts.access_file.read_bytes()
    with trial_accounts(folder) as target:
        findings = list(check(target))
    assert [finding for finding in findings if finding.verdict.failed] == []
    verdicts = _verdicts(findings)
    assert len(findings) == 41
    noted = {question for question, verdict in verdicts.items() if verdict is Verdict.NOTED}
    assert noted <= _NOTED
    assert Verdict.UNKNOWN not in verdicts.values()
    assert before == (folder.accounts.file.read_bytes(), folder.accounts.access_file.read_bytes())


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_an_open_broker_is_open_everywhere(kind):
    skip_without(kind)
    with local_broker(kind) as url:
        findings = list(check(Target(access=BrokerAccess(url=url))))
        left = _retained(url)
    verdicts = _verdicts(findings)
    works = {question for question, verdict in verdicts.items() if verdict is Verdict.WORKS}
    shut = {
        question
        for question, verdict in verdicts.items()
        if verdict is not Verdict.OPEN and question not in works | _NOTED
    }
    # amqtt knows neither, and takes no large packets from anyone.
    assert shut <= {
        "may a device read it by a shared subscription?",
        "may a device read the broker's own state ($SYS)?",
        "may a device send a packet that is too large?",
    }
    assert kind == "amqtt" or not shut
    assert all(finding.remedy for finding in findings if finding.verdict.failed)
    assert left == []


def _retained(url):
    address = BrokerAccess(url=url).address()
    with BrokerProbe(BrokerPlace.find(address, None), Credential()) as probe:
        probe.subscribe("fl/#")
        time.sleep(0.3)
        return [message for message in probe.messages if message.retained]


@pytest.fixture
def half_open(tmp_path):
    """TLS-less, with accounts and the access list that the documentation had: one for devices."""
    skip_without("mosquitto")
    users, rules = tmp_path / "users", tmp_path / "acl"
    subprocess.run(["mosquitto_passwd", "-b", "-c", users, "coordinator", PASSWORD], check=True)
    subprocess.run(["mosquitto_passwd", "-b", users, "pi-1", PASSWORD], check=True)
    rules.write_text(
        f"pattern write {PREFIX}/+/up/%u/#\n"
        f"pattern write {PREFIX}/+/st/%u\n"
        f"pattern read {PREFIX}/+/dn/%u/#\n"
        f"topic read {PREFIX}/+/all/#\n"
    )
    lines = (f"password_file {users}", f"acl_file {rules}")
    with mosquitto(tmp_path, *lines, anonymous=False) as port:
        yield BrokerAccess(url=f"mqtt://coordinator:{PASSWORD}@127.0.0.1:{port}")


def test_an_access_list_that_forgets_the_coordinator_is_broken_not_closed(half_open):
    stolen = Credential(user="pi-1", password=PASSWORD)
    verdicts = _verdicts(check(Target(access=half_open, device=stolen)))
    assert verdicts["does what a device sends arrive?"] is Verdict.BROKEN
    assert verdicts["does what the coordinator sends arrive?"] is Verdict.BROKEN
    assert verdicts["may a device send as another device?"] is Verdict.CLOSED
    assert verdicts["does it speak MQTT without TLS?"] is Verdict.OPEN


@pytest.mark.parametrize("query", ["", pytest.param("?version=3.1.1", marks=pytest.mark.full_size)])
def test_a_broker_that_drops_the_packets_that_we_send_is_broken(tmp_path, query):
    """It acknowledges each: what counts is what arrives."""
    with mosquitto(tmp_path, "message_size_limit 20000") as port:
        access = BrokerAccess(url=f"mqtt://127.0.0.1:{port}{query}")
        findings = {one.question: one for one in check(Target(access=access))}
    assert findings["does what a device sends arrive?"].verdict is Verdict.WORKS
    for who in ("a device", "the coordinator"):
        found = findings[f"does the largest packet that {who} sends arrive?"]
        assert found.verdict is Verdict.BROKEN
        assert "message_size_limit" in found.remedy


def test_without_a_device_the_rest_is_unknown_and_the_command_says_so(secured_broker):
    url, folder = secured_broker.broker.url, secured_broker.folder
    done = CliRunner().invoke(broker, ["check", url, "--broker-ca", str(folder.ca)])
    assert done.exit_code == 0, done.output
    assert "not asked: needs a device's account (--device)" in done.output
    assert "1 not known" in done.output
    done = CliRunner().invoke(broker, ["check", url])
    assert "certificate verify failed" in done.output
    assert "remedy: the ca.pem" in done.output
    assert done.exit_code == 1


def test_an_open_broker_ends_the_command_with_1():
    with local_broker("auto") as url:
        done = CliRunner().invoke(broker, ["check", url])
    assert done.exit_code == 1
    assert "OPEN    may anyone connect without an account?" in done.output
    assert "remedy: allow_anonymous false" in done.output


def test_the_federation_of_a_file_is_asked_about(secured_broker, tmp_path):
    """Its own topics, but no announcement that its devices would read."""
    folder = secured_broker.folder
    let_in(secured_broker, "pi-1")
    (tmp_path / "pi-1.password").touch(mode=0o600)
    (tmp_path / "pi-1.password").write_text(PASSWORD)
    file = tmp_path / "federation.toml"
    file.write_text(
        'federation = "home"\nbundle = "b.pfb"\nrun_dir = "run"\nrounds = 1\n[broker]\n'
        f'url = "{secured_broker.broker.url}"\nuser = "coordinator"\n'
        f'ca_file = "{folder.ca}"\npassword_file = "{folder.password_file}"\n'
    )
    with BrokerProbe(secured_broker.place, secured_broker.coordinator) as watcher:
        watcher.subscribe(f"{PREFIX}/home/up/+/+")
        watcher.subscribe(f"{PREFIX}/home/all/#")
        options = ["--device", "pi-1", "--device-password-file", str(tmp_path / "pi-1.password")]
        done = CliRunner().invoke(broker, ["check", str(file), *options])
        topics = {message.topic for message in watcher.messages}
    folder.accounts.remove("pi-1")
    assert done.exit_code == 0, done.output
    assert f"{PREFIX}/home/up/pi-1/s" in topics
    assert f"{PREFIX}/home/all/ctl" not in topics


def test_a_broker_that_is_not_there_is_one_line(tmp_path):
    access = BrokerAccess(url="mqtt://127.0.0.1:1")
    with pytest.raises(UnavailableError, match="is it running there"):
        list(check(Target(access=access)))
    done = CliRunner().invoke(broker, ["check", str(tmp_path / "none")])
    assert "expected a folder, a federation file or a URL" in str(done.exception)
    folder = BrokerFolder.create(tmp_path / "broker")
    with pytest.raises(UnavailableError, match="no broker runs on it here"), trial_accounts(folder):
        pass
