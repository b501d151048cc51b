"""A device's enrolment on disk: its key, its grant, and whom it trusts.

The folder ``enrolment`` of a store holds ``enrolment.json`` (grant, federation key, broker), and
beside it, or in a folder that it names, ``device.pem`` (the device's own key, mode 0600) and
``memory.json`` (what must not go back). The enrolment is there once ``enrolment.json`` is; a later
one has another folder, so that one rename decides which of the two counts.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import keys
from protofleet.durable import replace_whole, sync_folder, write_whole
from protofleet.errors import InputError, ProvisionError, RefusedError
from protofleet.units import clock_text
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.trust.device_protection import DeviceCredentials
from protofleet.wire.trust.identity import DeviceGrant, public_bytes, read_statement

FOLDER = "enrolment"
AHEAD_S = 30 * 86_400
"""How long before its end a device tells of its grant's."""
REMEDY = "ask for a new invitation, and: protofleet device enroll INVITATION"
_KEY, _ENROLMENT, _MEMORY = "device.pem", "enrolment.json", "memory.json"

_TELL_AGAIN_S = 3600.0

_log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
_KeyText = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Enrolment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a device was given when it enrolled.

    Attributes:
        federation, device_id: who it is.
        grant: the federation key's statement about the device's key.
        federation_key: raw public key of then, hex.
        broker: how to reach it, as ``BrokerAccess.to_table`` has it; relative paths start at the
            enrolment's folder.
        files: folder, inside the enrolment's, of the key and what belongs to it; '': that itself.
    """

    federation: str
    device_id: str
    grant: str
    federation_key: _KeyText
    broker: dict[str, Any]
    files: str = ""

    def access(self, folder: Path) -> BrokerAccess:
        """The broker, with files of the enrolment's ``folder``.

        Raises:
            ProvisionError: what is kept is no broker.
        """
        try:
            access = msgspec.convert(
                self.broker, BrokerAccess, dec_hook=lambda kind, value: kind(value)
            )
        except (msgspec.ValidationError, InputError, TypeError) as error:
            raise ProvisionError(f"{folder}: broker: {error}; enrol the device anew") from error
        return access.under(folder)


class _Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What must not go back over restarts.

    Attributes:
        start: processes that have used the credentials.
        announced: sequence of the latest announcement that was heard.
        federation_key: in force, hex.
    """

    start: _Count
    announced: _Count
    federation_key: _KeyText


def device_key(folder: Path) -> Ed25519PrivateKey:
    """The device's own key in its enrolment folder, made if there is none.

    Raises:
        InputError: the file is no key, or others may read it.
    """
    return keys.load_or_create_signing_key(folder / _KEY)


def save_enrolment(folder: Path, enrolment: Enrolment) -> None:
    """Make an enrolment that was granted the store's own; what an earlier one noted goes."""
    memory = _Memory(start=0, announced=0, federation_key=enrolment.federation_key)
    own = folder / enrolment.files
    _write(own / _MEMORY, memory)
    sync_folder(own)
    _write(folder / _ENROLMENT, enrolment)
    sync_folder(folder)


def load_enrolment(folder: Path) -> Enrolment | None:
    """The enrolment in an enrolment folder; None if the device is not enrolled.

    Raises:
        ProvisionError: the file is damaged.
    """
    return _read(folder / _ENROLMENT, Enrolment)


class _Notes:
    """What a process notes in its enrolment's folder, and tells its owner, while it runs.

    Args:
        enrolment: its own.
        own: folder of the enrolment's files.
    """

    def __init__(self, enrolment: Enrolment, own: Path) -> None:
        self._federation, self._own = enrolment.federation, own
        memory = _read(own / _MEMORY, _Memory) or _Memory(
            start=0, announced=0, federation_key=enrolment.federation_key
        )
        self.memory = msgspec.structs.replace(memory, start=memory.start + 1)
        self._told_at = float("-inf")
        self._keep()

    def note(self, sequence: int, federation_key: bytes) -> None:
        """Keep what was announced last, and the federation key then in force."""
        self.memory = msgspec.structs.replace(
            self.memory, announced=sequence, federation_key=federation_key.hex()
        )
        # Not against power loss: what then may be repeated is an announcement of the last minutes.
        replace_whole(self._own / _MEMORY, _encode(self.memory))

    def overtake(self, start: int) -> None:
        """Keep a later start, which a coordinator knows."""
        self.memory = msgspec.structs.replace(self.memory, start=start)
        self._keep()
        _log.warning(
            "the coordinator knows a later start of this device than its store: the store was "
            "restored from a backup, or another device has a copy of it; it goes on as start %d",
            start,
        )

    def refused(self) -> None:
        """Tell, now and then, that the grant is over."""
        if time.monotonic() < self._told_at + _TELL_AGAIN_S:
            return
        self._told_at = time.monotonic()
        _log.warning(
            "the coordinator of federation %s says that this device's grant is no longer in "
            "force: it was revoked, or replaced by a later one; until the device is enrolled "
            "anew it takes no part: %s",
            self._federation,
            REMEDY,
        )

    def _keep(self) -> None:
        _write(self._own / _MEMORY, self.memory)
        sync_folder(self._own)


def open_credentials(folder: Path) -> DeviceCredentials | None:
    """The credentials of this process, which counts as one start; None: not enrolled.

    Raises:
        InputError: the device's key is absent, damaged or readable by others.
        ProvisionError: the enrolment is damaged, or is not for this key, or its time is over.
    """
    enrolment = load_enrolment(folder)
    if enrolment is None:
        return None
    key, grant = check_enrolment(folder, enrolment)
    if grant.until - time.time() < AHEAD_S:
        _log.warning(
            "this device's grant in federation %s ends at %s; %s",
            enrolment.federation,
            clock_text(grant.until),
            REMEDY,
        )
    notes = _Notes(enrolment, folder / enrolment.files)
    return DeviceCredentials(
        federation=enrolment.federation,
        device_id=enrolment.device_id,
        key=key,
        grant=enrolment.grant,
        federation_key=bytes.fromhex(notes.memory.federation_key),
        start=notes.memory.start,
        announced=notes.memory.announced,
        note=notes.note,
        refused=notes.refused,
        overtake=notes.overtake,
    )


def check_enrolment(folder: Path, enrolment: Enrolment) -> tuple[Ed25519PrivateKey, DeviceGrant]:
    """The device's key and its grant, if that is for it and holds.

    Raises:
        InputError, ProvisionError: as ``open_credentials``.
    """
    key = keys.load_signing_key(folder / enrolment.files / _KEY)
    signer = bytes.fromhex(enrolment.federation_key)
    try:
        grant = read_statement(
            enrolment.grant, DeviceGrant, [signer], federation=enrolment.federation
        )
    except RefusedError as error:
        raise ProvisionError(f"{folder}: {error}; {REMEDY}") from error
    if (grant.device_id, grant.key) != (enrolment.device_id, public_bytes(key).hex()):
        raise ProvisionError(f"{folder}: the grant is for another key than {_KEY}; {REMEDY}")
    return key, grant


def _to_path(kind: type, value: object) -> Path:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"expected a path, got {value!r}")


def _write(path: Path, value: msgspec.Struct) -> None:
    write_whole(path, _encode(value))


def _encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value))


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProvisionError(f"{path}: {error}; enrol the device anew") from error
