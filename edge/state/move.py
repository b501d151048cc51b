"""A store that moves to another bundle of its federation, and what of its state it takes along.

What a strategy's clients *carry* (``Strategy.carried``: the parameters that no payload replaces,
and buffers that belong to those alone) is kept by name and shape. A tensor whose shapes differ in
the number of classes alone keeps the rows of the classes that both bundles name. Everything else
starts as in a new device: tensors that do not fit, optimiser's moments, control variates, mixing
weights, received prototypes; and the round counts from 1, because a federation with another bundle
is another run.

The model that the device predicts with does not change by this. It stays the one before, with the
bundle before, until a round with the new bundle has counted; a store that is joined with the bundle
before again is as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.state.journal import PersonalState, StoreBinding, bundle_path
from protofleet.edge.state.store import Store, read_personal
from protofleet.errors import InputError, ProtofleetError, ProvisionError
from protofleet.strategies import build
from protofleet.strategies.common import BUFFERS, PARAMS
from protofleet.strategies.types import ClientState
from protofleet.tensors import Tensors

_log = logging.getLogger(__name__)

_FAR_SHIFT, _FAR_SCALE = 0.5, 2.0
"""By how many standard deviations, and by what factor, the scale of a channel may change."""

Fate = Literal["kept", "kept in part", "new", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFate:
    """What becomes of one tensor of a state.

    Attributes:
        name: with its prefix.
        fate: ``kept`` as it is, ``kept in part`` (some classes' rows), ``new`` from the new bundle,
            or ``dropped``.
        why: in words; empty for what is kept.
    """

    name: str
    fate: Fate
    why: str = ""

    def __str__(self) -> str:
        return f"{self.fate}: {self.name}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What a store takes along to another bundle.

    Attributes:
        tensors: what becomes of each tensor of the state and of the new bundle's model, by name.
        start: the state that training begins with; None: the strategy's own, nothing is kept.
        notes: what else a person should know.
    """

    tensors: tuple[TensorFate, ...]
    start: Mapping[str, NDArray[Any]] | None
    notes: tuple[str, ...] = ()

    def by_fate(self) -> dict[str, list[str]]:
        """Names of tensors: ``kept``, ``kept_in_part``, ``new`` and ``dropped``."""
        return {
            fate.replace(" ", "_"): [one.name for one in self.tensors if one.fate == fate]
            for fate in get_args(Fate)
        }

    def __str__(self) -> str:
        counts = {fate: len(names) for fate, names in self.by_fate().items() if names}
        found = [f"{count} {fate.replace('_', ' ')}" for fate, count in counts.items()]
        return f"tensors: {', '.join(found) or 'none is kept'}"


class BundleMove:
    """A store's way to a federation and a bundle: planned when it is made, then committed once.

    In between nothing in the store has changed, so that a device can learn first whether the
    federation runs this bundle at all.

    Args:
        store: open.
        binding: the federation and ``bundle``.
        bundle: verified.
        keep_bundle: whether the store keeps a copy, with which it predicts, and moves later.

    Attributes:
        store: the store.

    Raises:
        ProvisionError: the store belongs to another federation, its state cannot move, or it has
            had a newer bundle of another sequence number.
    """

    def __init__(
        self, store: Store, binding: StoreBinding, bundle: Bundle, *, keep_bundle: bool = True
    ) -> None:
        self.store, self._binding = store, binding
        self._bundle, self._keep_bundle = bundle, keep_bundle
        bound, former = store.journal.binding, store.journal.former
        self._restored = former if former and former.binding == binding else None
        self._move: Move | None = None
        if bound is not None:
            store.check_bound(binding, "federation")
        store.check_sequence(bundle.manifest)
        if self.committed and keep_bundle:
            store.keep_bundle(bundle)
        elif bound is not None and not self.committed:
            self._move = None if self._restored else _planned(store, bundle)

    @property
    def committed(self) -> bool:
        """Whether the store belongs to the federation and the bundle."""
        return self.store.journal.binding == self._binding

    def commit(self) -> Move | None:
        """Tie the store to them, by a move if it has another bundle; nothing if it is tied.

        Returns:
            What was taken along, if the store has moved; it is in the log, too.

        Raises:
            UnavailableError: the disk fails.
        """
        store, bound, move = self.store, self.store.journal.binding, self._move
        if self.committed:
            return None
        if self._keep_bundle:
            store.keep_bundle(self._bundle)
        if bound is None:
            store.bind(self._binding, sequence=self._bundle.manifest.sequence)
        elif self._restored is not None:
            store.commit_restored(self._restored)
            _log.warning(
                "back at bundle %s: no round has counted since", _short(self._binding.bundle)
            )
        elif move is not None:
            tell_move(move, bound.bundle, self._binding.bundle)
            sequence = self._bundle.manifest.sequence
            store.commit_moved(self._binding, move.start, sequence=sequence)
        return move


def plan(personal: PersonalState, state: ClientState, old: Bundle, new: Bundle) -> Move:
    """What becomes of each tensor if the state of a model moves from one bundle to another.

    Raises:
        ProvisionError: the state would mean something else with the new bundle.
    """
    name, settings = personal.strategy, personal.settings
    try:
        before, after = (build(name, settings, bundle.model()) for bundle in (old, new))
    except InputError as error:
        raise ProvisionError(f"the new bundle does not suit its strategy: {error}") from error
    if not after.carried:
        return Move(
            tensors=(),
            start=None,
            notes=(f"strategy '{name}' takes nothing along: its model comes from the federation",),
        )
    if old.manifest.task != new.manifest.task:
        raise ProvisionError(f"the task was {old.manifest.task}, it is now {new.manifest.task}")
    notes = check_inputs(old.manifest.preprocessing, new.manifest.preprocessing)
    fits = _Fits(old.manifest.outputs, new.manifest.outputs)
    start = dict(after.client_init(new.model()).tensors)
    fates = _fates(state.tensors, start, before.carried & after.carried, fits)
    if not any(fate.fate in ("kept", "kept in part") for fate in fates):
        raise ProvisionError(
            f"no tensor of the personal state fits the new bundle '{new.manifest.name}', such as "
            f"{fates[0]}: it holds another model"
        )
    for fate in fates:
        if fate.fate == "kept":
            start[fate.name] = state.tensors[fate.name]
        elif fate.fate == "kept in part":
            start[fate.name] = fits.joined(state.tensors[fate.name], start[fate.name])
    return Move(tensors=fates, start=start, notes=notes)


class _Fits:
    """How a tensor of the old model's shape fits the new model's.

    Raises:
        ProvisionError: as many classes under other names or in another order: shapes are silent.
    """

    def __init__(self, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        if old != new and len(old) == len(new):
            raise ProvisionError(
                f"the classes were {list(old)}, the new bundle has {list(new)}: as many, so that "
                "shapes do not show which rows of the state belong to which class"
            )
        self._counts = len(old), len(new)
        self.rows = [(old.index(name), k) for k, name in enumerate(new) if name in old]

    def axis(self, old: tuple[int, ...], new: tuple[int, ...]) -> int | None:
        """The only axis in which shapes differ, if that is as long as there are classes."""
        differ = [axis for axis, pair in enumerate(zip(old, new, strict=False)) if len({*pair}) > 1]
        if len(old) != len(new) or len(differ) != 1 or not self.rows:
            return None
        return differ[0] if (old[differ[0]], new[differ[0]]) == self._counts else None

    def joined(self, old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        """A copy of ``new`` with the rows of ``old`` for the classes that both have."""
        axis = self.axis(old.shape, new.shape)
        made = np.array(new)
        if axis is not None:
            sources, targets = zip(*self.rows, strict=True)
            np.moveaxis(made, axis, 0)[list(targets)] = np.moveaxis(old, axis, 0)[list(sources)]
        return made


def _fates(
    old: Tensors, new: Tensors, carried: Collection[str], fits: _Fits
) -> tuple[TensorFate, ...]:
    """What becomes of every tensor of the old state and of a new device's, by name."""
    found = {name: _fate(name, old, new, carried, fits) for name in sorted({*old, *new})}
    lost = [
        name
        for name in carried
        if not name.startswith(BUFFERS) and found[name].fate not in ("kept", "kept in part")
    ]
    if not lost:
        return tuple(found.values())
    why = f"belongs to parameters of which '{min(lost)}' is not kept"
    return tuple(
        replace(one, fate="new", why=why)
        if one.fate == "kept" and one.name.startswith(BUFFERS)
        else one
        for one in found.values()
    )


def _fate(
    name: str, old: Tensors, new: Tensors, carried: Collection[str], fits: _Fits
) -> TensorFate:
    if name not in new:
        known = name.startswith((PARAMS, BUFFERS))
        why = "the new model has no such tensor" if known else "belongs to the run that is over"
        return TensorFate(name=name, fate="dropped", why=why)
    if name not in old:
        return TensorFate(name=name, fate="new", why="the state has no such tensor")
    if name not in carried:
        own = name.startswith((PARAMS, BUFFERS))
        why = "comes with the federation's model" if own else "belongs to the run that is over"
        return TensorFate(name=name, fate="new", why=why)
    was, now = old[name], new[name]
    if was.shape == now.shape and was.dtype == now.dtype:
        return TensorFate(name=name, fate="kept")
    if fits.axis(was.shape, now.shape) is not None:
        why = f"{was.shape} is now {now.shape}: the rows of {len(fits.rows)} classes"
        return TensorFate(name=name, fate="kept in part", why=why)
    return TensorFate(name=name, fate="new", why=f"{was.shape} is now {now.shape}")


def check_inputs(old: Preprocessing, new: Preprocessing) -> tuple[str, ...]:
    """Notes on how the model's input has changed.

    Raises:
        ProvisionError: the old model's input is something else than the new one's.
    """
    for name in ("input_shape", "channels", "rate_hz", "window"):
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            raise ProvisionError(
                f"the model's input was {name} {was}, with the new bundle it is {now}"
            )
    if old.units and new.units and old.units != new.units:
        raise ProvisionError(
            f"the model's input was in units {old.units}, with the new bundle it is in {new.units}"
        )
    mean, std = np.asarray(old.mean), np.asarray(old.std)
    shift = float(np.max(np.abs(np.asarray(new.mean) - mean) / std))
    ratio = np.asarray(new.std) / std
    scale = float(np.max(np.maximum(ratio, 1 / ratio)))
    if shift > _FAR_SHIFT or scale > _FAR_SCALE:
        raise ProvisionError(
            f"the model's input is scaled otherwise with the new bundle: means differ by up to "
            f"{shift:.2g} standard deviations, standard deviations by a factor of {scale:.2g}"
        )
    if shift or scale != 1:
        note = (
            f"the input is scaled a little otherwise: means differ by up to {shift:.2g} standard "
            f"deviations, these by a factor of {scale:.2g}"
        )
        return (note,)
    return ()


def plan_move(store: Store, new: Bundle) -> Move:
    """What a store that nobody else writes to takes along to a verified bundle.

    Raises:
        ProtofleetError: its state cannot move there.
    """
    personal = store.journal.in_use
    if personal is None:
        move = Move(tensors=(), start=None, notes=("no round has counted: nothing to keep",))
    else:
        copy = bundle_path(store.folder, personal.binding.bundle)
        if not copy.exists():
            raise ProvisionError("it has no copy of its bundle to compare the new one with")
        move = plan(*read_personal(store.folder), Bundle.open(copy, any_signer=True), new)
    pending = store.journal.pending
    if pending is not None:
        note = f"the update of round {pending.round_id}, which had no receipt yet, is dropped"
        move = replace(move, notes=(*move.notes, note))
    return move


def _planned(store: Store, new: Bundle) -> Move:
    """As ``plan_move``; errors name the store, and what else a person can do."""
    try:
        return plan_move(store, new)
    except ProtofleetError as error:
        raise ProvisionError(
            f"device store '{store.folder}': cannot move to bundle {_short(new.digest)}: {error}; "
            f"{store.remedy}"
        ) from error


def tell_move(move: Move, old: str, new: str) -> None:
    """Log what becomes of every tensor on the way from one bundle, by digest, to another."""
    _log.warning("moving from bundle %s to %s: %s", _short(old), _short(new), move)
    for line in (*move.tensors, *move.notes):
        _log.warning("  %s", line)
    _log.warning("predictions stay those of the model before until a round has counted")


def _short(digest: str) -> str:
    return digest[:16]
