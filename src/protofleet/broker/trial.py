"""Accounts that last for one trial of a broker that runs here."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

from protofleet.broker.accounts import new_password
from protofleet.broker.check import Target
from protofleet.broker.folder import BrokerFolder
from protofleet.broker.probe import ANSWER_S, BrokerPlace, BrokerProbe, Credential
from protofleet.errors import UnavailableError
from protofleet.printable import shell_word
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.topics import COORDINATOR, INVITED


@contextmanager
def trial_accounts(folder: BrokerFolder) -> Iterator[Target]:
    """A target for the broker that runs on ``folder``, with accounts that end with the context.

    Raises:
        UnavailableError: no broker runs there, or it does not read its accounts again.
    """
    if folder.running() is None:
        raise UnavailableError(
            f"broker folder '{folder.path}': no broker runs on it here; start it with: protofleet "
            f"broker run {shell_word(folder.path)}; or check one elsewhere by its URL"
        )
    mark, accounts = secrets.token_hex(3), folder.accounts
    names = (f"check-a{mark}", f"check-b{mark}", f"{INVITED}check-a{mark}")
    device, other, invited = (Credential(user=name, password=new_password()) for name in names)
    access = BrokerAccess(
        url=folder.local_url(COORDINATOR), ca_file=folder.ca, password_file=folder.password_file
    )
    try:
        for who in (device, other, invited):
            accounts.add(who.user, who.password or "")
        _await_account(folder, access, invited)
        yield Target(
            access=access,
            device=device,
            other=other,
            invited=invited,
            federation=next(iter(folder.federations()), ""),
        )
    finally:
        for name in names:
            accounts.remove(name)
        folder.reload()


def _await_account(folder: BrokerFolder, access: BrokerAccess, who: Credential) -> None:
    command = folder.reload()
    if command:
        raise UnavailableError(f"broker folder '{folder.path}': run as its owner, or: {command}")
    place = BrokerPlace.find(access.address(), access.tls())
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        with BrokerProbe(place, who) as probe:
            if not probe.refused:
                return
        time.sleep(0.05)
    raise UnavailableError(
        f"broker folder '{folder.path}': the broker did not take a new account: {probe.refused}"
    )
