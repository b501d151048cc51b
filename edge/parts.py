"""What the parts of a device's agent share; ``compose`` makes it, and them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protofleet.edge.checks import AnnouncedRun
from protofleet.edge.device_info import DeviceInfo
from protofleet.edge.learning.training import Learner
from protofleet.edge.learning.training_thread import TrainingThread
from protofleet.edge.notices import HeldNotice, Report, StopFlag
from protofleet.edge.owner.participation import Participation
from protofleet.edge.presence import PresencePublisher
from protofleet.edge.refusals import Refusals
from protofleet.edge.resting import Rest
from protofleet.edge.state.store import Store
from protofleet.edge.storage import StorageWait
from protofleet.edge.waiting import WaitingLog
from protofleet.wire.device_endpoint import DeviceEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """A device that takes part.

    Attributes:
        endpoint: the wire's device end, not yet started.
        store: of the device.
        who: what it says about itself, and what may be sent.
        learner: trains, scores and measures.
        training: the learner's thread.
        run: what the coordinator has announced; builds strategies.
        participation: whether the owner's conditions are met.
        presence: tells that the device is there, and what it does.
        held: tells what holds it.
        refusals: notes what was refused.
        storage: waits for a disk.
        waiting: tells what an idle device waits for.
        rest: ends the connection while the device is held.
        report: told what happens, in the agent's thread.
        warn: logs a format and its values; of a flood few.
        ending: whether the device is to leave, and to keep what it has.
    """

    endpoint: DeviceEndpoint
    store: Store
    who: DeviceInfo
    learner: Learner
    training: TrainingThread
    run: AnnouncedRun
    participation: Participation
    presence: PresencePublisher
    held: HeldNotice
    refusals: Refusals
    storage: StorageWait
    waiting: WaitingLog
    rest: Rest
    report: Report
    warn: Callable[..., Any]
    stop_flag: StopFlag
