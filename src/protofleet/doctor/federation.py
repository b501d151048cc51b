"""A federation file against what it names: bundle, keys, run folder."""

from __future__ import annotations

import time
from collections.abc import Iterator

from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.queries import read_identity
from protofleet.coordinator.membership.members import Members
from protofleet.coordinator.process.expiry import expirations
from protofleet.coordinator.publish import plan_in_place
from protofleet.doctor.observations import Check, Observation, ok, problem, warning
from protofleet.doctor.run_folder import examine_ledger, examine_results
from protofleet.doctor.subjects import FederationSubject, RunSubject
from protofleet.federation.plan import Plan
from protofleet.federation.server import Server
from protofleet.federation.settings import load_config
from protofleet.private_files import check_private_folder


def _file(subject: FederationSubject) -> Iterator[Observation]:
    config = load_config(subject.path)
    yield ok(f"federation '{config.federation}', {config.rounds} rounds, broker {config.broker}")


def _bundle(subject: FederationSubject) -> Iterator[Observation]:
    """All that a coordinator makes of the file before its first round."""
    plan = _plan(subject)
    Server.of(plan)
    yield ok(
        f"'{plan.bundle.manifest.name}' has what strategy '{plan.strategy.description.name}' and "
        "these settings need"
    )


def _plan(subject: FederationSubject) -> Plan:
    return plan_in_place(load_config(subject.path))


def _keys(subject: FederationSubject) -> Iterator[Observation]:
    config = load_config(subject.path)
    if config.keys is None:
        local = config.broker.address().is_loopback
        said = "none: whoever can publish on the broker speaks as any device"
        remedy = 'keys = "FOLDER", and protofleet device invite'
        yield ok(f"{said}; here that is this machine alone") if local else warning(said, remedy)
        return
    check_private_folder(config.keys, "keys")
    with Members(config.keys, config.federation) as members:
        has_key = members.private_key() is not None
        count = len(members.members())
    now_s = time.time()
    for one in expirations(config, now_s):
        level = problem if one.until_s <= now_s else warning
        yield level(one.text(now_s), one.remedy)
    where = "here" if has_key else "kept elsewhere, as it may be"
    yield ok(f"{count} members in '{config.keys}'; the federation key is {where}")


def _run(subject: FederationSubject) -> Iterator[Observation]:
    folder = load_config(subject.path).run_dir
    if not (folder / LEDGER).is_file():
        yield ok(f"'{folder}': no run was started there yet")
        return
    yield from examine_ledger(RunSubject(folder))
    yield from examine_results(RunSubject(folder))
    stored = read_identity(folder)
    for name, value in _plan(subject).identity.items():
        if stored.get(name) != value:
            yield problem(
                f"'{folder}' holds a run with {name} {stored.get(name)}, the file says {value}",
                "another run_dir, or the former value",
            )


CHECKS = (
    Check("federation.file", _file, decisive=True),
    Check("federation.bundle", _bundle),
    Check("federation.keys", _keys),
    Check("federation.run", _run),
)
