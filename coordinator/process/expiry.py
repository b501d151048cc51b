"""What of a federation ends by the calendar: who renews it, and how that is told in time.

The coordinator's certificate is made anew by the coordinator itself where the federation key is at
hand. All else, and that where the key lies elsewhere, is told thirty days ahead: in the log of the
running coordinator, in ``coordinator status``, on the dashboard and by ``protofleet doctor``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from protofleet.broker.certificates import valid_until
from protofleet.coordinator.events import CertificateRenewed, EndsSoon, Sink
from protofleet.coordinator.membership.credentials import PATH, RENEW_S, RunCertificate
from protofleet.coordinator.membership.invitations import own_broker
from protofleet.coordinator.membership.members import KEY_FILE, Members
from protofleet.errors import RefusedError
from protofleet.federation.settings import FederationConfig
from protofleet.printable import shell_word
from protofleet.units import clock_text, duration_text
from protofleet.wire.trust.identity import CoordinatorCertificate, end_of

AHEAD_S = RENEW_S
"""How long before its end a thing is told of."""
LOOK_S = 60.0
"""How often a running coordinator looks, so that a key that was put back is taken at once."""
REPEAT_S = 86_400.0
"""How often it tells the same again."""


class Expiration(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that ends soon, or has ended.

    Attributes:
        what: its name, for people.
        until_s: seconds since 1970.
        remedy: what to do.
        devices: whose it is, the first to end first; empty: no device's.
    """

    what: str
    until_s: float
    remedy: str
    devices: tuple[str, ...] = ()

    def text(self, now_s: float) -> str:
        """``what``, and when it ends, as of ``now_s``."""
        at = clock_text(self.until_s)
        if self.until_s <= now_s:
            return f"{self.what} is over since {at}"
        return f"{self.what} ends at {at}, in {duration_text(self.until_s - now_s)}"


def expirations(config: FederationConfig, now_s: float) -> tuple[Expiration, ...]:
    """What of a federation with keys has ended or ends within ``AHEAD_S``, the earliest first.

    Raises:
        InputError: the federation's folder is damaged.
    """
    if config.keys is None:
        return ()
    broker = own_broker(config.keys, config.federation)
    found = [
        *_certificate(config.run_dir, config.keys),
        *(() if broker is None else broker_expirations(broker.path)),
        *_grants(config.keys, config.federation, now_s),
    ]
    soon = [one for one in found if one.until_s < now_s + AHEAD_S]
    return tuple(sorted(soon, key=lambda one: one.until_s))


def _certificate(run_dir: Path, keys: Path) -> Iterator[Expiration]:
    try:
        text = (run_dir / PATH).read_text(encoding="ascii")
        until = end_of(text, CoordinatorCertificate)
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError, RefusedError):
        return  # no run yet, or one that makes it anew when it starts
    if (keys / KEY_FILE).exists():
        remedy = "the coordinator makes it anew while it runs: start it"
    else:
        remedy = (
            f"put {KEY_FILE} into '{keys}': a running coordinator makes a new one within a "
            "minute; then take it away again"
        )
    yield Expiration(what="the coordinator's certificate", until_s=until, remedy=remedy)


def broker_expirations(folder: Path) -> Iterator[Expiration]:
    """When the certificates of a broker's folder end, however late that is; none without them."""
    for path in (folder / name for name in ("ca.pem", "server.pem")):
        try:
            until = valid_until(path.read_bytes()).timestamp()
        except (OSError, ValueError):
            continue  # the broker is made elsewhere, or its files are: the doctor looks there
        anew = f"a new folder by protofleet broker init, and {path.name} to every device"
        renew = f"protofleet broker init --renew {shell_word(path.parent)}, and reload the broker"
        yield Expiration(
            what=f"certificate '{path}' of the broker",
            until_s=until,
            remedy=anew if path.name == "ca.pem" else renew,
        )


def _grants(keys: Path, federation: str, now_s: float) -> Iterator[Expiration]:
    if not (keys / "members.sqlite").exists():
        return
    with Members(keys, federation) as members:
        ending = sorted(
            (one.until, one.device_id)
            for one in members.members()
            if one.revoked_s is None and one.until < now_s + AHEAD_S
        )
    if ending:
        names = tuple(name for _, name in ending)
        what = f"the grant of {names[0]}"
        if len(names) > 1:
            what = f"the first of {len(names)} devices' grants ({names[0]})"
        remedy = (
            f"a new one: protofleet device rotate --keys {shell_word(keys)} {shell_word(names[0])}"
            + " …" * (len(names) > 1)
        )
        yield Expiration(what=what, until_s=ending[0][0], remedy=remedy, devices=names)


class Expiry:
    """Renews and tells, in a coordinator that runs.

    Args:
        config: the federation file.
        certificate: of this run.
        sink: told what ends, once a day each, and of a renewal.
    """

    def __init__(self, config: FederationConfig, certificate: RunCertificate, sink: Sink) -> None:
        self._config, self._certificate, self._sink = config, certificate, sink
        self._due = 0.0
        self._told: dict[str, float] = {}

    def watch(self, now: float) -> bool:
        """Renew what can be, tell the rest; whether devices must hear a new certificate.

        Args:
            now: monotonic seconds.

        Raises:
            InputError: the federation's folder is damaged, or its key is another one.
        """
        if now < self._due:
            return False
        self._due = now + LOOK_S
        renewed = self._certificate.renew()
        if renewed:
            self._sink(CertificateRenewed(until_s=self._certificate.until))
        now_s = time.time()
        for one in expirations(self._config, now_s):
            if self._told.get(one.what, 0.0) + REPEAT_S <= now_s:
                self._told[one.what] = now_s
                over = one.until_s <= now_s
                self._sink(
                    EndsSoon(
                        what=one.text(now_s), until_s=one.until_s, over=over, remedy=one.remedy
                    )
                )
        return renewed
