"""A federation's folder beside a running broker: invites devices, and answers them or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from threaded import Thread

from protofleet.coordinator.membership.enrolment import EnrolmentService
from protofleet.coordinator.membership.invitations import JoinAddress, find_meeting, invite
from protofleet.coordinator.membership.members import Members
from protofleet.edge.credentials import FOLDER, load_enrolment, open_credentials
from protofleet.edge.enrolment import Enrolled, EnrolOptions, enrol
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.trust.enrolment import Invitation


@dataclass
class Inviting:
    """The operator's side.

    Attributes:
        folder: of the federation ``home``; ``broker`` inside it is its own broker's, if there.
        access: to another broker than its own.
        told: what the operator was told.
        heard: what the devices' users were told.
    """

    folder: Path
    access: BrokerAccess | None = None
    told: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    def members(self) -> Members:
        return Members.create(self.folder, "home")

    def meeting(self) -> JoinAddress:
        with self.members() as members:
            return find_meeting(members, self.access)

    def invite(self, device_id: str, valid_s: int = 3600) -> Invitation:
        with self.members() as members:
            return invite(members, self.meeting(), device_id, valid_s, self.told.append)

    @contextmanager
    def answering(self, service: type[EnrolmentService] = EnrolmentService) -> Iterator[None]:
        """Within the block devices are answered; what the service died of is raised behind it."""
        stopped: list[bool] = []

        def work() -> None:
            with self.members() as members:
                access = self.meeting().access
                service(members, access, self.told.append).run(lambda: bool(stopped))

        thread = Thread("answering", work)
        try:
            yield
        finally:
            stopped.append(True)
            thread.finish(20)

    def enrol(self, invitation: Invitation, store: Path, wait_s: float = 20.0) -> Enrolled:
        options = EnrolOptions(invitation=invitation, store=store, answer_s=wait_s)
        return enrol(options, self.heard.append)

    def check(self, store: Path) -> int:
        """The serial of a store's grant, which is in force, for the key beside it."""
        credentials = open_credentials(store / FOLDER)
        with self.members() as members:
            return members.check(credentials.grant).serial


def password_of(store: Path) -> str:
    enrolment = load_enrolment(store / FOLDER)
    return enrolment.access(store / FOLDER).address().password


def identity_of(store: Path) -> str:
    return json.loads((store / "identity.json").read_bytes())["device_id"]
