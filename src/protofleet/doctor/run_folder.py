"""A coordinator's run folder, without its federation file."""

from __future__ import annotations

from collections.abc import Iterator

from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.control import is_served
from protofleet.coordinator.ledger.queries import check_readable, read_identity
from protofleet.coordinator.results import troubles_of
from protofleet.doctor.machine import behind
from protofleet.doctor.observations import Check, Observation, ok, warning
from protofleet.doctor.subjects import RunSubject
from protofleet.private_files import check_private_folder, refuse_links


def examine_ledger(subject: RunSubject) -> Iterator[Observation]:
    """Of a coordinator that may be running."""
    check_private_folder(subject.path, "run folder")
    refuse_links(subject.path, "run folder")
    check_readable(subject.path)
    identity = read_identity(subject.path)
    served = "a coordinator serves it" if is_served(subject.path) else "no coordinator serves it"
    yield ok(f"ledger of federation '{identity.get('federation', '?')}' is whole; {served}")
    written = (subject.path / LEDGER).stat().st_mtime
    yield from behind("the run's ledger was written", written)


def examine_results(subject: RunSubject) -> Iterator[Observation]:
    """Whether what comes out is what somebody wants."""
    found = troubles_of(subject.path)
    if found is not None and not found:
        yield ok("losses and owners' scores are as they should be so far")
    yield from (warning(one.what, one.remedy) for one in found or ())


CHECKS = (Check("run.ledger", examine_ledger, decisive=True), Check("run.results", examine_results))
