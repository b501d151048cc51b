"""The device's durable store: identity, personal state, the round it is in, what it has paid.

The journal is the single commit point. Large contents are written first, under the hash of their
bytes; one atomic rename of ``journal.json`` then makes all of them valid together. A process killed
at any instant leaves the journal before or after that rename and some unreferenced files, which
the next ``open`` removes.

A store keeps a copy of its bundle, so that its model predicts whatever becomes of the file that the
device joined with. After a move to another bundle (``move``) the model before, with its bundle,
stays in use until a round counts with the new one.

A trained state stays *pending* beside the committed one until the coordinator has acknowledged its
update: a round that never counted leaves no trace in the personal state.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import msgspec
from numpy.typing import NDArray

from protofleet import __version__
from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Manifest
from protofleet.durable import TEMPORARY, lock, sync_folder, write_synced, write_whole
from protofleet.edge.state.counters import ByteCounters
from protofleet.edge.state.journal import (
    BLOB_SUFFIX,
    BUNDLE_SUFFIX,
    JOURNAL,
    BundleFallback,
    Journal,
    PendingUpdate,
    PersonalState,
    SentUpdate,
    StoreBinding,
    StoredFile,
    StoredPayload,
    StoredState,
    blob_path,
    bundle_path,
    forget_former,
    keep_former,
    read_blob,
    read_journal,
)
from protofleet.errors import (
    InputError,
    ProtofleetError,
    ProvisionError,
    RefusedError,
    StorageError,
    UnavailableError,
)
from protofleet.federation.client import ClientMemory, TrainedRound
from protofleet.federation.outcomes.gate import ComparedExamples, GateEvidence
from protofleet.private_files import (
    PRIVATE_FOLDER,
    check_private_folder,
    make_private_folder,
    refuse_links,
)
from protofleet.strategies.types import ClientState
from protofleet.tensors import blobs
from protofleet.wire.topics import check_device_id

_IDENTITY = "identity.json"
_READ_ATTEMPTS = 5
_PROBE_BYTES = 1 << 16
_Read = TypeVar("_Read")


class Store:
    """One device's folder, owned by one process at a time.

    Attributes:
        folder: where it is.
        device_id: the durable identity.
        partial: folder for unfinished downloads.
        counters: bytes at the socket since the device joined.
        journal: the present state of the round.
        await_storage: told of a write that the disk did not take; returns when it may be tried
            again. At first it raises what it is told.
    """

    def __init__(self, folder: Path, owned: IO[bytes], device_id: str) -> None:
        self.folder = folder
        self.device_id = device_id
        self.partial = folder / "partial"
        self.partial.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        self.counters = ByteCounters(folder / "counters.bin")
        self._lock = owned
        self.journal = read_journal(folder)
        keep_former(folder)
        self.await_storage: Callable[[StorageError], None] = _give_up
        self._sweep()

    @classmethod
    def open(cls, folder: Path, *, device_id: str | None = None) -> Self:
        """Open the store, or make it at the first time.

        Args:
            folder: made if absent.
            device_id: the identity to take at the first time; drawn at random if None.

        Raises:
            InputError: ``device_id`` cannot be part of a topic, or others may read the folder.
            ProvisionError: the store has another identity, or its content is damaged.
            UnavailableError: another process uses the store, or the folder cannot be written.
        """
        try:
            make_private_folder(folder, "device store")
            refuse_links(folder, "device store")
            owned = lock_store(folder)
        except OSError as error:
            raise UnavailableError(
                f"device store '{folder}': expected a folder to write in: "
                f"{error.strerror or error}; use another --store"
            ) from error
        try:
            return cls(folder, owned, _identity(folder, device_id))
        except (ProtofleetError, OSError):
            owned.close()
            raise

    def close(self) -> None:
        """Release the folder for other processes."""
        self.counters.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bind(self, binding: StoreBinding, *, sequence: int = 0) -> None:
        """Tie the store to a federation and a bundle, or check that it is tied to these.

        Args:
            binding: these.
            sequence: of the bundle.

        Raises:
            ProvisionError: it belongs to others.
        """
        bound = self.journal.binding
        if bound is None:
            self._commit(msgspec.structs.replace(self.journal, binding=binding, sequence=sequence))
            return
        self.check_bound(binding, *binding.__struct_fields__)

    def check_bound(self, binding: StoreBinding, *names: str) -> None:
        """Raise ProvisionError if the store is tied to something else in the fields ``names``."""
        for name in names:
            theirs = getattr(binding, name)
            ours = getattr(self.journal.binding, name, theirs)
            if ours != theirs:
                raise ProvisionError(
                    f"device store '{self.folder}': belongs to {name} '{ours}', got '{theirs}'; "
                    f"{self.remedy}"
                )

    @property
    def remedy(self) -> str:
        """What a person can do who wants something of this store that its state is not for."""
        return (
            "use another --store, or forget the personal state in this one: "
            f"protofleet device reset --store {shlex.quote(str(self.folder))}"
        )

    def keep_bundle(self, bundle: Bundle) -> None:
        """Keep a copy, unless there is one; it stays if the next commit binds the store to it."""
        path = bundle_path(self.folder, bundle.digest)
        if path.exists():
            return
        temporary = path.with_name(path.name + TEMPORARY)

        def write() -> None:
            bundle.copy_to(temporary)
            temporary.replace(path)
            sync_folder(self.folder)

        self._keep(write)

    def check_sequence(self, manifest: Manifest) -> None:
        """Raise ProvisionError if the store has had a newer bundle, unless the signer allows it."""
        newest, sequence = self.journal.sequence, manifest.sequence
        if max(sequence, manifest.replaces_up_to) < newest:
            raise ProvisionError(
                f"device store '{self.folder}': has had a bundle of sequence {newest}, got "
                f"'{manifest.name}' of sequence {sequence}, which is older; take the newer one, or "
                f"have its signer export it with --sequence {newest + 1}, or with "
                f"--replaces-up-to {newest} if devices are to go back"
            )

    def commit_moved(
        self,
        binding: StoreBinding,
        start: Mapping[str, NDArray[Any]] | None,
        *,
        sequence: int = 0,
        fallback: BundleFallback | None = None,
        replaced: tuple[str, ...] = (),
    ) -> None:
        """Belong to another bundle of the same federation from now on.

        What is on its way in either direction, residuals and baselines belong to the bundle before
        and go. The model in use stays in use until a round counts with the new bundle.

        Args:
            binding: the new one.
            start: tensors of the state that training begins with; None: the strategy's own.
            sequence: of the new bundle.
            fallback: of the journal from now on.
            replaced: of the journal from now on.
        """
        journal, state = self.journal, None
        if start is not None:
            file = self._write_blob(blobs.encode(start))
            state = StoredState(round_id=0, transfer_id="", file=file)
        moved = Journal(
            binding=binding,
            strategy=journal.strategy if start is not None else "",
            settings=journal.settings if start is not None else {},
            state=state,
            former=journal.in_use,
            sequence=max(journal.sequence, sequence),
            fallback=fallback,
            replaced=replaced,
        )
        self._commit(moved)
        self._drop_downloads()

    def commit_restored(self, former: PersonalState) -> None:
        """Belong to the bundle before again, as if the store had not moved; no round has counted.

        Args:
            former: of the journal.
        """
        self._commit(
            Journal(
                binding=former.binding,
                strategy=former.strategy,
                settings=former.settings,
                state=former.state,
                sequence=self.journal.sequence,
            )
        )
        self._drop_downloads()

    def _drop_downloads(self) -> None:
        """Remove parts of payloads that will not be offered again."""
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)

    def bind_strategy(self, name: str, settings: Mapping[str, Any]) -> None:
        """Record the strategy that reads and writes the state.

        Raises:
            ProvisionError: the state in the store was made by another strategy.
        """
        self.check_strategy(name)
        if (self.journal.strategy, self.journal.settings) != (name, dict(settings)):
            change = {"strategy": name, "settings": dict(settings)}
            self._commit(msgspec.structs.replace(self.journal, **change))

    def check_strategy(self, name: str) -> None:
        """Raise ProvisionError if the state in the store was made by another strategy."""
        if self.journal.state is not None and self.journal.strategy != name:
            raise ProvisionError(
                f"device store '{self.folder}': its state is of strategy "
                f"'{self.journal.strategy}', the federation runs '{name}'; {self.remedy}"
            )

    def load_memory(self) -> ClientMemory:
        """What the last delivered round has left."""
        stored = self.journal.state
        if stored is None:
            return ClientMemory()
        return ClientMemory(
            state=load_state(self.folder, stored),
            residual=_tensors(self.folder, stored.residual) if stored.residual else {},
            held_out=stored.evidence.held_out_gain if stored.evidence else None,
        )

    def has_payload(self, reference: str) -> bool:
        """Whether a payload that refers to this one can be decoded."""
        return any(file.sha256 == reference for file in self.journal.payloads)

    def load_payload(self, reference: str) -> dict[str, NDArray[Any]]:
        """The tensors of an earlier payload, by the hash of its raw blob.

        Raises:
            RefusedError: rule ``base``: it is not here.
            ProvisionError: its bytes are damaged.
        """
        for file in self.journal.payloads:
            if file.sha256 == reference:
                return _tensors(self.folder, file)
        raise RefusedError("base", f"payload '{reference[:64]}': this device does not have it")

    def commit_received(
        self, round_id: int, transfer_id: str, raw: bytes, *, reference: str | None = None
    ) -> None:
        """Keep a complete payload until its training is committed.

        Args:
            round_id: of its task.
            transfer_id: of its transfer.
            raw: its raw blob.
            reference: what it referred to, empty for the bundle; later payloads may refer to
                either. None: it was raw, and so will the others be.
        """
        file = self._write_blob(raw)
        received = StoredPayload(round_id=round_id, transfer_id=transfer_id, file=file)
        payloads: tuple[StoredFile, ...] = ()
        if reference is not None:
            named = [known for known in self.journal.payloads if known.sha256 == reference]
            payloads = (*(known for known in named if known != file), file)
        change = {"received": received, "payloads": payloads}
        self._commit(msgspec.structs.replace(self.journal, **change))

    def load_received(self) -> bytes:
        """The payload of the journal's received round.

        Raises:
            ProvisionError: there is none, or its bytes are damaged.
        """
        if self.journal.received is None:
            raise ProvisionError(f"device store '{self.folder}': holds no received payload")
        return read_blob(self.folder, self.journal.received.file)

    def commit_trained(self, trained: TrainedRound, *, transfer_id: str) -> None:
        """Make the trained state (pending), its update (outbox) and its residual valid together.

        Args:
            trained: what the round made.
            transfer_id: the transfer of the payload that it was made from.
        """
        state, residual = trained.state, trained.residual
        stored = StoredState(
            round_id=state.round_id,
            transfer_id=transfer_id,
            file=self._write_blob(blobs.encode(state.tensors)),
            residual=self._write_blob(blobs.encode(residual)) if residual else None,
            evidence=trained.evidence,
        )
        pending = PendingUpdate(
            round_id=state.round_id,
            update=self._write_blob(trained.blob),
            state=stored,
            coding=trained.coding,
        )
        self._commit(msgspec.structs.replace(self.journal, received=None, pending=pending))

    def commit_fold(self, fold: ComparedExamples) -> None:
        """Add what was held out to the evidence for the newest model."""
        journal = self.journal
        pending = journal.pending
        state = journal.state if pending is None else pending.state
        if state is None or state.evidence is None:
            return
        state = msgspec.structs.replace(state, evidence=state.evidence.with_fold(fold))
        if pending is None:
            self.commit(state=state)
        else:
            self.commit(pending=msgspec.structs.replace(pending, state=state))

    def update_path(self) -> Path:
        """File of the update in the outbox, or of the one that was delivered last.

        Raises:
            ProvisionError: there is none, or its bytes are damaged.
        """
        known = self.journal.pending or self.journal.delivered
        if known is None:
            raise ProvisionError(f"device store '{self.folder}': its outbox is empty")
        file = known.update
        read_blob(self.folder, file)
        return blob_path(self.folder, file)

    def commit_delivered(self) -> None:
        """The coordinator has the update: its state becomes the device's own."""
        pending = self.journal.pending
        if pending is not None:
            sent = SentUpdate(
                round_id=pending.round_id, update=pending.update, coding=pending.coding
            )
            change = {"state": pending.state, "pending": None, "delivered": sent, "former": None}
            self._commit(msgspec.structs.replace(self.journal, **change))

    def commit_head(
        self, binding: StoreBinding, state: ClientState, evidence: GateEvidence, *, examples: str
    ) -> None:
        """Keep a model of which the head alone was trained, in the place of an earlier one.

        ``examples``: names those on which it was trained.
        """
        stored = StoredState(
            round_id=state.round_id,
            transfer_id="",
            file=self._write_blob(blobs.encode(state.tensors)),
            evidence=evidence,
        )
        head = PersonalState(binding=binding, strategy="local", settings={}, state=stored)
        self.commit(head=head, head_examples=examples)

    def commit_dropped(self) -> None:
        """The round never counted: forget its payload, its update and its trained state."""
        if self.journal.stage != "idle":
            self._commit(msgspec.structs.replace(self.journal, received=None, pending=None))

    def commit(self, **changes: object) -> None:
        """Make changes of the journal's fields true together."""
        self._commit(msgspec.structs.replace(self.journal, **changes))

    def _commit(self, journal: Journal) -> None:
        journal = msgspec.structs.replace(journal, version=__version__)

        def write() -> None:
            sync_folder(self.folder)
            write_whole(self.folder / JOURNAL, msgspec.json.encode(journal))
            sync_folder(self.folder)
            forget_former(self.folder)

        self._keep(write)
        self.journal = journal
        self._sweep()

    def _write_blob(self, data: bytes) -> StoredFile:
        file = StoredFile(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        self._keep(lambda: write_whole(blob_path(self.folder, file), data))
        return file

    def _keep(self, write: Callable[[], None]) -> None:
        """Write, and again as long as ``await_storage`` says, where the disk takes no writes."""
        while True:
            try:
                write()
            except OSError as error:
                self.await_storage(self._failure(error))
            else:
                return

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(f"device store '{self.folder}': {error.strerror or error}")

    def probe(self) -> None:
        """Write and remove a little, to see whether the disk takes writes.

        Raises:
            StorageError: it does not.
        """
        path = self.folder / ("probe" + TEMPORARY)
        try:
            write_synced(path, [bytes(_PROBE_BYTES)])
            path.unlink()
        except OSError as error:
            raise self._failure(error) from error

    def _sweep(self) -> None:
        """Remove what a crash or an older commit left behind."""
        kept = {file.sha256 + BLOB_SUFFIX for file in self.journal.files}
        kept |= {digest + BUNDLE_SUFFIX for digest in self.journal.bundles}
        swept = (TEMPORARY, BLOB_SUFFIX, BUNDLE_SUFFIX)
        for path in self.folder.iterdir():
            if path.suffix in swept and path.name not in kept:
                with suppress(OSError):  # what a disk that takes no writes keeps is swept later
                    path.unlink()


def _give_up(error: StorageError) -> None:
    raise error


def lock_store(folder: Path) -> IO[bytes]:
    """Own a store until the returned file is closed; raises UnavailableError if it is in use."""
    return lock(
        folder / "lock",
        taken=f"device store '{folder}': another process uses it; "
        "stop that one or give another --store",
    )


def stored_identity(folder: Path) -> str | None:
    """The device id in a store's folder; None if there is no store.

    Raises:
        ProvisionError: it is damaged.
    """
    path = folder / _IDENTITY
    try:
        return str(json.loads(path.read_bytes())["device_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProvisionError(f"device identity '{path}': damaged ({error})") from error


def _identity(folder: Path, wanted: str | None) -> str:
    if wanted is not None:
        check_device_id(wanted)
    known = stored_identity(folder)
    if known is None:
        device_id = wanted or f"device-{secrets.token_hex(6)}"
        write_whole(folder / _IDENTITY, json.dumps({"device_id": device_id}).encode())
        sync_folder(folder)
        return device_id
    if wanted not in (None, known):
        raise ProvisionError(
            f"device store '{folder}': belongs to device '{known}', got --id '{wanted}'; "
            "leave --id out, or use another --store"
        )
    return known


def read_personal(folder: Path) -> tuple[PersonalState, ClientState]:
    """The personal state in use, read beside a process that may be using the store.

    Raises:
        InputError: there is no store, or no round was delivered yet.
        ProvisionError: the content is damaged.
    """

    def read(personal: PersonalState) -> tuple[PersonalState, ClientState]:
        return personal, load_state(folder, personal.state)

    return read_in_use(folder, read)


def read_in_use(
    folder: Path,
    read: Callable[[PersonalState], _Read],
    which: Callable[[Journal], PersonalState | None] = attrgetter("in_use"),
) -> _Read:
    """What ``read`` makes of the contents that the journal names, beside a process that may commit.

    Args:
        folder: the store's.
        read: reads a personal state's contents.
        which: state of the journal.

    Raises:
        InputError: there is no store, others may change it, or no round was delivered yet.
        ProtofleetError: what ``read`` raises, of contents that the journal still names.
    """
    if not (folder / _IDENTITY).exists():
        raise InputError(f"device store '{folder}': nothing there; join a federation first")
    check_private_folder(folder, "device store")
    for attempt in range(_READ_ATTEMPTS):
        personal = which(read_journal(folder))
        if personal is None:
            raise InputError(
                f"device store '{folder}': no round was finished yet; nothing to run, but the "
                "bundle's own values: --bundle"
            )
        try:
            return read(personal)
        except ProtofleetError:
            # The owner may have committed a newer state and removed this one meanwhile.
            if attempt == _READ_ATTEMPTS - 1 or which(read_journal(folder)) == personal:
                raise
    raise ProvisionError(f"device store '{folder}': its state changes faster than it can be read")


def load_state(folder: Path, stored: StoredState) -> ClientState:
    """A state of the store; raises ProvisionError if its bytes are damaged."""
    return ClientState(round_id=stored.round_id, tensors=_tensors(folder, stored.file))


def _tensors(folder: Path, file: StoredFile) -> dict[str, NDArray[Any]]:
    data = read_blob(folder, file)
    tensors, _ = blobs.decode(data, max_bytes=len(data))
    return tensors
