"""Many links in one thread, on a real Mosquitto."""

from __future__ import annotations

import select
import time

import pytest
from brokers import KillableBroker, wait_until

from protofleet.firmware_sim.watched_link import _BATCH, Watch, WatchedLink
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Disconnected, LinkOptions, MqttMessage
from protofleet.wire.transfers.outbox import CHUNKS_IN_FLIGHT_MAX

_TOPIC = "fl/v2/watched/all/ctl"


class _Fleet:
    def __init__(self, url, count):
        options = LinkOptions(broker=BrokerAccess(url=url), filters=(_TOPIC,))
        self.links = [WatchedLink(options) for _ in range(count)]
        self.seen = [[] for _ in self.links]
        self.watch = Watch()
        for number, link in enumerate(self.links):
            link.start()
            self.watch.note(number, link, float("inf"))

    def until(self, condition, timeout_s=30.0):
        deadline = time.monotonic() + timeout_s
        while not all(map(condition, self.seen)):
            assert time.monotonic() < deadline, self.seen
            for number, readable in self.watch.wait(0.1):
                self.links[number].turn(self.watch.looked_s, readable=readable)
                self._take(number)

    def _take(self, number):
        link = self.links[number]
        while (event := link.get()) is not None:
            self.seen[number].append(event)
        self.watch.note(number, link, float("inf"))

    def close(self):
        for number, link in enumerate(self.links):
            link.close()
            self.watch.forget(number)
        self.watch.close()


def _connections(seen):
    return sum(isinstance(event, Connected) for event in seen)


@pytest.mark.slow(seconds=5)
def test_links_without_threads_send_hear_and_come_back_after_the_broker_died(tmp_path):
    with KillableBroker(tmp_path) as broker:
        fleet = _Fleet(broker.url, 8)
        fleet.until(lambda seen: _connections(seen) == 1)
        for number, link in enumerate(fleet.links):
            assert link.connected
            assert link.room == CHUNKS_IN_FLIGHT_MAX
            assert link.publish(_TOPIC, b"%d" % number)
        fleet.until(lambda seen: sum(isinstance(one, MqttMessage) for one in seen) == 8)
        assert fleet.links[0].traffic.payload_down_bytes == 8
        broker.restart()
        fleet.until(lambda seen: _connections(seen) == 2)
        for seen in fleet.seen:
            assert sum(isinstance(event, Disconnected) for event in seen) >= 1
        fleet.close()
        assert not any(link.connected for link in fleet.links)


@pytest.mark.mosquitto
def test_a_link_that_is_awaited_does_not_stand_behind_all_others(mosquitto_url):
    fleet = _Fleet(mosquitto_url, 3 * _BATCH)
    fleet.until(lambda seen: _connections(seen) == 1)
    last = len(fleet.links) - 1
    assert fleet.links[0].publish(_TOPIC, b"for all")
    fleet.until(lambda seen: any(isinstance(one, MqttMessage) for one in seen))
    fleet.watch.note(last, fleet.links[last], float("inf"), awaited=True)
    fleet.links[0].publish(_TOPIC, b"again")
    sockets = [link.connection.socket for link in fleet.links]
    wait_until(lambda: select.select(sockets, [], [], 0.0)[0] == sockets)
    order = []
    while len(set(order)) < len(fleet.links):
        for number, readable in fleet.watch.wait(1.0):
            fleet.links[number].turn(fleet.watch.looked_s, readable=readable)
            heard = len(fleet.links[number].unread)
            fleet.links[number].unread.clear()
            fleet.watch.note(number, fleet.links[number], float("inf"), awaited=number == last)
            order += [number] * (heard > 0)
    assert order.index(last) <= _BATCH
    fleet.close()
