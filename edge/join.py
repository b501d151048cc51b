"""Puts a device together from its parts and runs it: store, programs, data, link, agent."""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec

from protofleet.bundle import Bundle
from protofleet.datasets.arrays import doubt_of_scale
from protofleet.durable import write_whole
from protofleet.edge.agent import Agent
from protofleet.edge.compose import compose
from protofleet.edge.credentials import FOLDER, load_enrolment, open_credentials
from protofleet.edge.current_round import in_use_figures
from protofleet.edge.device_info import DeviceInfo
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.personalise import head_first
from protofleet.edge.learning.training import Learner, LocalData, check_data
from protofleet.edge.log_tail import log_tail
from protofleet.edge.notices import Report
from protofleet.edge.owner.participation import watch_policy
from protofleet.edge.rehearsal import rehearse
from protofleet.edge.state.journal import StoreBinding
from protofleet.edge.state.move import BundleMove
from protofleet.edge.state.store import Store
from protofleet.edge.upgrade import Upgrades, bundle_in_place
from protofleet.errors import InputError, ProvisionError, UnavailableError
from protofleet.federation.records import Sends
from protofleet.kernels import set_threads
from protofleet.printable import shell_word
from protofleet.runtime import BackendName, choose_backend, open_programs, return_large_blocks
from protofleet.runtime.opening import check_opening, opening_of
from protofleet.strategies import check_known
from protofleet.threads import prepare_records
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.topics import check_id
from protofleet.wire.trust.device_protection import DeviceProtection
from protofleet.wire.trust.protection import Plain

_log = logging.getLogger(__name__)


class JoinSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a device behaves in a federation: options of ``device join`` and of virtual devices.

    Attributes:
        sends: what this device tells beside tensors, whatever the coordinator asks for.
        stays: whether the device waits for another run when the federation has finished.
        sends_log: whether the last lines of the log go to the coordinator when a round fails.
        rests: whether the connection ends while the owner's conditions hold the device.
        keepalive_s: MQTT keep-alive; a lost link is noticed after about twice this.
        conditions: keys of the owner's conditions (``policy.toml``) that hold in place of the
            file's.
    """

    sends: Sends = Sends()
    stays: bool = False
    sends_log: bool = False
    rests: bool = True
    keepalive_s: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 30
    conditions: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """How a device takes part.

    Attributes:
        broker: which, and this device's account; None: the enrolment's.
        federation: its name, as in the topics; None: the enrolment's.
        bundle: folder or file.
        store: the device's folder, made if absent.
        device_id: identity to take when the store is made; None: drawn at random.
        threads: of the runtime and the kernels.
        backend: who runs the bundle's programs.
        trusted: raw public keys whose bundles are accepted; empty: the user's trust store.
        keep_bundle: whether the store keeps a copy of the bundle, with which it predicts alone, and
            moves to another bundle later.
        policy: file of the owner's conditions; None: ``policy.toml`` in the store, if it is there.
        settings: how it behaves there.
    """

    broker: BrokerAccess | None
    federation: str | None
    bundle: Path
    store: Path
    device_id: str | None = None
    threads: int = 1
    backend: BackendName = "auto"
    trusted: Collection[bytes] = ()
    keep_bundle: bool = True
    policy: Path | None = None
    settings: JoinSettings = field(default_factory=JoinSettings)


def join(options: JoinOptions, data: LocalData, report: Report) -> int:
    """Take part until the federation finishes or SIGINT or SIGTERM comes.

    Must run in the main thread, which receives the signals.

    Args:
        options: how.
        data: what to train and score on.
        report: takes an event's name and its figures.

    Returns:
        The exit status: 0 finished, else 128 + the signal's number.

    Raises:
        ProtofleetError: bundle, store, data and federation do not fit, or the broker refuses.
        UnavailableError: the store's disk fails.
    """
    try:
        return _join(options, data, report)
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise UnavailableError(f"device store '{options.store}': {reason}") from error


def _join(options: JoinOptions, data: LocalData, report: Report) -> int:
    while True:
        with open_agent(options, data, report) as agent, _stopped_by_signals(agent) as caught:
            prepare_records()
            finished = agent.run()
        if caught or not agent.switched:
            return 0 if finished else 128 + caught[0]


@contextlib.contextmanager
def open_agent(options: JoinOptions, data: LocalData, report: Report) -> Iterator[Agent]:
    """A device, ready to ``run`` in any thread; its store is released behind the block.

    Raises:
        ProtofleetError: bundle, store and data do not fit.
    """
    bundle = Bundle.open(options.bundle, trusted=options.trusted)
    # Before a store is made:
    place = _find_place(options)
    _check_strategy(bundle)
    check_data(data, bundle.manifest)
    with (
        log_tail(kept=options.settings.sends_log) as tail,
        Store.open(options.store, device_id=options.device_id) as store,
    ):
        path, bundle = _present_bundle(options, data, store, bundle)
        binding = StoreBinding(
            federation=place.federation,
            bundle=bundle.digest,
            layout_hash=bundle.manifest.layout_hash,
        )
        move = BundleMove(store, binding, bundle, keep_bundle=options.keep_bundle)
        _tell_store(store, move, binding)
        _check_opening(options, store, path, bundle)
        learner = open_learner(
            bundle,
            data,
            threads=options.threads,
            device_id=store.device_id,
            backend=options.backend,
        )
        if options.keep_bundle:
            _head_first(store, bundle, learner, data, report)
        who = DeviceInfo(
            device_id=store.device_id,
            boot_id=secrets.token_hex(8),
            binding=binding,
            num_examples=learner.num_examples(1),
            sequence=bundle.manifest.sequence,
            takes_bundles=options.keep_bundle,
            sends=options.settings.sends,
            doubts=_doubts(bundle, data),
        )
        endpoint = _endpoint(options, place, store, who)
        participation = watch_policy(store, options.policy, options.settings.conditions)
        yield compose(
            endpoint,
            move,
            learner,
            who,
            report,
            stays=options.settings.stays,
            rests=options.settings.rests,
            participation=participation,
            upgrades=_upgrades(options, data, endpoint, store, bundle),
            tail=tail,
        )


def _doubts(bundle: Bundle, data: LocalData) -> tuple[str, ...]:
    """What is strange about the data, in the words of a presence."""
    inputs, x = bundle.manifest.preprocessing, data.own.x_train
    is_far = inputs.tokens is None and doubt_of_scale(x, "", inputs.mean, inputs.std)
    return ("scale",) if is_far else ()


def _head_first(
    store: Store, bundle: Bundle, learner: Learner, data: LocalData, report: Report
) -> None:
    """Between rounds, too, the owner has what a head alone can do with few labels."""
    evidence = head_first(store, bundle, learner.programs, data)
    if evidence is not None:
        report("in_use", in_use_figures(0, evidence))


def _present_bundle(
    options: JoinOptions, data: LocalData, store: Store, given: Bundle
) -> tuple[Path, Bundle]:
    """Where the bundle lies, and it: the one given, or what took its place over the wire."""
    path = bundle_in_place(store, given)
    if path is None:
        return options.bundle, given
    bundle = Bundle.open(path, trusted=options.trusted)
    _check_strategy(bundle)
    check_data(data, bundle.manifest)
    _log.info("bundle %s took the place of the one given", bundle.digest[:16])
    return path, bundle


def _tell_store(store: Store, move: BundleMove, binding: StoreBinding) -> None:
    _log.info("device '%s', its store: %s", store.device_id, store.folder)
    if (bound := store.journal.binding) and not move.committed:
        _log.info(
            "it has bundle %s, and moves to %s when the federation runs that",
            bound.bundle[:16],
            binding.bundle[:16],
        )


def _upgrades(
    options: JoinOptions, data: LocalData, endpoint: DeviceEndpoint, store: Store, bundle: Bundle
) -> Upgrades:
    def rehearsed(new: Bundle, path: Path) -> None:
        _check_opening(options, store, path, new)
        rehearse(new, data, threads=options.threads, backend=options.backend)

    return Upgrades(
        endpoint,
        store,
        bundle.manifest,
        present=bundle.digest,
        rehearse=rehearsed if options.keep_bundle else None,
        trusted=options.trusted,
    )


def _check_strategy(bundle: Bundle) -> None:
    """Raise ProvisionError if this device lacks the strategy that the bundle was exported for."""
    try:
        check_known(bundle.manifest.strategy.name)
    except InputError as error:
        raise ProvisionError(f"bundle '{bundle.manifest.name}': {error}") from error


def _check_opening(options: JoinOptions, store: Store, path: Path, bundle: Bundle) -> None:
    """Let LiteRT open a bundle that this store has not opened yet in a process of its own.

    Raises:
        ProvisionError: that process crashed, or could not open it.
    """
    if choose_backend(options.backend, bundle.manifest.programs) != "litert":
        return
    known = store.folder / "opened"
    if not known.is_file() or known.read_bytes() != opening_of(bundle).encode():
        write_whole(known, check_opening(path, bundle).encode())


def open_learner(
    bundle: Bundle,
    data: LocalData,
    *,
    threads: int,
    device_id: str,
    backend: BackendName = "auto",
) -> Learner:
    """The bundle's programs on this machine, ready to train on ``data``.

    Raises:
        InputError: the backend is not installed, or the data do not fit the bundle.
        ProvisionError: the bundle holds nothing for the backend, or contradicts itself.
    """
    set_threads(threads)
    return_large_blocks()
    programs = open_programs(bundle, threads=threads, backend=backend)
    _log.info("programs run on the backend %s", programs.backend)
    return Learner(bundle, programs, data, Meter(), device_id)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a device takes part."""

    federation: str
    broker: BrokerAccess


