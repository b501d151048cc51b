"""Puts a coordinator together from a federation file: bundle, strategy, ledger, wire."""

from __future__ import annotations

import math
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

import msgspec

from protofleet.coordinator import events
from protofleet.coordinator.calibrating import known_rate
from protofleet.coordinator.cells.cell import CellRounds, CellService
from protofleet.coordinator.cells.root import RootRounds, RootService, cell_registry, root_server
from protofleet.coordinator.cells.root_link import RootAccess, RootAddress, RootLink
from protofleet.coordinator.events import Sink
from protofleet.coordinator.ledger.control import extended_rounds, is_served
from protofleet.coordinator.ledger.ledger import LOCK_S, Ledger
from protofleet.coordinator.ledger.queries import damaged
from protofleet.coordinator.ledger.reading import RunAbout
from protofleet.coordinator.ledger.root import RootLedger
from protofleet.coordinator.membership.credentials import open_credentials
from protofleet.coordinator.membership.enrolment import answering
from protofleet.coordinator.membership.members import Members
from protofleet.coordinator.process.compose import compose
from protofleet.coordinator.process.event_log import EventLog
from protofleet.coordinator.process.expiry import Expiry
from protofleet.coordinator.process.lease import Lease, LeaseClaim, kept
from protofleet.coordinator.publish import plan_in_place
from protofleet.coordinator.results import Results
from protofleet.coordinator.rounds import Rounds
from protofleet.coordinator.service import Parts, Service
from protofleet.errors import InputError, StorageError
from protofleet.federation.cells import (
    cell_config,
    cell_name,
    check_cells,
    describe_cells,
    root_config,
)
from protofleet.federation.plan import Plan
from protofleet.federation.schedules.schedule import RoundPhase
from protofleet.federation.server import Server
from protofleet.federation.settings import FederationConfig
from protofleet.private_files import PRIVATE_FOLDER
from protofleet.threads import prepare_records
from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint
from protofleet.wire.transfers.transfer import Limits
from protofleet.wire.trust.coordinator_protection import CoordinatorProtection
from protofleet.wire.trust.protection import Plain

