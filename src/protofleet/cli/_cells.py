"""A cell's enrolment with its root: ``coordinator run --cell`` in a federation with keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protofleet.coordinator.cells.root_link import RootAccess
    from protofleet.federation.settings import FederationConfig


def root_access(config: FederationConfig, cell: int | None) -> RootAccess | None:
    """The enrolment of a cell with its root, in a store of its own; None: without keys."""
    if cell is None or config.keys is None:
        return None
    from protofleet.coordinator.cells.root_link import RootAccess
    from protofleet.edge.credentials import FOLDER, load_enrolment, open_credentials
    from protofleet.errors import InputError
    from protofleet.federation.cells import cell_name, root_store
    from protofleet.printable import shell_word
    from protofleet.wire.trust.device_protection import DeviceProtection

    store = root_store(config, cell)
    enrolment, credentials = load_enrolment(store / FOLDER), open_credentials(store / FOLDER)
    if enrolment is None or credentials is None:
        raise InputError(
            f"cell {cell}: expected its enrolment with the root in '{store}', got none; at the "
            f"root: protofleet device invite {cell_name(cell)} --keys "
            f"{shell_word(str(config.keys))}, then here: "
            f"protofleet device enroll INVITATION --store {shell_word(store)}"
        )
    return RootAccess(
        broker=enrolment.access(store / FOLDER), protection=DeviceProtection(credentials)
    )
