"""The device stores in this user's data: where a new one goes, which there are, the only one."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from protofleet.bundle.bundle import stored_name
from protofleet.durable import sync_folder
from protofleet.edge.credentials import FOLDER as ENROLMENT
from protofleet.edge.owner.policy import POLICY_FILE
from protofleet.edge.state.journal import bundle_path, read_journal
from protofleet.edge.state.store import lock_store
from protofleet.errors import InputError, ProtofleetError, RefusedError, UnavailableError

_KEPT = ("identity.json", "lock", ENROLMENT, POLICY_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSummary:
    """One device's store.

    Attributes:
        path: its folder.
        device_id: whose it is.
        federation: what it belongs to; empty before the first start.
        bundle: name of the bundle of the model in use; its digest where the store keeps no copy.
        round_id: the last round that counted; 0: none.
        head: whether it has a head trained alone.
        size_bytes: of all its files.
        problem: why it cannot be read; empty if it can.
    """

    path: Path
    device_id: str
    federation: str = ""
    bundle: str = ""
    round_id: int = 0
    head: bool = False
    size_bytes: int = 0
    problem: str = ""


def stores_folder() -> Path:
    """Where stores lie unless a device is told otherwise."""
    return platformdirs.user_data_path("protofleet") / "devices"


def default_store(federation: str, device_id: str | None) -> Path:
    """The store of a device that was given none."""
    name = federation if device_id is None else f"{federation}.{device_id}"
    return stores_folder() / name


def list_stores(folder: Path | None = None) -> list[StoreSummary]:
    """The stores in a folder, by path; None: in this user's data."""
    root = stores_folder() if folder is None else folder
    return [summarise(path.parent) for path in sorted(root.glob("*/identity.json"))]


def only_store() -> Path:
    """The one store in this user's data.

    Raises:
        InputError: there is none, or there are several.
    """
    found = list_stores()
    # One whose federation has never answered, such as that of a misspelt name, holds nothing yet.
    found = [one for one in found if one.federation or one.head or one.problem] or found
    if len(found) == 1:
        return found[0].path
    if not found:
        raise InputError(
            f"device store: none in '{stores_folder()}'; give --store, or join a federation first"
        )
    listed = "; ".join(
        f"--store {one.path} (federation '{one.federation}', device '{one.device_id}', round "
        f"{one.round_id})"
        for one in found
    )
    raise InputError(f"device store: there are {len(found)}, choose one: {listed}")


def store_option(path: Path) -> str:
    """What a command that reads a store needs to find this one: ``''`` if it does by itself."""
    try:
        found = only_store().resolve() == path.resolve()
    except InputError:
        found = False
    return "" if found else f"--store {shlex.quote(str(path))}"


def summarise(path: Path) -> StoreSummary:
    """What a store holds, read beside a device that may be using it.

    Raises:
        InputError: there is no store.
    """
    identity = path / "identity.json"
    if not identity.exists():
        raise InputError(f"device store '{path}': nothing there; see: protofleet device stores")
    size = sum(_size(file) for file in path.rglob("*"))
    try:
        device_id = str(json.loads(identity.read_bytes())["device_id"])
        journal = read_journal(path)
    except (ProtofleetError, ValueError, KeyError, TypeError, RecursionError) as error:
        return StoreSummary(path=path, device_id="", size_bytes=size, problem=str(error))
    personal = journal.in_use
    binding = personal.binding if personal else journal.binding
    bundle = binding or (journal.head and journal.head.binding)
    return StoreSummary(
        path=path,
        device_id=device_id,
        federation=binding.federation if binding else "",
        bundle=_bundle_name(path, bundle.bundle) if bundle else "",
        round_id=journal.last_counted,
        head=journal.head is not None,
        size_bytes=size,
    )


def reset_store(folder: Path, *, with_identity: bool = False) -> None:
    """Forget everything in a store but its device id and enrolment, even if the store is damaged.

    A process killed meanwhile leaves the store as it was, or without its journal: as a new one.

    Args:
        folder: the store's.
        with_identity: remove the folder as a whole.

    Raises:
        UnavailableError: a process uses the store, or the disk fails.
    """
    try:
        with lock_store(folder):
            (folder / "journal.json").unlink(missing_ok=True)
            sync_folder(folder)
            if with_identity:
                shutil.rmtree(folder)
                return
            for path in folder.iterdir():
                if path.name not in _KEPT:
                    _remove(path)
    except OSError as error:
        raise UnavailableError(f"device store '{folder}': {error}") from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _size(path: Path) -> int:
    """Of a file that its owner may remove at any time."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _bundle_name(folder: Path, digest: str) -> str:
    copy = bundle_path(folder, digest)
    try:
        return stored_name(copy) if copy.exists() else digest[:16]
    except (RefusedError, OSError):
        return digest[:16]
