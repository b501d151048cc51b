"""A tiny bundle and its devices: processes, and agents on an endpoint in memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fake_endpoint import CONNECTED, UNTIL_WOKEN, Arrival, Clock, FakeDeviceEndpoint, ScriptEndError
from personal import opened_store
from scripted_coordinator import FEDERATION
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.bundle import Bundle
from protofleet.bundle.keys import save_public_key
from protofleet.datasets import DeviceData
from protofleet.edge import agent, current_round, resting
from protofleet.edge.compose import compose
from protofleet.edge.device_info import DeviceInfo
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.edge.state.journal import StoreBinding
from protofleet.edge.state.move import BundleMove
from protofleet.edge.state.store import Store
from protofleet.federation.records import Sends
from protofleet.runtime import open_programs
from protofleet.strategies import build
from protofleet.tensors import blobs
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Announcement, Presence, Task
from protofleet.wire.transfers.transfer import Delivered, Rejected, describe

CLASSES = ("class0", "class1", "class2")
_SETTINGS = {"epochs": 2, "batch_size": 16}
_NAME = "anna"


@dataclass(frozen=True)
class World:
    """Files that devices need."""

    root: Path
    bundle_path: Path
    bundle: Bundle
    trust: Path

    def data(self, seed: int, n: int = 40) -> Path:
        """A device's examples."""
        path = self.root / f"data-{seed}.npz"
        x_train, y_train = tiny_data(seed, n)
        x_test, y_test = tiny_data(seed + 1000, 20)
        own = DeviceData(
            x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=CLASSES
        )
        own.save(path)
        return path

    def arguments(self, url: str, name: str, seed: int = 1) -> list[str]:
        """Of ``protofleet device join`` for the device ``name``."""
        values = {
            "--broker": url,
            "--federation": FEDERATION,
            "--bundle": self.bundle_path,
            "--data": self.data(seed),
            "--store": self.root / name,
            "--id": name,
            "--trust": self.trust,
        }
        pairs = [str(part) for pair in values.items() for part in pair]
        return ["device", "join", *pairs, "--json"]

    def start(
        self, arguments: list[str], script: Path | None = None, **options
    ) -> subprocess.Popen[str]:
        """Start the command line, or ``script`` with the same arguments."""
        program = [str(script)] if script else ["-c", "from protofleet.cli import main; main()"]
        # NumPy kernels start at once; what they compute is tested where they live.
        environment = {
            **os.environ,
            "PROTOFLEET_CONFIG": str(self.root / "config"),
            "PROTOFLEET_NUMBA": "0",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])])
            ),
        }
        return subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            **options,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A signed tiny bundle and the signer's public key."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    bundle_path = tiny_bundle(tmp_path / "bundle", key)
    save_public_key(public, tmp_path / "signer.pem")
    return World(
        root=tmp_path,
        bundle_path=bundle_path,
        bundle=Bundle.open(bundle_path, trusted={public}),
        trust=tmp_path / "signer.pem",
    )


