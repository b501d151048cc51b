"""Another bundle over the wire, while a run goes on: fetched and rehearsed beside its rounds.

::

    offered ──► fetched ──► verified ──► tested ──► active (between two rounds) ──► settled
                   │            │                      │
                   └────────────┴──► failed            └── taken back: the bundle before

Nothing of it counts before one commit of the store's journal: until then the device is as it was,
and a kill leaves either bundle whole. The bundle before stays with its state beside the new one.
As long as the federation does not run the new bundle itself, its announcement alone takes the
device back; from then on (*settled*) only a statement of the bundle's signer does, for what is
older may have what the newer has repaired.

A federation that begins another run (``run_id``), with a bundle of whatever layout, hands it to the
devices of the run before in the same way. Rounds of that run are over; a device *moves* its state
(``move``): what fits by name and shape goes along, all of it stays beside.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from protofleet.bundle import Bundle, keys
from protofleet.bundle.manifest import Manifest
from protofleet.durable import move_whole
from protofleet.edge.state.journal import (
    BundleCandidate,
    BundleFallback,
    Journal,
    StoreBinding,
    bundle_path,
)
from protofleet.edge.state.move import Move, check_inputs, plan_move, tell_move
from protofleet.edge.state.store import Store
from protofleet.errors import ProtofleetError, ProvisionError, RefusedError
from protofleet.federation.compatibility import check_compatible
from protofleet.wire.device_endpoint import MOST_BUNDLE_BYTES, DeviceEndpoint
from protofleet.wire.messages import Announcement, BundleOffer, BundleProgress, TransferOffer
from protofleet.wire.transfers.transfer import Received
from protofleet.wire.trust.identity import BundleWithdrawal, read_statement

_log = logging.getLogger(__name__)

_DIGEST = re.compile("[0-9a-f]{64}")
ATTEMPTS = 5
"""Processes that may end in the middle of checking one bundle: so many times it is its fault."""
_SPARE_BYTES = 64 * 1024 * 1024
"""Left free on the disk beside the bundle: rounds go on."""
_REPLACED = 16

Rehearse = Callable[[Bundle, Path], None]
"""Raises ProtofleetError unless a verified bundle, in this file, runs and trains here."""


class Upgrades:
    """What one device does about other bundles of its federation.

    Args:
        endpoint: of the device.
        store: bound to the present bundle.
        manifest: of the present bundle.
        present: its digest.
        rehearse: of the device; None: it takes no bundles over the wire.
        trusted: raw public keys whose bundles are accepted; empty: the user's trust store.
    """

    def __init__(  # noqa: PLR0913 - its parts, each by name
        self,
        endpoint: DeviceEndpoint,
        store: Store,
        manifest: Manifest,
        *,
        present: str,
        rehearse: Rehearse | None = None,
        trusted: Collection[bytes] = (),
    ) -> None:
        self._endpoint, self._store = endpoint, store
        self._manifest, self._present = manifest, present
        self._rehearse, self._trusted = rehearse, trusted
        self._announced: Announcement | None = None
        self._other_run: Announcement | None = None
        self._offer: BundleOffer | None = None
        self._outcomes: deque[BundleCandidate] = deque()
        self._checking: threading.Thread | None = None
        self._told: BundleProgress | None = None
        known = store.journal.candidate
        if known is not None and known.state == "failed":
            store.commit(candidate=None)  # a new process may be of another opinion

    @property
    def progress(self) -> BundleProgress | None:
        """With the bundle that was offered last, for the presence; None: there is none."""
        one = self._store.journal.candidate
        if one is None:
            return None
        return BundleProgress(
            bundle=one.bundle, state=one.state, rule=one.rule[:64], reason=one.reason[:500]
        )

    def offered(self, offer: BundleOffer) -> None:
        """Fetch an offered bundle; call it for every offer, repeated ones too.

        Raises:
            RefusedError: rule ``announcement``, ``kind``, ``bundle``, ``sequence`` or ``disk``;
                nothing has changed.
        """
        payload = self._checked(offer)
        known = self._store.journal.candidate
        if known is not None and known.bundle != offer.bundle:
            self._store.commit(candidate=None)
        elif known is not None and known.state != "failed":
            if known.moves and not self._is_of_other_run(offer.bundle):
                again = msgspec.structs.replace(known, state="fetched", moves=False, attempts=0)
                self._store.commit(candidate=again)
            self._endpoint.remember_bundle(payload.transfer_id)
        self._offer = offer
        self._endpoint.expect_bundle(payload, offer.shared)

    def _checked(self, offer: BundleOffer) -> TransferOffer:
        """The offer's transfer, if the offer may be taken up."""
        payload, journal = offer.payload, self._store.journal
        other = self._is_of_other_run(offer.bundle)
        if not other and (self._announced is None or journal.binding is None):
            raise RefusedError("announcement", "bundle: expected an announcement that fits first")
        if payload is None or (payload.kind, payload.round_id) != ("bundle", 0):
            raise RefusedError("kind", "bundle: expected a transfer of kind 'bundle' and round 0")
        least = journal.sequence + other
        ours = {self._present, *journal.own_bundles}
        rules = (
            ("bundle", self._rehearse is not None, "none: this device keeps no bundles", "one"),
            ("bundle", _DIGEST.fullmatch(offer.bundle), "64 hex digits", offer.bundle[:64]),
            ("has-bundle", offer.bundle not in ours, "another one than it has", offer.bundle[:16]),
            (
                "sequence",
                offer.sequence >= least or self._is_restored(offer.bundle),
                f"sequence {least} or later, or its signer's word",
                offer.sequence,
            ),
        )
        for rule, holds, expected, got in rules:
            if not holds:
                raise RefusedError(rule, f"bundle: expected {expected}, got {got}")
        self._check_disk(payload.total_bytes)
        return payload

    def _check_disk(self, size: int) -> None:
        free = shutil.disk_usage(self._store.folder).free
        if size <= MOST_BUNDLE_BYTES and free < size + _SPARE_BYTES:
            raise RefusedError(
                "disk",
                f"bundle: expected {size + _SPARE_BYTES} bytes free on the disk of device store "
                f"'{self._store.folder}', got {free}",
            )

    def received(self, event: Received) -> None:
        """A bundle is complete: keep it, unless another was offered meanwhile."""
        offer, transfer_id = self._offer, event.offer.transfer_id
        if offer is None or offer.payload is None or offer.payload.transfer_id != transfer_id:
            self._endpoint.cancel(transfer_id)
            return
        try:
            move_whole(event.path, bundle_path(self._store.folder, offer.bundle))
        except OSError as error:
            self._endpoint.reject_bundle(transfer_id, "disk", f"bundle: {error}")
            return
        moves = self._is_of_other_run(offer.bundle)
        candidate = BundleCandidate(bundle=offer.bundle, transfer_id=transfer_id, moves=moves)
        self._store.commit(candidate=candidate)
        self._endpoint.accept(transfer_id)

    def advance(self, *, idle: bool) -> bool:
        """Go on with the bundle that was fetched; whether there is news for the presence.

        Args:
            idle: whether no round that counts is in progress and nothing holds the device: it may
                rehearse.
        """
        while self._outcomes:
            candidate = self._outcomes.popleft()
            if candidate.state in ("tested", "failed"):
                self._checking = None
            present = self._store.journal.candidate
            if present is not None and present.transfer_id == candidate.transfer_id:
                self._keep(candidate)  # else another one was offered since
        known = self._store.journal.candidate
        waits = known is not None and known.state in ("fetched", "verified")
        if idle and waits and known is not None and self._checking is None:
            self._begin(known)
        before, self._told = self._told, self.progress
        return self._told != before

    def _keep(self, candidate: BundleCandidate) -> None:
        self._store.commit(candidate=candidate)
        if candidate.state == "failed":
            _log.warning("bundle %s failed: %s", candidate.bundle[:16], candidate.reason)
            refusal = (candidate.transfer_id, candidate.rule, candidate.reason)
            self._endpoint.reject_bundle(*refusal)

    def _begin(self, candidate: BundleCandidate) -> None:
        """Check it in a thread of its own; what a process dies of is not tried for ever."""
        begun = msgspec.structs.replace(candidate, attempts=candidate.attempts + 1)
        if candidate.attempts >= ATTEMPTS:
            reason = f"the process has ended {ATTEMPTS} times while it was checked"
            self._outcomes.append(_failed(begun, "rehearsal", reason))
            return
        self._store.commit(candidate=begun)
        path = bundle_path(self._store.folder, begun.bundle)
        thread = threading.Thread(
            target=self._check, args=(begun, path), name="rehearsal", daemon=True
        )
        self._checking = thread
        thread.start()

    def _check(self, candidate: BundleCandidate, path: Path) -> None:
        """Verify and rehearse, in its thread."""
        try:
            bundle = self._verified(candidate, path)
            candidate = msgspec.structs.replace(
                candidate,
                state="verified",
                sequence=bundle.manifest.sequence,
                layout_hash=bundle.manifest.layout_hash,
            )
            self._tell(candidate)
            if self._rehearse is not None:
                self._rehearse(bundle, path)
            self._tell(msgspec.structs.replace(candidate, state="tested"))
        except RefusedError as error:
            self._tell(_failed(candidate, error.rule, str(error)))
        except ProtofleetError as error:
            self._tell(_failed(candidate, "rehearsal", str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a bundle leads to, the device stays
            _log.debug("rehearsal failed", exc_info=True)
            self._tell(_failed(candidate, "rehearsal", f"{type(error).__name__}: {error}"))

    def _tell(self, candidate: BundleCandidate) -> None:
        self._outcomes.append(candidate)
        self._endpoint.wake()

    def _verified(self, candidate: BundleCandidate, path: Path) -> Bundle:
        bundle = Bundle.open(path, trusted=self._trusted)
        if bundle.digest != candidate.bundle:
            raise RefusedError(
                "bundle",
                f"bundle: expected {candidate.bundle[:16]}, as offered, got {bundle.digest[:16]}",
            )
        if not self._is_restored(bundle.digest):
            try:
                self._store.check_sequence(bundle.manifest)
            except ProvisionError as error:
                raise RefusedError("sequence", str(error)) from error
        if candidate.moves:
            self._check_later(bundle.manifest)
        else:
            check_compatible(self._manifest, bundle.manifest)
            check_inputs(self._manifest.preprocessing, bundle.manifest.preprocessing)
        return bundle

    def _check_later(self, manifest: Manifest) -> None:
        """No old run's bundle brings a device back there."""
        least, sequence = self._store.journal.sequence + 1, manifest.sequence
        if max(sequence, manifest.replaces_up_to) < least:
            raise RefusedError(
                "sequence",
                f"bundle '{manifest.name}': expected sequence {least} or later for another run, "
                f"got {sequence}; export it with --sequence {least}",
            )

    def announced(self, announcement: Announcement) -> None:
        """Take an announcement that names the present bundle, and passes every other rule."""
        self._announced, self._other_run = announcement, None
        journal = self._store.journal
        fallback, binding = journal.fallback, journal.binding
        runs_ours = binding is not None and announcement.bundle == binding.bundle
        if announcement.run_id not in ("", journal.run_id):
            self._store.commit(run_id=announcement.run_id)
        if runs_ours and fallback is not None and not fallback.settled:
            sequence = max(journal.sequence, self._manifest.sequence)
            settled = msgspec.structs.replace(fallback, settled=True)
            self._store.commit(sequence=sequence, fallback=settled)

    @property
    def has_other_run(self) -> bool:
        """Whether the bundle of another run is here: rounds of the present one count no more."""
        candidate = self._store.journal.candidate
        if candidate is None or candidate.state == "failed":
            return False
        return self._is_of_other_run(candidate.bundle)

    def _is_of_other_run(self, digest: str) -> bool:
        return self._other_run is not None and digest == self._other_run.bundle

    def is_taken_back(self, announcement: Announcement) -> bool:
        """Whether an announcement that does not name the present bundle takes the device back.

        If not, what it names may be offered, in this run or in another one.

        Raises:
            RefusedError: rule ``withdrawal``: it would, but for the statement that it lacks.
        """
        self._other_run = None
        journal = self._store.journal
        fallback, binding = journal.fallback, journal.binding
        if fallback is not None and announcement.bundle == fallback.binding.bundle:
            if fallback.settled:
                self._check_withdrawal(announcement, fallback.binding.bundle)
            return True
        if announcement.run_id not in ("", journal.run_id):
            self._other_run = announcement
        elif binding is not None and binding.bundle == self._present:
            if announcement.withdrawal:
                self._check_withdrawal(announcement, announcement.bundle)
            self._announced = announcement
        return False

    def go_back(self) -> dict[str, Any]:
        """Belong to the bundle before again, as it was; figures for the report."""
        journal = self._store.journal
        fallback, left = journal.fallback, journal.binding
        if fallback is None or left is None:
            return {}
        restored = fallback.binding.bundle
        former = fallback.former
        if former is None and not (fallback.state and fallback.state.round_id):
            former = journal.former  # as versions wrote it whose fallback had none
        self._store.commit(
            binding=fallback.binding,
            strategy=fallback.strategy,
            settings=fallback.settings,
            state=fallback.state,
            sequence=fallback.sequence,
            former=former,
            run_id=fallback.run_id,
            received=None,
            pending=None,
            delivered=None,
            payloads=(),
            candidate=None,
            fallback=None,
            replaced=_replaced(journal.replaced, restored, left.bundle),
        )
        return {"bundle": restored, "former": left.bundle, "taken_back": True}

    @property
    def due(self) -> bool:
        """Whether the device is to switch as soon as no round is in progress."""
        candidate, announced = self._store.journal.candidate, self._announced
        if candidate is None or candidate.state != "tested":
            return False
        if self._other_run is not None:
            return self._is_of_other_run(candidate.bundle)
        if announced is None or candidate.moves:
            return False
        return candidate.bundle in (announced.bundle, *announced.bundles)

    def switch(self) -> dict[str, Any] | None:
        """Belong to the bundle that was tested.

        Everything else stays; but to another run's the state moves.

        Returns:
            Figures for the report; None: the bundle has failed after all.
        """
        journal = self._store.journal
        candidate, left = journal.candidate, journal.binding
        if candidate is None:
            return None
        if self._other_run is not None:
            return self._move(candidate, self._other_run)
        if left is None:
            return None
        restored = self._is_restored(candidate.bundle)
        self._store.commit(
            binding=StoreBinding(
                federation=left.federation,
                bundle=candidate.bundle,
                layout_hash=candidate.layout_hash,
            ),
            candidate=None,
            fallback=_fallback(journal),
            sequence=candidate.sequence if restored else journal.sequence,
            replaced=_replaced(journal.replaced, candidate.bundle, left.bundle),
        )
        return {"bundle": candidate.bundle, "former": left.bundle, "taken_back": restored}

    def _move(self, candidate: BundleCandidate, other: Announcement) -> dict[str, Any] | None:
        """Belong to another run's bundle, with what fits of the state."""
        journal, path = self._store.journal, bundle_path(self._store.folder, candidate.bundle)
        try:
            bundle = Bundle.open(path, trusted=self._trusted)
            self._check_later(bundle.manifest)
        except ProtofleetError as error:
            rule = error.rule if isinstance(error, RefusedError) else "bundle"
            self._keep(_failed(candidate, rule, str(error)))
            return None
        move = self._planned(bundle, other.strategy)
        tell_move(move, self._present, bundle.digest)
        left = [] if journal.binding is None else [journal.binding.bundle]
        self._store.commit_moved(
            StoreBinding(
                federation=other.federation,
                bundle=bundle.digest,
                layout_hash=bundle.manifest.layout_hash,
            ),
            move.start,
            sequence=max(bundle.manifest.sequence, journal.sequence),
            fallback=_fallback(journal),
            replaced=_replaced(journal.replaced, bundle.digest, *left, self._present),
        )
        figures = {"bundle": bundle.digest, "former": self._present, "taken_back": False}
        return {**figures, "tensors": move.by_fate(), "notes": list(move.notes)}

    def _planned(self, bundle: Bundle, strategy: str) -> Move:
        """What goes along; a state that cannot, because it would mean something else, does not."""
        personal = self._store.journal.in_use
        try:
            if personal is not None and personal.strategy != strategy:
                raise ProvisionError(
                    f"it is of strategy '{personal.strategy}', the federation now runs '{strategy}'"
                )
            return plan_move(self._store, bundle)
        except ProtofleetError as error:
            return Move(
                tensors=(), start=None, notes=(f"nothing of the state goes along: {error}",)
            )

    def _is_restored(self, digest: str) -> bool:
        """Whether the signer of the present bundle says that devices go back to ``digest``."""
        if self._announced is None or not self._announced.withdrawal:
            return False
        try:
            self._check_withdrawal(self._announced, digest)
        except RefusedError:
            return False
        return True

    def _check_withdrawal(self, announcement: Announcement, restored: str) -> None:
        binding, signers = self._store.journal.binding, self._trusted or keys.user_trust()
        try:
            said = read_statement(
                announcement.withdrawal,
                BundleWithdrawal,
                signers,
                federation=announcement.federation,
            )
        except RefusedError as error:
            raise RefusedError(
                "withdrawal",
                f"bundle {restored[:16]} is older: expected the signer's statement that devices go "
                f"back to it ({error})",
            ) from error
        ours = "" if binding is None else binding.bundle
        if (said.withdrawn, said.restored) != (ours, restored):
            raise RefusedError(
                "withdrawal",
                f"expected a statement that {ours[:16]} makes room for {restored[:16]}, got "
                f"{said.withdrawn[:16]} for {said.restored[:16]}",
            )


def _fallback(journal: Journal) -> BundleFallback | None:
    """The way back to what a journal says; None: it says nothing."""
    if journal.binding is None:
        return None
    return BundleFallback(
        binding=journal.binding,
        strategy=journal.strategy,
        settings=journal.settings,
        state=journal.state,
        sequence=journal.sequence,
        former=journal.former,
        run_id=journal.run_id,
    )


def _replaced(before: tuple[str, ...], taken: str, *left: str) -> tuple[str, ...]:
    """Digests whose place the bundle ``taken`` has, the latest last."""
    known = dict.fromkeys((*(one for one in before if one not in left), *left))
    return tuple(one for one in known if one != taken)[-_REPLACED:]


def _failed(candidate: BundleCandidate, rule: str, reason: str) -> BundleCandidate:
    line = " ".join(reason.split())[:500]
    return msgspec.structs.replace(candidate, state="failed", rule=rule[:64], reason=line)


def bundle_in_place(store: Store, given: Bundle) -> Path | None:
    """The store's copy of the bundle that took the place of ``given``; None: none has."""
    journal = store.journal
    if journal.binding is None or journal.binding.bundle == given.digest:
        return None
    if given.digest not in journal.replaced:
        return None
    path = bundle_path(store.folder, journal.binding.bundle)
    return path if path.exists() else None