def _find_place(options: JoinOptions) -> _Place:
    """From the options, and where they say nothing from the device's enrolment."""
    enrolment = load_enrolment(options.store / FOLDER)
    if enrolment is None:
        if options.federation is None or options.broker is None:
            raise InputError(
                f"device store '{options.store}': not enrolled; give --federation and --broker, or "
                "enrol it first with an invitation: protofleet device enroll INVITATION --store "
                f"{shell_word(options.store)}"
            )
        options.broker.check_keyless()
        return _Place(check_id(options.federation, "federation"), options.broker)
    if options.federation not in (None, enrolment.federation):
        raise InputError(
            f"device store '{options.store}': enrolled in federation '{enrolment.federation}', "
            f"got '{options.federation}'; leave --federation out, or give another --store"
        )
    return _Place(enrolment.federation, options.broker or enrolment.access(options.store / FOLDER))


def _protection(store: Store) -> Plain:
    credentials = open_credentials(store.folder / FOLDER)
    if credentials is None:
        return Plain()
    if credentials.device_id != store.device_id:
        raise ProvisionError(
            f"device store '{store.folder}': enrolled as '{credentials.device_id}', but it is "
            f"device '{store.device_id}'; enrol it anew with an invitation for this name"
        )
    return DeviceProtection(credentials)


def _endpoint(options: JoinOptions, place: _Place, store: Store, who: DeviceInfo) -> DeviceEndpoint:
    return DeviceEndpoint.create(
        place.broker,
        place.federation,
        who.device_id,
        store.partial,
        protection=_protection(store),
        will=who.presence("offline"),
        keepalive_s=options.settings.keepalive_s,
    )


@contextlib.contextmanager
def _stopped_by_signals(agent: Agent) -> Iterator[list[int]]:
    """Turn SIGINT and SIGTERM into ``agent.stop``; yields the signals that came."""
    caught: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        agent.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
