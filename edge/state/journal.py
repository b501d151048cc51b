"""What a device store's journal says, and reading it and the contents that it names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from protofleet import __version__
from protofleet.durable import sync_folder, write_whole
from protofleet.errors import ProvisionError
from protofleet.federation.outcomes.gate import GateEvidence
from protofleet.wire.codecs import Coding

JOURNAL = "journal.json"
BLOB_SUFFIX = ".blob"
BUNDLE_SUFFIX = ".pfb"
FORMAT = 3


def _with_former(journal: dict[str, Any]) -> dict[str, Any]:
    """A store may have moved to another bundle; one of before has not."""
    return journal


_STEPS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {2: _with_former}
"""From each earlier format to the next."""
OLDEST = min(_STEPS)

RoundStage = Literal["idle", "received", "outbox"]


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A content of the store, named by the SHA-256 (hex) of its bytes."""

    sha256: str
    bytes: int


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    """A ``ClientState``: its round, its tensors, and the payload it was trained from.

    ``residual``: what coding its update has left for the next one; None: nothing. ``evidence``:
    whether its model helps the owner; None: an earlier version has not looked.
    """

    round_id: int
    transfer_id: str
    file: StoredFile
    residual: StoredFile | None = None
    evidence: GateEvidence | None = None

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """Its contents."""
        return (self.file,) if self.residual is None else (self.file, self.residual)


class StoredPayload(msgspec.Struct, frozen=True, kw_only=True):
    """A complete payload that waits for its training."""

    round_id: int
    transfer_id: str
    file: StoredFile


class PendingUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An update in the outbox and the state that becomes the device's own when it is delivered.

    ``coding`` says how the update is coded.
    """

    round_id: int
    update: StoredFile
    state: StoredState
    coding: Coding = Coding()


class SentUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The update that was delivered last; ``coding`` as in ``PendingUpdate``."""

    round_id: int
    update: StoredFile
    coding: Coding = Coding()


class StoreBinding(msgspec.Struct, frozen=True, kw_only=True):
    """What a store belongs to; its state means nothing elsewhere."""

    federation: str
    bundle: str
    layout_hash: str


class PersonalState(msgspec.Struct, frozen=True, kw_only=True):
    """A state that a delivered round has made, and what it means something to.

    ``strategy`` and ``settings`` read and write it.
    """

    binding: StoreBinding
    strategy: str
    settings: dict[str, Any]
    state: StoredState


class BundleCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that came over the wire and may take the place of the present one.

    ``state``, ``rule`` and ``reason`` as in ``wire.messages.BundleProgress``; ``attempts``:
    processes that have begun to verify and rehearse it; ``sequence``, ``layout_hash``: of its
    manifest, once that is verified; ``transfer_id``: of its transfer. ``moves``: it was verified
    for another run, to which the state moves, and need not be compatible with the present one.
    """

    bundle: str
    transfer_id: str
    state: Literal["fetched", "verified", "tested", "failed"] = "fetched"
    attempts: int = 0
    sequence: int = 0
    layout_hash: str = ""
    moves: bool = False
    rule: str = ""
    reason: str = ""


class BundleFallback(msgspec.Struct, frozen=True, kw_only=True):
    """What a device goes back to if the bundle that took its place is taken back.

    ``sequence``, ``former``, ``run_id``: the store's before. ``settled``: the federation runs the
    new bundle, so that only a statement of its signer takes the device back.
    """

    binding: StoreBinding
    strategy: str
    settings: dict[str, Any]
    state: StoredState | None
    sequence: int
    former: PersonalState | None = None
    run_id: str = ""
    settled: bool = False

    @property
    def states(self) -> tuple[StoredState, ...]:
        """Whose contents must be kept."""
        known = (self.state, self.former and self.former.state)
        return tuple(one for one in known if one)


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is decided by one rename.

    ``version``: of Protofleet, that has written it.
    ``delivered``: the update of the last round that counted, because a coordinator that was
    restored from a backup may ask for it once more. ``payloads``: decoded ones that a later one may
    refer to: the last one, and the one that it referred to itself, because the coordinator may not
    know yet that the device is past that.
    ``former``: what the device predicts with after it has moved to another bundle, until a round
    with that one counts; meanwhile ``state``, of round 0, is what training begins with.
    ``run_id``: of the run that the state belongs to, once its coordinator has said it.
    ``sequence``: the largest of the bundles that the store has belonged to.
    ``candidate``, ``fallback``: the bundle that comes, and the one before, of a roll-out.
    ``replaced``: digests of bundles whose place others took by roll-outs, the latest last; a
    device that is started with one of them goes on with its own.
    ``head``: a model of which the device has trained the head alone (``personalise``), as a state
    of ``local``, of round 0; ``head_examples``: the SHA-256 of those on which.
    """

    format: int = FORMAT
    version: str = ""
    binding: StoreBinding | None = None
    strategy: str = ""
    settings: dict[str, Any] = {}
    state: StoredState | None = None
    received: StoredPayload | None = None
    pending: PendingUpdate | None = None
    delivered: SentUpdate | None = None
    payloads: tuple[StoredFile, ...] = ()
    former: PersonalState | None = None
    run_id: str = ""
    sequence: int = 0
    candidate: BundleCandidate | None = None
    fallback: BundleFallback | None = None
    replaced: tuple[str, ...] = ()
    head: PersonalState | None = None
    head_examples: str = ""

    @property
    def best(self) -> PersonalState | None:
        """What the owner may be served beside the bundle's own: what is expected to gain most."""
        rounds, head = self.in_use, self.head
        if rounds is None or head is None or rounds.state.evidence is None:
            return rounds or head
        if head.binding.bundle != rounds.binding.bundle or head.state.evidence is None:
            return rounds
        ahead = head.state.evidence.expected > rounds.state.evidence.expected
        return head if ahead else rounds

    @property
    def in_use(self) -> PersonalState | None:
        """The personal model; None before the first round has counted."""
        if self.former is not None or not self.last_round_id:
            return self.former
        if self.binding is None or self.state is None:
            return None
        return PersonalState(
            binding=self.binding,
            strategy=self.strategy,
            settings=self.settings,
            state=self.state,
        )

    @property
    def last_counted(self) -> int:
        """The round of the personal model; 0: there is none."""
        personal = self.in_use
        return personal.state.round_id if personal else 0

    @property
    def last_round_id(self) -> int:
        """The last round that counted with the present bundle; 0: none."""
        return self.state.round_id if self.state else 0

    @property
    def own_bundles(self) -> tuple[str, ...]:
        """Digests of the bundles that the device has had a part in, and that must be kept."""
        back = self.fallback
        others = (self.former, self.head, back, back and back.former)
        found = [self.binding.bundle] if self.binding else []
        return (*found, *(one.binding.bundle for one in others if one))

    @property
    def bundles(self) -> tuple[str, ...]:
        """Digests of the bundles that must be kept."""
        comes = self.candidate
        kept = comes is not None and comes.state != "failed"
        return (*self.own_bundles, comes.bundle) if comes and kept else self.own_bundles

    @property
    def stage(self) -> RoundStage:
        """Where the device stands in its round."""
        if self.pending is not None:
            return "outbox"
        return "idle" if self.received is None else "received"

    @property
    def transfers(self) -> tuple[str, ...]:
        """Payloads that are stored or used already and need not be fetched again."""
        found = [self.state.transfer_id] if self.state and self.state.round_id else []
        found += [self.received.transfer_id] if self.received else []
        found += [self.pending.state.transfer_id] if self.pending else []
        return tuple(found)

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """Every content that must be kept."""
        found = [*self.payloads, *(self.state.files if self.state else ())]
        found += [self.received.file] if self.received else []
        found += [self.pending.update, *self.pending.state.files] if self.pending else []
        found += [self.delivered.update] if self.delivered else []
        found += self.former.state.files if self.former else ()
        found += self.head.state.files if self.head else ()
        for state in self.fallback.states if self.fallback else ():
            found += state.files
        return tuple(found)


