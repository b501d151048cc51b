"""What can be examined, and what a path is; loads nothing that an extra would bring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from protofleet.coordinator.ledger import LEDGER
from protofleet.errors import InputError, ProtofleetError
from protofleet.wire.mqtt.broker_access import BrokerAccess


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine.

    Attributes:
        folders: where something is to be written; a folder that is not there yet is made later,
            so the nearest one above it counts. Without any: the present one.
    """

    kind: ClassVar[str] = "machine"
    folders: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return "this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSubject:
    """A broker, and as whom to try it.

    Attributes:
        access: where it is, and whom we are to it.
        device: an account of a device, to try the access list with; '': none.
        device_password_file: of it; None: NAME.password.
        federation: whose topics to look at; '': all that may be read.
        folder: of a broker that runs here.
    """

    kind: ClassVar[str] = "broker"
    access: BrokerAccess
    device: str = ""
    device_password_file: Path | None = None
    federation: str = ""
    folder: Path | None = None

    def __str__(self) -> str:
        return f"broker {self.access}"


@dataclass(frozen=True, slots=True)
class BundleSubject:
    """Attributes: where it lies, and raw public keys to trust; empty: the user's trust store."""

    kind: ClassVar[str] = "bundle"
    path: Path
    trusted: Collection[bytes] = ()

    def __str__(self) -> str:
        return f"bundle '{self.path}'"


@dataclass(frozen=True, slots=True)
class FederationSubject:
    """Attributes: the federation file."""

    kind: ClassVar[str] = "federation"
    path: Path

    def __str__(self) -> str:
        return f"federation file '{self.path}'"


@dataclass(frozen=True, slots=True)
class RunSubject:
    """Attributes: a coordinator's run folder."""

    kind: ClassVar[str] = "run_folder"
    path: Path

    def __str__(self) -> str:
        return f"run folder '{self.path}'"


@dataclass(frozen=True, slots=True)
class StoreSubject:
    """Attributes: the folder of a device's store."""

    kind: ClassVar[str] = "store"
    path: Path

    def __str__(self) -> str:
        return f"store '{self.path}'"


Subject = Machine | BrokerSubject | BundleSubject | FederationSubject | RunSubject | StoreSubject


def broker_at(folder: Path) -> BrokerSubject:
    """The broker of a folder of ``protofleet broker init``; raises InputError."""
    from protofleet.broker.folder import BrokerFolder  # noqa: PLC0415 - cryptography, some 20 ms
    from protofleet.wire.topics import COORDINATOR  # noqa: PLC0415 - as above

    found = BrokerFolder.open(folder)
    access = BrokerAccess(
        url=found.local_url(COORDINATOR), ca_file=found.ca, password_file=found.password_file
    )
    federation = next(iter(found.federations()), "")
    return BrokerSubject(access=access, folder=found.path, federation=federation)


_SIGNS: tuple[tuple[str, Callable[[Path], Subject]], ...] = (
    ("identity.json", StoreSubject),
    (LEDGER, RunSubject),
    ("manifest.json", BundleSubject),
    ("mosquitto.conf", broker_at),
    ("broker/mosquitto.conf", broker_at),
)
"""What lies in a folder, and what the folder then is."""


def guess(path: Path) -> Subject:
    """What lies at ``path``: a bundle, a store, a run folder, a broker's, or a federation file.

    Raises:
        InputError: nothing, or nothing of these.
    """
    if path.is_dir():
        for sign, make in _SIGNS:
            if (path / sign).is_file():
                return make(path)
        raise InputError(
            f"'{path}': expected a device's store, a run folder, a bundle or a broker's folder, "
            f"found none of {', '.join(sign for sign, _ in _SIGNS)}"
        )
    if not path.exists():
        raise InputError(f"'{path}': no such file or folder")
    if any(path.name == sign for sign, _ in _SIGNS):
        return guess(path.absolute().parent)
    return FederationSubject(path) if path.suffix == ".toml" else BundleSubject(path)


def with_what_it_names(subject: Subject) -> Iterator[Subject]:
    """``subject``, and the bundle and broker that it names.

    Where it cannot be read, it alone: its own check says why.
    """
    yield subject
    names: dict[type[Any], Callable[[Any], Iterator[Subject]]] = {
        FederationSubject: _named_by_file,
        StoreSubject: _named_by_store,
    }
    try:
        yield from names.get(type(subject), lambda _: iter(()))(subject)
    except (ProtofleetError, ModuleNotFoundError, OSError, ValueError):
        return


def _named_by_file(subject: FederationSubject) -> Iterator[Subject]:
    from protofleet.federation.settings import load_config  # noqa: PLC0415 - loads the strategies

    config = load_config(subject.path)
    trusted = frozenset(map(bytes.fromhex, config.trusted))
    yield BundleSubject(config.bundle, trusted)
    yield BrokerSubject(access=config.broker, federation=config.federation)


def _named_by_store(subject: StoreSubject) -> Iterator[Subject]:
    from protofleet.edge.credentials import FOLDER, load_enrolment  # noqa: PLC0415 - as above

    folder = subject.path / FOLDER
    enrolment = load_enrolment(folder)
    if enrolment is not None:
        yield BrokerSubject(access=enrolment.access(folder), federation=enrolment.federation)


def with_machine(subjects: Collection[Subject]) -> Iterator[Subject]:
    """This machine, with the folders that the subjects write in, before the subjects."""
    yield Machine(tuple(folder for one in subjects for folder in _written(one)))
    yield from subjects


def _written(subject: Subject) -> Iterator[Path]:
    if isinstance(subject, RunSubject | StoreSubject):
        yield subject.path
    elif isinstance(subject, FederationSubject):
        try:
            from protofleet.federation.settings import load_config  # noqa: PLC0415 - as above

            yield load_config(subject.path).run_dir
        except (ProtofleetError, ModuleNotFoundError):
            return
