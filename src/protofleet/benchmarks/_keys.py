"""A federation with keys whose devices are enrolled on this machine, without invitations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from protofleet.coordinator.membership.members import Members
from protofleet.edge.credentials import FOLDER, Enrolment, device_key, save_enrolment
from protofleet.edge.state.store import Store
from protofleet.errors import InputError
from protofleet.wire.trust.identity import public_bytes


def enrol_here(folder: Path, federation: str, stores: Mapping[str, Path], url: str) -> None:
    """Make the federation's folder, and an enrolment in the store of each device.

    Args:
        folder: of the federation; made if absent.
        federation: its name.
        stores: by device id; made if absent.
        url: the broker's.

    Raises:
        InputError: the federation key is elsewhere.
    """
    with Members.create(folder, federation) as members:
        key = members.private_key()
        if key is None:
            raise InputError(f"keys '{folder}': the federation key is elsewhere")
        for device_id, store in stores.items():
            Store.open(store, device_id=device_id).close()
            place = store / FOLDER
            device = device_key(place)
            enrolment = Enrolment(
                federation=federation,
                device_id=device_id,
                grant=members.grant(key, device_id, public_bytes(device)),
                federation_key=members.federation_key.hex(),
                broker={"url": url},
            )
            save_enrolment(place, enrolment)
