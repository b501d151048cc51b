"""What an operator does about members: invite, list, revoke; with the broker's accounts.

``members.sqlite`` decides; the accounts of the federation's own broker follow.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protofleet.broker.accounts import new_password
from protofleet.broker.folder import BrokerFolder
from protofleet.coordinator.membership.member_records import Invited, Member
from protofleet.coordinator.membership.members import KEY_FILE, Members, federation_name
from protofleet.errors import InputError, UnavailableError
from protofleet.printable import shell_word
from protofleet.signatures import fingerprint
from protofleet.wire.mqtt.broker_access import BrokerAccess, peer_certificate
from protofleet.wire.topics import INVITED, check_device_id, invited_account
from protofleet.wire.trust.enrolment import Invitation

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentStatus:
    """Where a device stands.

    Attributes:
        serial: of its latest grant; None: it never had one.
        since_s, until_s: of what ``state`` names, seconds since 1970.
        invited_until_s: of an invitation that it may still use; None: there is none.
    """

    device_id: str
    state: Literal["invited", "enrolled", "revoked", "expired"]
    serial: int | None
    since_s: float
    until_s: int
    invited_until_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAddress:
    """Where invited devices find their federation.

    Attributes:
        access: ours.
        url: the broker's for devices, without an account.
        certificate: SHA-256 of the broker's, hex; '': the system's authorities vouch for it.
        broker: the federation's own, whose accounts we write; None: another's.
        accounts: whether an invitation has an account, and the device a password from it.
    """

    access: BrokerAccess
    url: str
    certificate: str = ""
    broker: BrokerFolder | None = None
    accounts: bool = False


def own_broker(folder: Path, federation: str = "") -> BrokerFolder | None:
    """The broker's set-up in a federation's folder, if it has one.

    Federations that share a broker have folders of their own inside that which would be a single
    one's, so theirs is also looked for one folder up; it counts if it serves ``federation`` and
    others by name.
    """
    if _has_broker(folder):
        return BrokerFolder.open(folder)
    try:
        shared = BrokerFolder.open(folder.absolute().parent)
        serves = shared.federations()
    except (InputError, OSError):
        return None  # none, or one that others made in their own way
    return shared if len(serves) > 1 and federation in serves else None


def name_to_invite_for(folder: Path, wanted: str | None) -> str:
    """The federation whose devices are invited with ``folder``, which may still have to be made.

    Args:
        folder: of the federation.
        wanted: the name that was asked for, if any; else the folder's, else that which its broker
            serves, else as the folder is called.

    Raises:
        InputError: the folder's broker would refuse every device of it.
    """
    known, broker = federation_name(folder), own_broker(folder)
    serves = [] if broker is None else broker.federations()
    only = serves[0] if len(serves) == 1 else ""
    name = wanted or known or only or folder.absolute().name
    if broker is not None and not known:
        _check_served(name, folder, broker)
    return name


def find_meeting(
    members: Members, access: BrokerAccess | None, *, accounts: bool = False
) -> JoinAddress:
    """Where invited devices find us.

    Args:
        members: of the federation.
        access: ours to another broker than the federation's own, or None.
        accounts: whether the operator makes the accounts at that other broker.

    Raises:
        InputError: there is no broker, it serves other federations alone, or its certificate cannot
            be read.
        UnavailableError: the certificate of a broker with an authority of its own cannot be seen.
    """
    if access is not None:
        certificate = _shown_certificate(access)
        return JoinAddress(
            access=access, url=str(access), certificate=certificate, accounts=accounts
        )
    broker = own_broker(members.folder, members.name)
    if broker is None:
        raise InputError(
            "no broker: give --broker URL, or make one first: "
            f"protofleet broker init {shell_word(members.folder / 'broker')}"
        )
    _check_served(members.name, members.folder, broker)
    host, port = broker.hosts()[0], broker.listener()[1]
    return JoinAddress(
        access=BrokerAccess(
            url=broker.local_url("coordinator"),
            ca_file=broker.ca,
            password_file=broker.password_file,
        ),
        url=f"mqtts://[{host}]:{port}" if ":" in host else f"mqtts://{host}:{port}",
        certificate=_own_certificate(broker),
        broker=broker,
        accounts=True,
    )


def invite(
    members: Members, meeting: JoinAddress, device_id: str, valid_s: int, told: Told
) -> Invitation:
    """An invitation that counts, with its account at the federation's own broker.

    A device that has an account keeps its password until it has the new one.

    Args:
        members: of the federation.
        meeting: where the device finds it.
        device_id: who is invited.
        valid_s: for how long.
        told: what the operator has to do, if anything.

    Raises:
        InputError: an id that no device may have, or the broker's files cannot be written.
    """
    invitation = Invitation(
        federation=members.name,
        device_id=device_id,
        broker=meeting.url,
        fingerprint=fingerprint(members.federation_key),
        until=int(time.time()) + valid_s,
        certificate=meeting.certificate,
        account=meeting.accounts,
    )
    keys, broker = invitation.keys(), meeting.broker
    password = new_password() if meeting.accounts else ""
    members.invite(device_id, keys, invitation.until, password)
    if broker is not None:
        broker.accounts.add(invited_account(device_id), keys.password)
        if device_id not in broker.accounts.names():
            broker.accounts.add(device_id, password)
        reload(broker, told)
    return invitation


def revoke(members: Members, broker: BrokerFolder | None, device_id: str, told: Told) -> bool:
    """End a device's grant, invitation and accounts; False if it had none.

    Raises:
        InputError: an id that no device may have.
    """
    check_device_id(device_id)
    known = members.revoke(device_id)
    if broker is not None:
        names = (device_id, INVITED + device_id)
        removed = [name for name in names if broker.accounts.remove(name)]
        if removed:
            reload(broker, told)
        known = known or bool(removed)
    return known


def standings(members: Members, now: float) -> list[EnrolmentStatus]:
    """Where every device stands that was ever invited or granted, by device.

    Args:
        members: of the federation.
        now: seconds since 1970.
    """
    granted = {one.device_id: one for one in members.members()}
    invited = {one.device_id: one for one in members.invitations()}
    return [
        _standing(device_id, granted.get(device_id), invited.get(device_id), now)
        for device_id in sorted(granted.keys() | invited.keys())
    ]


def reload(broker: BrokerFolder, told: Told) -> None:
    """Make the running broker read its accounts, or tell the operator how."""
    command = broker.reload()
    if command:
        told(f"the running broker reads its accounts anew after: {command}")


def _has_broker(folder: Path) -> bool:
    return any((place / "mosquitto.conf").is_file() for place in (folder, folder / "broker"))


def _check_served(name: str, folder: Path, broker: BrokerFolder) -> None:
    """Raise InputError if the broker's access list has no line of this federation."""
    serves = broker.federations()
    if not serves or name in serves:
        return
    if federation_name(folder):
        remedy = (
            f"keys '{folder}' are of '{name}': if no device has enrolled with them, move "
            f"{KEY_FILE} and members.sqlite away and invite again"
        )
    elif len(serves) == 1:
        remedy = f"leave --federation out, or: --federation {serves[0]}"
    else:
        command = f"protofleet device invite --keys {shell_word(folder / serves[0])} DEVICE"
        remedy = f"each has keys of its own: {command}"
    raise InputError(
        f"federation '{name}': the broker in '{broker.path}' serves {_listed(serves)} and refuses "
        f"devices of any other; {remedy}"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _standing(
    device_id: str, grant: Member | None, invited: Invited | None, now: float
) -> EnrolmentStatus:
    unused = invited is not None and invited.serial is None
    usable = invited.until if unused and invited is not None and now < invited.until else None
    state: Literal["invited", "enrolled", "revoked", "expired"] = "expired"
    since, until = (grant.granted_s, grant.until) if grant else (0.0, 0)
    if grant is not None and grant.revoked_s is None and now < grant.until:
        state = "enrolled"
    elif usable is not None and invited is not None:
        state, since, until = "invited", invited.invited_s, invited.until
    elif grant is not None and grant.revoked_s is not None:
        state, since = "revoked", grant.revoked_s
    elif grant is None and invited is not None:
        since, until = invited.invited_s, invited.until
    return EnrolmentStatus(
        device_id=device_id,
        state=state,
        serial=grant.serial if grant else None,
        since_s=since,
        until_s=until,
        invited_until_s=usable,
    )


def _own_certificate(broker: BrokerFolder) -> str:
    path = broker.path / "server.pem"
    try:
        found = ssl.PEM_cert_to_DER_cert(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise InputError(f"broker certificate '{path}': {error}") from error
    return hashlib.sha256(found).hexdigest()


def _shown_certificate(access: BrokerAccess) -> str:
    """Of a broker whose authority we were told; others are known to every system."""
    context = access.tls()
    if context is None or access.ca_file is None:
        return ""
    try:
        found = peer_certificate(access.address(), context)
    except OSError as error:
        raise UnavailableError(f"broker {access}: {error}") from error
    return hashlib.sha256(found).hexdigest()
