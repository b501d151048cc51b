"""The one place where the parts of a device's agent are made; nothing happens here."""

from __future__ import annotations

import logging

from protofleet.edge.agent import Agent
from protofleet.edge.checks import AnnouncedRun
from protofleet.edge.device_info import DeviceInfo
from protofleet.edge.learning.training import Learner
from protofleet.edge.learning.training_thread import TrainingThread
from protofleet.edge.log_tail import LogTail
from protofleet.edge.log_throttle import WarningThrottle
from protofleet.edge.notices import HeldNotice, Report, StopFlag
from protofleet.edge.owner.participation import Participation
from protofleet.edge.parts import DeviceParts
from protofleet.edge.presence import PresencePublisher, Registration
from protofleet.edge.refusals import Refusals
from protofleet.edge.resting import Rest
from protofleet.edge.state.move import BundleMove
from protofleet.edge.state.store import Store
from protofleet.edge.storage import StorageWait
from protofleet.edge.upgrade import Upgrades
from protofleet.edge.waiting import WaitingLog
from protofleet.printable import shell_word
from protofleet.wire.device_endpoint import DeviceEndpoint

_log = logging.getLogger(Agent.__module__)


def compose(  # noqa: PLR0913 - what a process has opened, each named at the call
    endpoint: DeviceEndpoint,
    move: BundleMove,
    learner: Learner,
    who: DeviceInfo,
    report: Report,
    *,
    stays: bool = False,
    rests: bool = True,
    participation: Participation | None = None,
    upgrades: Upgrades | None = None,
    tail: LogTail | None = None,
) -> Agent:
    """The agent of a device in a federation.

    Args:
        endpoint: the wire's device end, not yet started.
        move: of the store in the federation; committed when that is known to run the bundle.
        learner: trains, scores and measures.
        who: what the device says about itself; the link's will says the same.
        report: told what happens, in the agent's thread.
        stays: whether the device waits for another run when the federation has finished.
        rests: whether the connection ends while the owner's conditions hold the device.
        participation: whether the owner's conditions are met; None: there are none.
        upgrades: other bundles over the wire; None: it takes none.
        tail: of the log, which goes to the coordinator when a round fails; None: it stays here.
    """
    store, stop_flag, warn = move.store, StopFlag(), WarningThrottle(_log).warning
    owner = participation or Participation()
    presence = PresencePublisher(endpoint, who, Registration(learner, who.sends), tail)
    held = HeldNotice(owner, presence, report)
    device = DeviceParts(
        endpoint=endpoint,
        store=store,
        who=who,
        learner=learner,
        training=TrainingThread(learner, endpoint.wake),
        run=AnnouncedRun(who, store, learner),
        participation=owner,
        presence=presence,
        held=held,
        refusals=Refusals(warn),
        storage=StorageWait(store, owner, held, stop_flag),
        waiting=WaitingLog(who.binding.federation, endpoint, _how_to_enrol(store)),
        rest=Rest(endpoint, owner, allowed=rests),
        report=report,
        warn=warn,
        stop_flag=stop_flag,
    )
    if upgrades is None:
        upgrades = Upgrades(endpoint, store, learner.manifest, present=who.binding.bundle)
    return Agent(device, move, upgrades, stays=stays)


def _how_to_enrol(store: Store) -> str:
    return (
        f"have it invited as '{store.device_id}', stop it, and enrol it: "
        f"protofleet device enroll INVITATION --store {shell_word(store.folder)}"
    )
