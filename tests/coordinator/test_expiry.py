from __future__ import annotations

import time

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.broker.folder import BrokerFolder
from protofleet.coordinator import events
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.membership.credentials import CERTIFICATE_S, open_credentials
from protofleet.coordinator.membership.members import GRANT_S, KEY_FILE, Members
from protofleet.coordinator.process.expiry import LOOK_S, REPEAT_S, Expiry, expirations
from protofleet.federation.settings import FederationConfig
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.trust.identity import CoordinatorCertificate, end_of

_DAY_S = 86_400


@pytest.fixture
def clock(monkeypatch):
    """Moves the clock by so many days."""
    real = time.time

    def move(days: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + days * _DAY_S)

    return move


@pytest.fixture
def config(tmp_path):
    Members.create(tmp_path / "federation", "home")
    return FederationConfig(
        federation="home",
        broker=BrokerAccess(url="mqtt://127.0.0.1"),
        bundle=tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate()),
        run_dir=tmp_path / "run",
        rounds=2,
        keys=tmp_path / "federation",
    )


class _Run:
    """What a coordinator watches while it runs, and what it has told."""

    def __init__(self, config):
        self.told, self._now = [], 0.0
        self.members = Members(config.keys, "home")
        self.ledger = Ledger(config.run_dir, {"federation": "home"})
        self.credentials, certificate = open_credentials(self.members, self.ledger, "cd" * 32)
        self._expiry = Expiry(config, certificate, self.told.append)

    def look(self) -> bool:
        self._now += LOOK_S
        return self._expiry.watch(self._now)

    def ends(self):
        certificate = self.credentials.certificate()
        return end_of(certificate, CoordinatorCertificate) - time.time()


@pytest.fixture
def run(config):
    run = _Run(config)
    yield run
    run.ledger.close()


def test_a_running_coordinator_renews_its_certificate_in_time(run, clock):
    assert not run.look()
    clock(340)
    assert run.look()
    assert run.ends() == pytest.approx(CERTIFICATE_S, abs=5)
    assert [type(one) for one in run.told] == [events.CertificateRenewed]
    assert not run.look()


def test_without_the_key_it_is_told_once_a_day_until_the_key_is_put_back(run, config, clock):
    path = config.keys / KEY_FILE
    path.rename(path.with_suffix(".away"))
    clock(340)
    assert not run.look()
    assert not run.look()
    (told,) = run.told
    assert isinstance(told, events.EndsSoon)
    assert not told.over
    assert f"put {KEY_FILE} into '{config.keys}'" in told.remedy
    clock(340 + REPEAT_S / _DAY_S + 0.1)
    run.look()
    clock(370)
    run.look()
    assert [one.over for one in run.told] == [False, False, True]
    assert "the coordinator's certificate is over since" in run.told[-1].what
    path.with_suffix(".away").rename(path)
    assert run.look()
    assert run.ends() > 0


def test_all_that_ends_is_listed_the_earliest_first(run, config, clock):
    BrokerFolder.create(config.keys / "broker", ["localhost"])
    key = run.members.private_key()
    for name in ("anna", "berta"):
        run.members.grant(key, name, bytes(32))
    run.members.revoke("berta")
    assert expirations(config, time.time()) == ()
    days = GRANT_S / _DAY_S - 3
    clock(days)
    found = expirations(config, time.time())
    assert [one.what for one in found] == ["the coordinator's certificate", "the grant of anna"]
    assert found[1].devices == ("anna",)
    assert found[1].remedy.endswith(f"--keys {config.keys} anna")
    late = expirations(config, time.time() + 100 * _DAY_S)
    assert [one.what for one in late][2:] == [
        f"certificate '{config.keys / 'broker' / 'server.pem'}' of the broker"
    ]
    assert late[2].remedy.startswith("protofleet broker init --renew")


def test_a_federation_without_keys_has_nothing_that_ends(config):
    keyless = msgspec.structs.replace(config, keys=None)
    assert expirations(keyless, time.time() + 10_000 * _DAY_S) == ()