_LARGEST_REPORT = 1 << 44
"""Bytes: all updates of a cell."""
_SETTLED = 1000
"""Receipts in memory; what is older is answered from the ledger."""
_PLANNING = threading.Lock()
"""Strategies are loaded meanwhile, and their settings decoded: by one federation at a time."""
ToRoot = Callable[[], RootAccess | None]
"""Makes what a cell reaches the root by, anew for each service; None: without keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverPolicy:
    """What to do where another coordinator serves the federation: without either, refuse.

    Attributes:
        wait: for its end, in its folder or on the broker.
        take_over: from one on the broker that is alive.
    """

    wait: bool = False
    take_over: bool = False


class RunSupervisor:
    """Serves a run to its end, with one service after another where its bundle changes.

    Args:
        part: which process of the federation.
        sink: told what happens.
        succession: after another coordinator.
    """

    def __init__(self, part: _Part, sink: Sink, succession: TakeoverPolicy) -> None:
        self._part, self._sink, self._succession = part, sink, succession
        self._stack, self._ended = ExitStack(), threading.Event()
        self._service = self._opened()

    def run(self) -> events.Finished | events.Stopped | None:
        """As ``Service.run``, over all bundles of the run."""
        while True:
            ended = self._service.run()
            if not self._service.switched or self._ended.is_set():
                return ended
            self.close()
            self._service = self._opened()
            if self._ended.is_set():  # meanwhile, in another thread
                self._service.end()

    def end(self) -> None:
        """Let ``run`` return soon, resumably, as a signal would; from any thread."""
        self._ended.set()
        self._service.end()

    def close(self) -> None:
        """Release the folder."""
        self._stack.close()

    def _opened(self) -> Service:
        return self._stack.enter_context(_open(self._part, self._sink, self._succession))


@contextmanager
def open_service(
    config: FederationConfig,
    sink: Sink,
    succession: TakeoverPolicy | None = None,
    *,
    cell: int | None = None,
    to_root: ToRoot | None = None,
) -> Iterator[RunSupervisor]:
    """A coordinator, ready to ``run``; leaves a resumable folder however the block ends.

    Args:
        config: the federation file.
        sink: told what happens.
        succession: after another coordinator; None: refused beside one.
        cell: which of the file's cells; None: the root of them, or the one coordinator without.
        to_root: how a cell of a federation with keys reaches the root.

    Raises:
        InputError: bundle, strategy, settings, pooled data or run folder do not fit, or a run
            whose final fit has begun was given more rounds.
        UnavailableError: another coordinator runs in the folder.
        StorageError: the disk fails, also within the block.
    """
    part = _part_of(config, cell, to_root)
    config = part.config
    try:
        with closing(RunSupervisor(part, sink, succession or TakeoverPolicy())) as serving:
            yield serving
    except BrokenPipeError:
        raise
    except msgspec.DecodeError as error:  # of texts in the ledger
        raise InputError(damaged(config.run_dir, error)) from error
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"run folder '{config.run_dir}': {reason}; nothing committed is lost: put it right"
        ) from error


@contextmanager
def _open(part: _Part, sink: Sink, succession: TakeoverPolicy) -> Iterator[Service]:
    config = part.config
    with _PLANNING:
        rounds = max(config.rounds, extended_rounds(config.run_dir))
        alone = part.file.cells is None
        plan = plan_in_place(msgspec.structs.replace(config, rounds=rounds), finds_rate=alone)
        server = part.server_of(plan)
        prepare_records()
    config = plan.config
    manifest = plan.bundle.manifest
    patience_s = math.inf if succession.wait else LOCK_S
    if succession.wait and is_served(config.run_dir):
        sink(events.LeaseAwaited(epoch=0, alive=True, silent_s=0.0))
    ledger = part.open_ledger(plan, patience_s)
    with ledger, ExitStack() as stack:
        sink = EventLog(ledger.folder, sink)
        server = part.with_rate(server, ledger)
        plan = server.plan
        _check_rounds(config, ledger)
        about = RunAbout(
            strategy=plan.strategy.description.name,
            seed=config.seed,
            task=manifest.task,
            outputs=manifest.outputs,
            codec=part.file.codec.text,
            switched_off=plan.sends.switched_off,
        )
        ledger.run.note_about(about)
        results = Results(ledger, about)
        members = expiry = None
        protection = Plain()
        if config.keys is None:
            config.broker.check_keyless()
        else:
            members = stack.enter_context(Members(config.keys, config.federation))
            credentials, certificate = open_credentials(members, ledger, plan.bundle.digest)
            expiry = Expiry(config, certificate, sink)
            protection = CoordinatorProtection(credentials)
            stack.enter_context(answering(config.keys, config.federation, config.broker))
        largest = _LARGEST_REPORT if part.is_root else server.expected.max_bytes
        endpoint = _make_endpoint(config, ledger, protection, largest)
        claim = LeaseClaim(
            federation=config.federation,
            boot_id=secrets.token_hex(8),
            lease_s=config.liveness.lease_s,
            take_over=succession.take_over,
            wait=succession.wait,
        )
        lease = Lease(claim, ledger.run.tenure(claim.boot_id), endpoint.publish_lease, sink)
        stack.enter_context(kept(lease))
        yield part.service(
            plan,
            endpoint,
            partial(
                compose,
                server,
                ledger,
                endpoint,
                results=results,
                sink=sink,
                members=members,
                expiry=expiry,
                lease=lease,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One process of a federation: its only coordinator, or the root or a cell of several.

    Attributes:
        file: the federation file.
        config: this process's.
        cell: its number, of a cell.
        to_root: how a cell that is enrolled reaches the root.
    """

    file: FederationConfig
    config: FederationConfig
    cell: int | None = None
    to_root: ToRoot | None = None

    @property
    def is_root(self) -> bool:
        return self.file.cells is not None and self.cell is None

    def server_of(self, plan: Plan) -> Server:
        if self.file.cells is not None:
            check_cells(self.file, plan)
        server = Server.of(plan)
        return root_server(server) if self.is_root else server

    def open_ledger(self, plan: Plan, patience_s: float) -> Ledger:
        folder, identity = self.config.run_dir, plan.identity
        if self.file.cells is not None:
            identity = {**identity, "cells": describe_cells(self.file.cells, self.cell)}
        if not self.is_root:
            return Ledger(folder, identity, patience_s=patience_s)
        return RootLedger(folder, identity, strategy=plan.strategy, patience_s=patience_s)

    def with_rate(self, server: Server, ledger: Ledger) -> Server:
        """The same with the learning rate that devices have found, if they have."""
        rate = known_rate(server.plan, ledger)
        return server if rate is None else self._calibrated(server.plan, rate)

    def _calibrated(self, plan: Plan, lr: float) -> Server:
        with _PLANNING:
            return self.server_of(plan.calibrated(lr))

    def service(
        self, plan: Plan, endpoint: CoordinatorEndpoint, composed: Callable[..., Parts]
    ) -> Service:
        """The service of parts that ``composed`` makes."""
        cells = self.file.cells
        if cells is None:
            plain = partial(Rounds, calibrated=self._calibrated)
            return Service(composed(make_rounds=plain))
        if self.cell is None:
            return RootService(composed(make_registry=cell_registry, make_rounds=RootRounds))
        access = None if self.to_root is None else self.to_root()
        if self.file.keys is not None and access is None:
            raise InputError(
                f"cell {self.cell}: expected that it is enrolled with the root, as the federation "
                "has keys, got no enrolment"
            )
        manifest = plan.bundle.manifest
        address = RootAddress(
            access=access or RootAccess(broker=self.config.broker),
            federation=self.file.federation,
            name=cell_name(self.cell),
            bundle=plan.bundle.digest,
            layout_hash=manifest.layout_hash,
            agreed={
                "strategy": plan.strategy.description.name,
                "settings": plan.settings,
                "seed": self.config.seed,
            },
        )
        root = RootLink(address, self.config.run_dir / "orders", endpoint.wake)
        rounds = partial(CellRounds, root=root, cell=self.cell, sums=cells.send == "sums")
        return CellService(composed(make_rounds=rounds), root)


