"""The tiny plan, and a coordinator's processes on an endpoint in memory."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest
from fake_endpoint import Arrival, Clock, FakeCoordinatorEndpoint, ScriptEndError
from packed import pack_update
from tiny_plan import tiny

from protofleet.coordinator import rounds, service
from protofleet.coordinator.calibrating import known_rate
from protofleet.coordinator.devices import attendance
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.reading import RunAbout
from protofleet.coordinator.process.compose import compose
from protofleet.coordinator.results import Results
from protofleet.coordinator.service import Service
from protofleet.federation.plan import make_plan
from protofleet.federation.records import Costs
from protofleet.federation.server import Server
from protofleet.federation.settings import CohortSettings, StrategySettings
from protofleet.strategies.types import Update
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Heartbeat, Presence
from protofleet.wire.transfers.transfer import Rejected, describe

__all__ = ["tiny"]


class Federation:
    """A run folder, the devices of a script, and the coordinator's processes one after another.

    Attributes:
        endpoint: of the latest process.
        events: what all of them have reported.
        state, server_state, references: what the ledger held when the latest one ended.
    """

    def __init__(self, plan, folder, clock):
        self.plan, self.folder, self.clock = plan, folder, clock
        self.server = Server.of(plan)
        self.events, self.finished = [], None

    def with_config(self, config):
        """The federation file is another one from now on."""
        self.plan = replace(self.plan, config=config)
        self.server = Server.of(self.plan)

    def leaves_the_rate_open(self):
        """``optimiser.lr`` is "auto" from now on."""
        auto = StrategySettings(settings={"optimiser": {"kind": "sgd", "lr": "auto"}})
        self.plan = make_plan(msgspec.structs.replace(self.plan.config, strategy=auto))
        self.server = Server.of(self.plan)

    @staticmethod
    def calibrated(plan, lr):
        return Server.of(plan.calibrated(lr))

    def play(self, *steps):
        """A process of the coordinator, killed when the script is through."""
        flat = [one for step in steps for one in (step if isinstance(step, list) else [step])]
        self.endpoint = FakeCoordinatorEndpoint(self.folder / "partial", self.clock, flat)
        plan, run_dir = self.plan, self.plan.config.run_dir
        with Ledger(run_dir, plan.identity) as ledger:
            about = RunAbout(
                strategy="fedavg",
                seed=0,
                task="classification",
                outputs=plan.bundle.manifest.classes,
            )
            ledger.run.note_about(about)
            results = Results(ledger, about)
            rate = known_rate(plan, ledger)
            parts = compose(
                self.server if rate is None else self.calibrated(plan, rate),
                ledger,
                self.endpoint,
                results=results,
                sink=self.events.append,
                make_rounds=partial(rounds.Rounds, calibrated=self.calibrated),
            )
            service = Service(parts)
            with contextlib.suppress(ScriptEndError):
                self.finished = service.run()
                assert not self.endpoint.steps
            self.state, self.server_state = ledger.state(), ledger.server_state()
            self.references = ledger.devices.references()
            self.usage = {name: (last, usage) for name, last, usage in ledger.usage.latest()}
        return self.endpoint

    def online(self, device_id, **changes):
        presence = Presence(
            device_id=device_id,
            boot_id="1",
            status="online",
            bundle=self.plan.bundle.digest,
            layout_hash=self.plan.bundle.manifest.layout_hash,
            num_examples=ord(device_id[0]),
        )
        return PeerMessage(device_id, msgspec.structs.replace(presence, **changes))

    def gone(self, device_id, status="offline"):
        return self.online(device_id, status=status)

    def beat(self, device_id, round_id=1, bytes_up=0, **changes):
        heartbeat = Heartbeat(
            device_id=device_id,
            boot_id="1",
            round_id=round_id,
            phase="idle",
            bytes_up=bytes_up,
            bytes_down=0,
            peak_rss_bytes=0,
        )
        return PeerMessage(device_id, msgspec.structs.replace(heartbeat, **changes))

    def update(self, device_id, round_id=1):
        """What a device makes of a round: always the same."""
        rng = np.random.default_rng([round_id, ord(device_id)])
        tensors = {
            name: rng.normal(size=form.shape).astype(form.dtype)
            for name, form in self.server.expected.uplink.required.items()
        }
        return Update(
            client_id=device_id, round_id=round_id, num_examples=ord(device_id), tensors=tensors
        )

    def offered(self, update, round_id=None, kind="update"):
        """An update's blob and its offer; ``round_id``: what the offer says instead."""
        blob = pack_update(update, Costs())
        named = update.round_id if round_id is None else round_id
        offer = describe(blob, kind=kind, device_id=update.client_id, round_id=named)
        return blob, offer

    def delivers(self, device_id, round_id=1, update=None):
        """The steps by which a device's update comes."""
        blob, offer = self.offered(update or self.update(device_id, round_id))
        return [PeerMessage(device_id, offer), Arrival(device_id, offer, blob)]

    def refuses(self, device_id, rule):
        """A device refuses the payload that it was offered last."""

        def step():
            offer = [sent.offer for sent in self.endpoint.sent if sent.device_id == device_id][-1]
            return Rejected(device_id, offer, rule, "as the test wants it")

        return step

    def after(self, seconds, event=None):
        """An event that comes when so much time has gone by."""

        def step():
            self.clock.advance(seconds)
            return event

        return step

    def invited(self):
        return [(sent.device_id, sent.task.round_id) for sent in self.endpoint.sent]

    def answers(self):
        return [receipt.rule or receipt.status for receipt in self.endpoint.receipts]

    def told(self, kind, *fields):
        found = [event for event in self.events if isinstance(event, kind)]
        return [tuple(getattr(event, field) for field in fields) for event in found]


@pytest.fixture
def clock(monkeypatch):
    stopped = Clock()
    for module in (attendance, rounds, service):
        monkeypatch.setattr(module, "time", stopped)
    return stopped


@pytest.fixture
def open_federation(tiny, tmp_path, clock):
    """A federation of the tiny bundle; ``minimum`` devices open a round."""

    def new(*, minimum=2, name="run", **changes):
        changes = {"cohort": CohortSettings(minimum=minimum), "rounds": 1, **changes}
        config = msgspec.structs.replace(tiny.plan.config, run_dir=tmp_path / name, **changes)
        return Federation(replace(tiny.plan, config=config), tmp_path / name, clock)

    return new
