"""What the parts of a coordinator share; ``process.compose`` makes it, and them."""

from __future__ import annotations

from dataclasses import dataclass

from protofleet.coordinator import events
from protofleet.coordinator.devices.receipts import Receipts
from protofleet.coordinator.devices.registry import Registry
from protofleet.coordinator.devices.reported_usage import ReportedUsage
from protofleet.coordinator.devices.roll_call import RollCall
from protofleet.coordinator.devices.troubles import DeviceTroubles
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.process.lease import Lease
from protofleet.coordinator.process.operation import Operation
from protofleet.coordinator.reporter import Reporter
from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a federation, by one process.

    Attributes:
        ledger: of the run folder.
        endpoint: to the devices.
        sink: told what happens.
        reporter: told so, where it may be too often.
        operation: what the operator wants.
        lease: without which another coordinator may serve the same federation.
    """

    ledger: Ledger
    endpoint: CoordinatorEndpoint
    sink: events.Sink
    reporter: Reporter
    operation: Operation
    lease: Lease | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What is known of a run's devices.

    Attributes:
        registry: who is there.
        usage: what they say that they have used.
        roll_call: that they answer.
        receipts: that they may not have heard.
        troubles: what is wrong on which.
    """

    registry: Registry
    usage: ReportedUsage
    roll_call: RollCall
    receipts: Receipts
    troubles: DeviceTroubles