def read_journal(folder: Path) -> Journal:
    """The journal in a store's folder; an empty one before the first commit.

    Raises:
        ProvisionError: it is damaged or of another format.
    """
    path = folder / JOURNAL
    if not path.exists():
        return Journal()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        return msgspec.convert(_brought_up(path, found), Journal)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProvisionError(f"device store '{path}': damaged ({error})") from error


def keep_former(folder: Path) -> None:
    """Keep a journal of an earlier format as it is, until ``forget_former``."""
    path = folder / JOURNAL
    if path.exists():
        data = path.read_bytes()
        found = msgspec.json.decode(data, type=_Format).format
        if found != FORMAT:
            write_whole(folder / f"journal.format{found}.json", data)
            sync_folder(folder)


def forget_former(folder: Path) -> None:
    """A journal of this format is written: remove those of before."""
    for former in folder.glob("journal.format*.json"):
        former.unlink()


class _Format(msgspec.Struct):
    format: int


def _brought_up(path: Path, journal: dict[str, Any]) -> dict[str, Any]:
    """A journal of any format that is read as one of ``FORMAT``; raises ProvisionError."""
    found = journal.get("format")
    if not isinstance(found, int) or not OLDEST <= found <= FORMAT:
        by = str(journal.get("version", ""))[:40]
        remedy = f"install version {by} or a later one" if by else "use another --store"
        raise ProvisionError(
            f"device store '{path}': this is Protofleet {__version__}, which reads formats "
            f"{OLDEST} to {FORMAT}, got format {str(found)[:40]}: {remedy}"
        )
    for step in range(found, FORMAT):
        journal = _STEPS[step](journal)
    return {**journal, "format": FORMAT}


def blob_path(folder: Path, file: StoredFile) -> Path:
    """Where a content lies."""
    return folder / (file.sha256 + BLOB_SUFFIX)


def bundle_path(folder: Path, digest: str) -> Path:
    """Where the copy of a bundle lies, if the store has one."""
    return folder / (digest + BUNDLE_SUFFIX)


def read_blob(folder: Path, file: StoredFile) -> bytes:
    """A content of the store.

    Raises:
        ProvisionError: it is absent or not what was written.
    """
    path = blob_path(folder, file)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise ProvisionError(
            f"device store '{path}': expected {file.bytes} bytes with the hash in its name, "
            f"got {len(data)} other ones; the storage is damaged, use another --store"
        )
    return data
