"""A held device that has nothing to transfer ends its connection, so that its radio may sleep.

An idle connection wakes a radio at every keep-alive and heartbeat; by a cellular network that takes
more of a battery than all training (docs/rehearse.md). Its retained presence says what holds it.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

from protofleet.edge.owner.participation import Participation

_log = logging.getLogger(__name__)

RESTS_AFTER_S = 60.0
"""Held for so long: conditions that come and go, such as an idle processor, cost no reconnects."""


class RestingEndpoint(Protocol):
    """What is asked of ``wire.device_endpoint.DeviceEndpoint``."""

    def rest(self) -> None:
        """End the connection and make none."""

    def go_on(self) -> None:
        """Connect again."""


class Rest:
    """Whether the connection rests.

    Args:
        endpoint: whose connection it is.
        participation: of the owner's conditions.
        allowed: whether it may rest at all.

    Attributes:
        now: whether it does.
    """

    def __init__(
        self, endpoint: RestingEndpoint, participation: Participation, *, allowed: bool = True
    ) -> None:
        self._endpoint, self._participation, self._allowed = endpoint, participation, allowed
        self._since: float | None = None
        self.now = False

    def advance(self, *, may: bool) -> None:
        """Rest or go on, as is due.

        Args:
            may: whether everybody knows that the device is held, and no transfer runs.
        """
        if not self._participation.held:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        rests = (
            self._allowed
            and self._since is not None
            and time.monotonic() >= self._since + RESTS_AFTER_S
            and (may or self.now)
        )
        if rests and not self.now:
            _log.info("held: the connection rests until that is over")
            self._endpoint.rest()
        elif self.now and not rests:
            self._endpoint.go_on()
        self.now = rests
