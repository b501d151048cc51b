"""What a buffered run must have come to: its devices trained anew, in the order of its ledger."""

from __future__ import annotations

import hashlib
from pathlib import Path

from protofleet.chaos.evidence import Evidence, Place
from protofleet.chaos.models import DEVICES
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.experiments._worker import (
    ClientTrainer,
    StoredClient,
    WorkerSpec,
    WorkerTask,
)
from protofleet.experiments.prepare import ClientFiles
from protofleet.federation.client import RoundConfig
from protofleet.federation.coding import CodedPayload
from protofleet.federation.plan import make_plan
from protofleet.federation.replay import replay
from protofleet.federation.server import Server
from protofleet.federation.settings import load_config
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding
from protofleet.wire.transfers.transfer import transfer_id


def expected(federation: Path, run_dir: Path, data: Path) -> Evidence:
    """Everything that follows from the order in which a run's updates were admitted.

    Args:
        federation: its file.
        run_dir: a copy of its run folder, which nobody uses.
        data: folder of the devices' ``<device>.npz``.
    """
    plan = make_plan(load_config(federation))
    with Ledger(run_dir, plan.identity) as ledger:
        admissions = ledger.admissions()
        rounds = {done.round_id for done in ledger.committed()}
    spec = WorkerSpec(
        label="replay",
        bundle=plan.config.bundle,
        strategy=plan.strategy.description.name,
        settings=plan.settings,
        clients={name: ClientFiles(own=data / f"{name}.npz") for name in DEVICES},
        pooled=None,
    )
    clients = _Clients(spec)
    made = replay(Server.of(plan), admissions, clients.answer)
    states = {
        state.round_id: hashlib.sha256(blobs.encode(state.tensors)).hexdigest() for state in made
    }
    return Evidence(
        states={number: sha256 for number, sha256 in states.items() if number in rounds},
        counted={
            (one.client_id, one.round_id): clients.transfers[one.client_id, one.round_id]
            for one in admissions
            if one.counted_in in rounds
        },
        models={
            name: hashlib.sha256(stored.state).hexdigest() for name, stored in clients.kept.items()
        },
    )


class _Clients:
    """Trains in this process what devices have trained.

    Attributes:
        kept: what each keeps.
        transfers: of each update.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._trainer = ClientTrainer(spec)
        self._held: dict[str, bytes] = {}
        self.kept: dict[str, StoredClient] = {}
        self.transfers: dict[Place, str] = {}

    def answer(self, client: str, order: RoundConfig, sent: CodedPayload) -> tuple[bytes, Coding]:
        before = self.kept.get(client)
        task = WorkerTask(
            client_id=client,
            order=order,
            payload=sent.blob,
            coding=sent.coding,
            baseline=self._held.get(sent.coding.reference, b""),
            before=before.round_id if before else 0,
        )
        result, self.kept[client] = self._trainer.train(task, before)
        self._held[sent.held] = sent.raw
        blob = bytes(result.update)
        digest = hashlib.sha256(blob).hexdigest()
        self.transfers[client, order.round_id] = transfer_id(digest, client, order.round_id)
        return blob, result.coding
