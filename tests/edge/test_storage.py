"""A disk that takes no writes holds a device; it loses nothing and goes on where it stood."""

from __future__ import annotations

import errno
import os

import pytest
from fake_endpoint import CONNECTED

from protofleet.durable import write_whole
from protofleet.edge import storage
from protofleet.edge.state import store
from protofleet.edge.state.store import Store
from protofleet.errors import StorageError
from protofleet.wire.messages import Presence


class _Disk:
    """Takes no writes from the ``first`` on, until it was tried ``tries`` times."""

    def __init__(self, first: int, tries: int, number: int) -> None:
        self.first, self.left, self.number = first, tries, number

    def write(self, path, data, *, shared=False):
        self.first -= 1
        if self.first < 0 and self.left > 0:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number), str(path))
        write_whole(path, data, shared=shared)


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch):
    monkeypatch.setattr(storage, "LOOK_S", 0.0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("first", [1, 3, 4, 6])
def test_at_every_write_of_a_round_it_waits_says_so_and_goes_on(device, monkeypatch, first, number):
    disk = _Disk(first, 3, number)
    monkeypatch.setattr(store, "write_whole", disk.write)
    endpoint = device.play(CONNECTED, *device.round(), device.delivered)
    assert disk.left == 0
    assert [name for name in device.names() if name not in ("held", "free")][-2:] == [
        "delivered",
        "left",
    ]
    told = [figures for name, figures in device.reports if name == "held"]
    assert told[0]["conditions"] == ("storage",)
    assert os.strerror(number) in told[0]["reason"]
    said = [message.held for message in endpoint.published if isinstance(message, Presence)]
    assert ("storage",) in said
    assert said[-1] == ()


def test_a_device_that_is_stopped_meanwhile_leaves_with_its_state(device, monkeypatch):
    disk = _Disk(3, 10**9, errno.ENOSPC)
    monkeypatch.setattr(store, "write_whole", disk.write)
    monkeypatch.setattr(Store, "probe", lambda _: _stop(device))
    device.play(CONNECTED, *device.round())
    assert device.names()[-1] == "left"


def _stop(device):
    device.agent.stop()
    raise StorageError("full")
