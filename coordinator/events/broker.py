"""Of the broker, and of who else speaks there."""

from __future__ import annotations

import logging
from typing import ClassVar

from protofleet.coordinator.events.base import CoordinatorEvent
from protofleet.coordinator.events.text import safe
from protofleet.units import clock_text, duration_text


class BrokerConnected(CoordinatorEvent, frozen=True, kw_only=True, tag="connected"):
    """The broker is there."""

    routine: ClassVar[bool] = True

    protocol: str

    def _says(self) -> str:
        return f"connected to the broker, MQTT {self.protocol}"


class BrokerDisconnected(CoordinatorEvent, frozen=True, kw_only=True, tag="disconnected"):
    """The broker is gone; the link tries again by itself."""

    level: ClassVar[int] = logging.WARNING

    reason: str

    def _says(self) -> str:
        reason = safe(self.reason)
        return f"[yellow]no connection to the broker[/yellow]: {reason}; trying again"


class BrokerHinders(CoordinatorEvent, frozen=True, kw_only=True, tag="hindered"):
    """The broker is there, and does not let something pass: cause and remedy."""

    level: ClassVar[int] = logging.WARNING

    reason: str

    def _says(self) -> str:
        return f"[yellow]the broker hinders[/yellow]: {safe(self.reason)}"


class AnotherCoordinator(CoordinatorEvent, frozen=True, kw_only=True, tag="another_coordinator"):
    """Another process announces rounds of this federation: end one of the two."""

    level: ClassVar[int] = logging.WARNING

    federation: str

    def _says(self) -> str:
        return (
            f"[yellow]another coordinator[/yellow] of federation '{safe(self.federation)}' seems "
            "to run on this broker, and to invite its devices; end one of the two"
        )


class LeaseAwaited(CoordinatorEvent, frozen=True, kw_only=True, tag="lease_awaited"):
    """Another coordinator has the lease of this federation.

    ``alive``: it was heard now, and its end is waited for; else this one takes over unless the
    other is heard within ``silent_s``.
    """

    epoch: int
    alive: bool
    silent_s: float

    def _says(self) -> str:
        then = f"takes over if nothing is heard of it for {duration_text(self.silent_s)}"
        return (
            "[yellow]another coordinator[/yellow] serves this federation "
            f"(epoch {self.epoch}); {'waits for its end' if self.alive else then}"
        )


class LeaseLost(CoordinatorEvent, frozen=True, kw_only=True, tag="lease_lost"):
    """Another coordinator has taken over while this one was cut off, or by its operator's wish."""

    level: ClassVar[int] = logging.WARNING

    epoch: int
    by_epoch: int

    def _says(self) -> str:
        return f"[red]replaced[/red]: another coordinator has taken over (epoch {self.by_epoch})"


class EndsSoon(CoordinatorEvent, frozen=True, kw_only=True, tag="ends_soon"):
    """Something ends by the calendar within thirty days, or is ``over``: certificate or grant."""

    level: ClassVar[int] = logging.WARNING

    what: str
    until_s: float
    over: bool
    remedy: str

    def _says(self) -> str:
        when = "[red]over" if self.over else "[yellow]ends soon"
        return f"{when}[/]: {safe(self.what)}; {safe(self.remedy)}"


class CertificateRenewed(CoordinatorEvent, frozen=True, kw_only=True, tag="certificate_renewed"):
    """The coordinator's certificate was made anew, with the federation key."""

    until_s: float

    def _says(self) -> str:
        return f"the coordinator's certificate is made anew, until {clock_text(self.until_s)}"


class Withheld(CoordinatorEvent, frozen=True, kw_only=True, tag="withheld"):
    """So many events of one ``kind`` were not reported in the last ``seconds``."""

    level: ClassVar[int] = logging.WARNING

    kind: str
    count: int
    seconds: float

    def _says(self) -> str:
        return f"[dim]and {self.count} more of {self.kind} in the last {self.seconds:.0f} s[/dim]"
