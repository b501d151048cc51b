"""A device's store: what is in it, whether it can be read, and whether its enrolment holds."""

from __future__ import annotations

import time
from collections.abc import Iterator

from protofleet.bundle import Bundle
from protofleet.doctor.machine import behind
from protofleet.doctor.observations import Check, Observation, ok, problem, warning
from protofleet.doctor.subjects import StoreSubject
from protofleet.edge.credentials import AHEAD_S, FOLDER, REMEDY, check_enrolment, load_enrolment
from protofleet.edge.state.journal import Journal, bundle_path, read_blob, read_journal
from protofleet.edge.state.store import lock_store
from protofleet.edge.state.stores import summarise
from protofleet.errors import ProvisionError, RefusedError, UnavailableError
from protofleet.printable import shell_word
from protofleet.private_files import check_private_folder, refuse_links
from protofleet.units import clock_text


def _journal(subject: StoreSubject) -> Iterator[Observation]:
    found = summarise(subject.path)
    if found.problem:
        yield problem(found.problem, _reset(subject))
        return
    of = f"of federation '{found.federation}', " if found.federation else "of no federation yet, "
    yield ok(f"device '{found.device_id}' {of}round {found.round_id}")
    newest = max(path.stat().st_mtime for path in (subject.path, subject.path / "identity.json"))
    yield from behind("this store was written", newest)


def _contents(subject: StoreSubject) -> Iterator[Observation]:
    """Every content that the journal names, against the hash in its name."""
    journal = read_journal(subject.path)
    found = [*_blobs(subject, journal), *_bundles(subject, journal)]
    if found and read_journal(subject.path) != journal:
        found = []  # its device has committed meanwhile, and removed what it needs no more
    count = len(set(journal.files))
    text = f"{count} tensor files and {len(journal.bundles)} bundles are what was written"
    yield from found or [ok(text)]


def _blobs(subject: StoreSubject, journal: Journal) -> Iterator[Observation]:
    for file in dict.fromkeys(journal.files):
        try:
            read_blob(subject.path, file)
        except ProvisionError as error:
            yield problem(str(error), _reset(subject))


def _bundles(subject: StoreSubject, journal: Journal) -> Iterator[Observation]:
    for digest in dict.fromkeys(journal.bundles):
        path = bundle_path(subject.path, digest)
        if not path.exists():
            text = f"keeps no copy of bundle {digest[:16]}"
            yield warning(text, "start the device with --bundle once")
            continue
        try:
            Bundle.open(path, any_signer=True)  # what a store keeps was trusted when it joined
        except RefusedError as error:
            yield problem(str(error), f"remove '{path}', and start the device with --bundle once")


def _folder(subject: StoreSubject) -> Iterator[Observation]:
    check_private_folder(subject.path, "device store")
    refuse_links(subject.path, "device store")
    try:
        lock_store(subject.path).close()
        yield ok("its user's alone; no device uses it now")
    except UnavailableError:
        yield ok("its user's alone; a device uses it now")


def _enrolment(subject: StoreSubject) -> Iterator[Observation]:
    folder = subject.path / FOLDER
    enrolment = load_enrolment(folder)
    if enrolment is None:
        yield ok("none: this device talks without keys of its own")
        return
    _, grant = check_enrolment(folder, enrolment)
    if grant.until - time.time() < AHEAD_S:
        yield warning(f"its grant ends at {clock_text(grant.until)}", REMEDY)
    yield ok(f"as '{enrolment.device_id}' of federation '{enrolment.federation}'")


def _reset(subject: StoreSubject) -> str:
    return (
        f"restore the folder from a backup, or: protofleet device reset --store "
        f"{shell_word(subject.path)} (the device id stays, the personal model goes)"
    )


CHECKS = (
    Check("store.folder", _folder),
    Check("store.enrolment", _enrolment),
    Check("store.journal", _journal, decisive=True),
    Check("store.contents", _contents),
)