class Device:
    """A device's store, its processes one after another, and what the coordinator sends it.

    Attributes:
        endpoint, journal, memory, left: of the latest process and as it left the store; ``left``
            is what ``run`` returned, None if it was killed.
        data: 40 examples, from round 5 on others, 25.
        reports: of all processes.
    """

    def __init__(self, world, clock):
        self.world, self.clock = world, clock
        self.bundle = world.bundle
        self.model = self.bundle.model()
        self.strategy = build("fedavg", _SETTINGS, self.model)
        self.programs = open_programs(self.bundle)
        self.data = LocalData(own=_own(1), later=((5, _own(3, 25)),))
        self.reports = []
        self.participation = self.tail = None
        self.rests = True
        self.sends = Sends()

    def play(self, *steps, kind=Learner, told=True, stays=False):
        """A process of the device, killed when the script is through.

        ``told``: with each connection it hears that its federation is in round 4 of 9.
        """
        folder = self.world.root / _NAME
        flat = [one for step in steps for one in (step if isinstance(step, list) else [step])]
        if told:
            hears = [CONNECTED, self.announced(round_id=4, rounds=9, retained=True)]
            flat = [one for step in flat for one in (hears if step is CONNECTED else [step])]
        self._stays = stays
        self.endpoint = FakeDeviceEndpoint(folder / "incoming", self.clock, flat, _NAME)
        self.left = None
        with Store.open(folder, device_id=_NAME) as store, contextlib.suppress(ScriptEndError):
            try:
                self.left = self._agent(store, kind).run()
                # A thread may have been done before its end was waited for.
                assert all(step is UNTIL_WOKEN for step in self.endpoint.steps)
            finally:
                self.journal, self.memory = store.journal, store.load_memory()
        return self.endpoint

    def _agent(self, store, kind):
        binding = StoreBinding(
            federation=FEDERATION,
            bundle=self.bundle.digest,
            layout_hash=self.bundle.manifest.layout_hash,
        )
        move = BundleMove(store, binding, self.bundle)
        who = DeviceInfo(
            device_id=_NAME, boot_id="1", binding=binding, num_examples=40, sends=self.sends
        )
        self.agent = compose(
            self.endpoint,
            move,
            self.learner(kind),
            who,
            lambda *report: self.reports.append(report),
            stays=self._stays,
            rests=self.rests,
            participation=self.participation,
            tail=self.tail,
        )
        return self.agent

    def other_bundle(self):
        """From now on the device is started with another bundle of the same model."""
        self.bundle = Bundle.open(
            tiny_bundle(
                self.world.root / "other", Ed25519PrivateKey.generate(), settings={"epochs": 7}
            ),
            any_signer=True,
        )
        self.programs = open_programs(self.bundle)

    def learner(self, kind=Learner):
        return kind(self.bundle, self.programs, self.data, Meter(), _NAME)

    def payload(self, shift=0.0):
        """What the server sends: the bundle's parameters, a little moved."""
        start = self.strategy.server_init(self.model, np.random.default_rng(0))
        sent = self.strategy.downlink(start, _NAME).tensors
        return {name: value + np.float32(shift) for name, value in sent.items()}

    def round(self, round_id=1, *, blob=None, coding=None, **changes):
        """The steps up to a trained round: the task and its payload."""
        blob = blobs.encode(self.payload(round_id / 10)) if blob is None else blob
        offer = describe(blob, kind="payload", device_id=_NAME, round_id=round_id, coding=coding)
        task = Task(
            task="train",
            round_id=round_id,
            federation=FEDERATION,
            strategy="fedavg",
            settings=_SETTINGS,
            seed=7,
            deadline_s=60.0,
            payload=offer,
        )
        task = msgspec.structs.replace(task, **changes)
        return [PeerMessage(_NAME, task), Arrival(_NAME, offer, blob), UNTIL_WOKEN]

    def delivered(self):
        return Delivered(_NAME, self.endpoint.sent[-1].offer)

    def rejected(self):
        return Rejected(_NAME, self.endpoint.sent[-1].offer, "cohort", "too late")

    def announced(self, *, retained=False, **changes):
        announcement = Announcement(
            federation=FEDERATION,
            boot_id="1",
            phase="training",
            round_id=1,
            rounds=2,
            strategy="fedavg",
            bundle=self.bundle.digest,
            layout_hash=self.bundle.manifest.layout_hash,
        )
        return PeerMessage("", msgspec.structs.replace(announcement, **changes), retained)

    def online(self):
        """Numbers of examples that the device has registered, one after another."""
        found = [one for one in self.endpoint.published if isinstance(one, Presence)]
        return [one.num_examples for one in found if one.status == "online"]

    def names(self):
        """Of all reports but which model is in use, which ``test_personal`` looks at."""
        return [name for name, _ in self.reports if name != "in_use"]

    def dropped(self):
        """Round and reason of each round that did not count; they name the transfer, too."""
        assert all(one["transfer_id"] for one in self.said("dropped"))
        return [(one["round_id"], one["reason"]) for one in self.said("dropped")]

    def said(self, name):
        return [figures for found, figures in self.reports if found == name]

    def answers(self):
        return [receipt.rule or receipt.status for receipt in self.endpoint.receipts]

    def fetched(self):
        return [offer.round_id for offer in self.endpoint.expected]

    def sent(self):
        return [sent.offer.round_id for sent in self.endpoint.sent]


def _own(seed, n=40):
    (x_train, y_train), (x_test, y_test) = tiny_data(seed, n), tiny_data(seed + 1, 20)
    return DeviceData(
        x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=CLASSES
    )


@pytest.fixture
def device(world, monkeypatch):
    clock = Clock()
    for module in (agent, current_round, resting):
        monkeypatch.setattr(module, "time", clock)
    return Device(world, clock)


@pytest.fixture
def personal_store(world) -> Path:
    """The store of a device, anna, whose round 2 of FedAvg has counted."""
    with opened_store(world.root / _NAME, world.bundle) as store:
        return store.folder