def _part_of(config: FederationConfig, cell: int | None, to_root: ToRoot | None) -> _Part:
    if cell is not None:
        own = cell_config(config, cell)
        return _Part(file=config, config=own, cell=cell, to_root=to_root)
    own = config if config.cells is None else root_config(config)
    return _Part(file=config, config=own)


def _check_rounds(config: FederationConfig, ledger: Ledger) -> None:
    """A final fit has changed what the devices keep, so no round can follow it."""
    found, end = ledger.state(), ledger.early_end()
    rounds = config.rounds if end is None else end.limit(config.rounds, config.stop)
    fitted = found.round_id - 1 if found.phase is RoundPhase.WAITING else found.round_id
    if found.final and rounds >= fitted:
        raise InputError(
            f"rounds: expected {fitted - 1}, after which this run's final fit began, got "
            f"{rounds}; for more rounds choose another run_dir and new device stores"
        )


def _make_endpoint(
    config: FederationConfig, ledger: Ledger, protection: Plain, update_bytes: int
) -> CoordinatorEndpoint:
    folder = ledger.folder / "partial"
    found = ledger.state()
    if found.phase is not RoundPhase.OPEN and not (found.late and config.schedule.patience):
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    limits = Limits(max_blob_bytes=update_bytes, concurrent=config.limits.uploads, settled=_SETTLED)
    return CoordinatorEndpoint.create(
        config.broker, config.federation, folder, limits, protection=protection
    )
