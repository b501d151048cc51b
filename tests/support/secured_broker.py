"""A broker that runs on a folder of ``protofleet broker init``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from brokers import free_port, wait_until

from protofleet.broker.folder import BrokerFolder, find_mosquitto
from protofleet.broker.probe import BrokerPlace, BrokerProbe, Credential
from protofleet.firmware_sim.broker import BrokerOptions, open_broker
from protofleet.wire.mqtt.broker_access import BrokerAccess

PASSWORD = "sesame-sesame-sesame"  # noqa: S105 - of brokers that live for one test


def skip_without(kind: str) -> None:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("needs the Mosquitto broker: apt install mosquitto")
    if kind == "amqtt":
        pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[fleet]'")


@contextmanager
def secured(kind: str, path: Path, federations: Sequence[str] = ()) -> Iterator[SimpleNamespace]:
    """A running broker: ``folder``, ``place``, ``coordinator`` (a credential), ``access``."""
    skip_without(kind)
    folder = BrokerFolder.create(path, port=free_port(), federations=federations)
    with open_broker(BrokerOptions(kind=kind, folder=folder)) as broker:
        access = BrokerAccess(
            url=broker.url.replace("mqtts://", "mqtts://coordinator@"),
            ca_file=folder.ca,
            password_file=folder.password_file,
        )
        coordinator = Credential(user="coordinator", password=folder.coordinator_password())
        place = BrokerPlace.find(access.address(), access.tls())
        yield SimpleNamespace(
            folder=folder, place=place, coordinator=coordinator, access=access, broker=broker
        )


def let_in(running: SimpleNamespace, *names: str) -> None:
    """Accounts for ``names``, with ``PASSWORD``, that the running broker knows."""
    for name in names:
        running.folder.accounts.add(name, PASSWORD)
    assert running.folder.reload() == ""
    wait_until(lambda: _is_let_in(running.place, names[-1]))


def _is_let_in(place: BrokerPlace, name: str) -> bool:
    with BrokerProbe(place, Credential(user=name, password=PASSWORD)) as probe:
        return not probe.refused
