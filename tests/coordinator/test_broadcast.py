"""Payloads that many devices get travel to all of them at once."""

from __future__ import annotations

import pytest
from fake_endpoint import CONNECTED

from protofleet.federation.settings import LimitSettings


@pytest.mark.parametrize(("least", "shared"), [(2, True), (3, False), (0, False)])
def test_a_payload_is_shared_from_so_many_devices_on(open_federation, least, shared):
    fed = open_federation(limits=LimitSettings(broadcast_from=least))
    fed.play(CONNECTED, fed.online("a"), fed.online("b"))
    assert [bool(sent.task.shared) for sent in fed.endpoint.sent] == [shared, shared]


def test_who_is_invited_later_gets_its_own(open_federation):
    """It is alone with its offer; nothing has to turn for it."""
    fed = open_federation(limits=LimitSettings(broadcast_from=2))
    fed.play(CONNECTED, fed.online("a"), fed.online("b"), fed.gone("b"), fed.online("b"))
    assert [bool(sent.task.shared) for sent in fed.endpoint.sent] == [True, True, False]
