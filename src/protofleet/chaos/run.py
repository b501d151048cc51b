"""Runs each federation undisturbed, then under every fault, and compares what they leave behind."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from protofleet.chaos.evidence import Evidence
from protofleet.chaos.faults import FAULTS, Fault, Inject, target
from protofleet.chaos.federation import COORDINATOR, ChaosFederation, Setup, running
from protofleet.chaos.models import METHODS, write_files
from protofleet.chaos.processes import ProcessServer
from protofleet.errors import InputError, UnavailableError

_WITHIN_S = 0.6
"""Faults of a round come within this time behind the one before: about as long as a round takes."""
_PATIENCE_S, _AGAIN_S = 10.0, 0.05
"""How long a fault waits for its victim, which may be away for the fault before."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault, over all strategies.

    Attributes:
        fault: its name.
        injected: how often.
        rounds_completed: of all federations.
        lost: updates of which a device has the receipt and that no round counts.
        counted_twice: updates that were admitted more than once.
        bytes_resent: of chunks that a sender put on its link more than once.
        same_bits: whether every update, state and model is that of the undisturbed run.
    """

    fault: str
    injected: int
    rounds_completed: int
    lost: int
    counted_twice: int
    bytes_resent: int
    same_bits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is run.

    Attributes:
        faults: names.
        strategies: names.
        rounds: of each federation.
        injections: faults of each round.
        seed: of the schedule of faults.
        broadcast_from: as in ``limits`` of a federation file.
        folder: where files stay; None: nowhere. Bundles that are there are used again.
    """

    faults: Sequence[str] = tuple(FAULTS)
    strategies: Sequence[str] = tuple(METHODS)
    rounds: int = 12
    injections: int = 6
    seed: int = 0
    broadcast_from: int = 2
    folder: Path | None = None

    def __post_init__(self) -> None:
        for what, names, known in (
            ("fault", self.faults, FAULTS),
            ("strategy", self.strategies, METHODS),
        ):
            if unknown := [name for name in names if name not in known]:
                raise InputError(f"{what} '{unknown[0]}': expected one of {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DisturbedRun:
    """One federation under one kind of fault.

    Attributes:
        strategy: its, and its schedule.
        evidence: what it has left behind.
        expected: what it should have: what the undisturbed run has left, or what follows from the
            order in which updates were admitted.
        injected: faults.
        finished: whether every process has ended as it should.
        bytes_resent: by all links.
        most_resent: most of one transfer between two faults.
        seconds: how long it took.
    """

    strategy: str
    evidence: Evidence
    expected: Evidence
    injected: int
    finished: bool
    bytes_resent: int
    most_resent: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """A fault with all strategies."""

    fault: Fault
    outcomes: Sequence[DisturbedRun]

    @property
    def row(self) -> Row:
        """Its line of the table."""
        found = [one.evidence for one in self.outcomes]
        return Row(
            fault=self.fault.name,
            injected=sum(one.injected for one in self.outcomes),
            rounds_completed=sum(len(one.states) for one in found),
            lost=sum(one.lost for one in found),
            counted_twice=sum(one.counted_twice for one in found),
            bytes_resent=sum(one.bytes_resent for one in self.outcomes),
            same_bits=all(
                one.finished and one.evidence.same_bits(one.expected) for one in self.outcomes
            ),
        )


def run(options: Options) -> Iterator[FaultResult]:
    """Run everything, and tell of each fault when its federations are over.

    Federations of different strategies run beside each other.

    Raises:
        UnavailableError: no Mosquitto, or processes cannot be started.
    """
    with _folder(options.folder) as folder, ProcessServer(folder / "server.log") as server:
        _check_disks(options, server)
        files = write_files([METHODS[name] for name in options.strategies], folder / "models")

        calm: dict[str, Evidence] = {}

        def one(strategy: str, fault: Fault | None) -> DisturbedRun:
            setup = Setup(
                method=METHODS[strategy],
                files=files[strategy],
                folder=folder / "runs" / f"{fault.name if fault else 'undisturbed'}-{strategy}",
                rounds=options.rounds,
                disks=fault is not None and fault.disks,
                broadcast_from=options.broadcast_from,
                seed=options.seed,
            )
            return _federation(setup, server, fault, options, calm.get(strategy))

        with ThreadPoolExecutor(len(options.strategies)) as pool:
            rounds = [name for name in options.strategies if not METHODS[name].buffered]
            undisturbed = pool.map(partial(one, fault=None), rounds)
            calm.update({outcome.strategy: outcome.evidence for outcome in undisturbed})
            for name in options.faults:
                fault = FAULTS[name]
                found = list(pool.map(partial(one, fault=fault), options.strategies))
                yield FaultResult(fault=fault, outcomes=found)


def _check_disks(options: Options, server: ProcessServer) -> None:
    wanted = [name for name in options.faults if FAULTS[name].disks]
    if wanted and not server.has_disks:
        others = ",".join(name for name in FAULTS if not FAULTS[name].disks)
        raise UnavailableError(
            f"fault '{wanted[0]}': needs a user namespace with mounts of its own, which this "
            f"machine does not permit (unshare -Urm true); without: --faults {others}"
        )


def schedule(options: Options, fault: Fault, strategy: str) -> Iterator[list[tuple[float, str]]]:
    """For each round: the pause before each fault, in seconds, and whom it hits."""
    rng = random.Random(f"{options.seed}/{fault.name}/{strategy}")  # noqa: S311 - a simulation
    for _ in range(options.rounds):
        yield [
            (rng.uniform(0, _WITHIN_S / options.injections), target(fault, rng))
            for _ in range(options.injections)
        ]


def _federation(
    setup: Setup,
    server: ProcessServer,
    fault: Fault | None,
    options: Options,
    calm: Evidence | None,
) -> DisturbedRun:
    strategy, began = setup.method.name, time.monotonic()
    injected = 0

    def disturb(federation: ChaosFederation) -> None:
        nonlocal injected
        if fault is None:
            return
        if fault.begin is not None:
            fault.begin(federation)
        if fault.inject is not None:
            for count in _injections(federation, fault, schedule(options, fault, strategy)):
                injected += count

    with running(setup, server) as federation:
        finished = federation.run(disturb)
        links = federation.links.values()
        if fault is not None and fault.counted:
            injected = sum(link.done[fault.counted] for link in links)
        evidence = federation.evidence()
        return DisturbedRun(
            strategy=strategy,
            evidence=evidence,
            expected=_expected(federation) if setup.method.buffered else calm or evidence,
            injected=injected,
            finished=finished,
            bytes_resent=sum(link.resent.total for link in links),
            most_resent=max(link.resent.most for link in links),
            seconds=time.monotonic() - began,
        )


def _expected(federation: ChaosFederation) -> Evidence:
    """What a buffered run must have come to."""
    from protofleet.chaos.replayed import expected  # noqa: PLC0415 - the runtime, slow to load

    setup = federation.setup
    file = setup.folder / "federation.toml"
    return expected(file, federation.found / COORDINATOR / "run", setup.files)


def _injections(
    federation: ChaosFederation, fault: Fault, rounds: Iterable[list[tuple[float, str]]]
) -> Iterator[int]:
    """Do what the schedule says; yields how many faults that were."""
    if fault.inject is None:
        return
    rng = random.Random(f"{federation.setup.seed}/{fault.name}")  # noqa: S311 - a simulation
    for number, planned in enumerate(rounds, 1):
        if not federation.await_round(number):
            return
        for pause_s, name in planned:
            time.sleep(pause_s)
            if federation.over:
                return
            yield _inject(federation, fault.inject, name, rng)
            for link in federation.links.values():
                link.resent.mark()


def _inject(federation: ChaosFederation, inject: Inject, name: str, rng: random.Random) -> int:
    """Do it as soon as it can be done: a link that is down cannot be cut."""
    until = time.monotonic() + _PATIENCE_S
    while not (count := inject(federation, name, rng)):
        if federation.over or time.monotonic() > until:
            break
        time.sleep(_AGAIN_S)
    return count


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="protofleet-chaos-") as folder:
            yield Path(folder)
    else:
        wanted.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(wanted / "runs", ignore_errors=True)
        yield wanted.resolve()
