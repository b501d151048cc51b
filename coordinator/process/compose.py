"""The one place where the parts of a coordinator are made; nothing happens here."""

from __future__ import annotations

import time
from collections.abc import Callable

from protofleet.coordinator import events
from protofleet.coordinator.acceptance import Acceptance
from protofleet.coordinator.announcer import Announcer
from protofleet.coordinator.devices.attendance import Attendance
from protofleet.coordinator.devices.receipts import Receipts
from protofleet.coordinator.devices.registry import Registry
from protofleet.coordinator.devices.reported_usage import ReportedUsage
from protofleet.coordinator.devices.roll_call import RollCall
from protofleet.coordinator.devices.troubles import DeviceTroubles
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.membership.members import Members, Revocations
from protofleet.coordinator.parts import Devices, Run
from protofleet.coordinator.process.expiry import Expiry
from protofleet.coordinator.process.lease import Lease
from protofleet.coordinator.process.operation import Operation
from protofleet.coordinator.reporter import Reporter
from protofleet.coordinator.results import Results
from protofleet.coordinator.rollout import Rollouts
from protofleet.coordinator.rounds import Rounds
from protofleet.coordinator.service import Parts
from protofleet.federation.server import Server
from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint


def device_registry(server: Server) -> Registry:
    """The registry of a coordinator whose members are devices."""
    plan = server.plan
    return Registry(
        bundle=plan.bundle.digest,
        layout_hash=plan.bundle.manifest.layout_hash,
        strategy=plan.strategy.description.name,
        silent_after_s=plan.config.liveness.silent_after_s,
        num_classes=plan.model.num_classes if server.expected.class_counts else None,
    )


def compose(  # noqa: PLR0913 - what a process has opened, each named at the call
    server: Server,
    ledger: Ledger,
    endpoint: CoordinatorEndpoint,
    *,
    results: Results,
    sink: events.Sink,
    members: Members | None = None,
    expiry: Expiry | None = None,
    lease: Lease | None = None,
    make_registry: Callable[[Server], Registry] = device_registry,
    make_rounds: Callable[..., Rounds] = Rounds,
) -> Parts:
    """The parts of a service.

    Args:
        server: the server's half of the rounds.
        ledger: of the run folder.
        endpoint: not yet started.
        results: what is written when the run pauses, stops or ends.
        sink: told what happens.
        members: of a federation with keys.
        expiry: of a federation with keys.
        lease: without which another coordinator may serve the same federation.
        make_registry: makes the registry of its members.
        make_rounds: makes the rounds; takes what ``Rounds`` takes.
    """
    plan, usage = server.plan, ReportedUsage(ledger)
    limit = plan.config.limits.connections_per_s
    run = Run(
        ledger=ledger,
        endpoint=endpoint,
        sink=sink,
        reporter=Reporter(plan.config.round.deadline_s, sink),
        operation=Operation(ledger.control, sink),
        lease=lease,
    )
    devices = Devices(
        registry=make_registry(server),
        usage=usage,
        roll_call=RollCall(usage.known, time.monotonic(), limit),
        receipts=Receipts(ledger),
        troubles=DeviceTroubles(ledger.devices, ledger.device_troubles(), sink),
    )
    rollouts = Rollouts(run, devices.registry, plan)
    announcer = Announcer(run, devices, rollouts)
    acceptance = Acceptance(run, rollouts, devices.troubles)
    rounds = make_rounds(server, run, devices, announcer=announcer, acceptance=acceptance)
    return Parts(
        run=run,
        devices=devices,
        rounds=rounds,
        attendance=Attendance(rounds, run, devices),
        acceptance=acceptance,
        announcer=announcer,
        rollouts=rollouts,
        results=results,
        revocations=None if members is None else Revocations(members),
        expiry=expiry,
    )
