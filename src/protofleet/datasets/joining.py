"""Several data sets as one: classes under common names, a few people of each, one pool of all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.pool import Pool
from protofleet.errors import InputError

JoinClasses = Literal["equal", "union", "intersection"]
"""Which classes several data sets have together: all must have the same, or those of any, or of
every one."""


def renamed(pool: Pool, names: Mapping[str, str]) -> Pool:
    """The pool with other class names; classes that get one name become one class.

    Args:
        pool: a data set.
        names: new name by the published one; classes that it lacks keep theirs.

    Raises:
        InputError: it names a class that the data set has not.
    """
    if unknown := names.keys() - set(pool.classes):
        raise InputError(
            f"rename: '{min(unknown)}' is no class; the data set has {', '.join(pool.classes)}"
        )
    new = [names.get(name, name) for name in pool.classes]
    return numbered_as(replace(pool, classes=tuple(new)), tuple(dict.fromkeys(new)))


def first_people(pool: Pool, count: int) -> Pool:
    """The examples of at most so many owners, the first by name as text: ``10`` is before ``2``.

    Raises:
        InputError: the data set has no owners.
    """
    if pool.client is None:
        raise InputError("people: the data set has no owners; leave it out")
    return taken(pool, np.isin(pool.client, np.unique(pool.client)[:count]))


def outsiders(pool: Pool, clients: Collection[str]) -> Pool:
    """The examples of everybody who is no client.

    Raises:
        InputError: there is nobody else.
    """
    if pool.client is None or not (others := ~np.isin(pool.client, list(clients))).any():
        raise InputError(
            "pretraining: expected people who are no clients, got none; set 'clients' of the "
            "partition, or 'people' of the data sets, below their number"
        )
    return taken(pool, others)


def joined(pools: Sequence[tuple[str, Pool]], classes: JoinClasses = "equal") -> Pool:
    """Data sets one behind the other; an owner's name is ``<data set>-<owner>``.

    Args:
        pools: data sets of people by name.
        classes: ``union`` numbers the classes by their first appearance, ``intersection`` as the
            first data set does, and leaves out examples of the others.

    Raises:
        InputError: a data set has no owners, examples of another shape, or with ``equal`` other
            classes; or no class is in all of them.
    """
    _check_alike(pools, classes)
    common = _common([pool.classes for _, pool in pools], classes)
    every = [(name, numbered_as(pool, common)) for name, pool in pools]
    return Pool(
        x=np.concatenate([pool.x for _, pool in every]),
        y=np.concatenate([pool.y for _, pool in every]),
        classes=common,
        targets=pools[0][1].targets,
        client=np.concatenate([_prefixed(name, pool) for name, pool in every]),
        recording=_counted_on([pool.recording for _, pool in every]),
        follows=_stacked([pool.follows for _, pool in every]),
        is_test=_stacked([pool.is_test for _, pool in every]),
    )


def taken(pool: Pool, rows: NDArray[np.bool_]) -> Pool:
    """The examples that a mask ``(n,)`` chooses.

    One whose predecessor is left out follows none.
    """
    follows = pool.follows
    if follows is not None:
        follows = (follows & np.concatenate([[False], rows[:-1]]))[rows]
    per_example = ("x", "y", "client", "recording", "is_test", "boxes")
    values = {name: getattr(pool, name) for name in per_example}
    kept = {name: value[rows] for name, value in values.items() if value is not None}
    return replace(pool, **kept, follows=follows)


def numbered_as(pool: Pool, classes: tuple[str, ...]) -> Pool:
    """The examples of these classes, numbered in this order."""
    if pool.classes == classes:
        return pool
    number = {name: index for index, name in enumerate(classes)}
    new = np.array([number.get(name, -1) for name in pool.classes], np.int64)[pool.y]
    kept = taken(replace(pool, y=np.maximum(new, 0), classes=classes), new >= 0)
    return replace(kept, y=new[new >= 0])


def _check_alike(pools: Sequence[tuple[str, Pool]], classes: JoinClasses) -> None:
    first_name, first = pools[0]
    shape, names = first.x.shape[1:], list(first.classes)
    for name, pool in pools:
        if pool.client is None or pool.x.shape[1:] != shape:
            owners = "no owners" if pool.client is None else "owners"
            raise InputError(
                f"data set '{name}': expected owners and examples {shape} as in '{first_name}', "
                f"got {owners} and {pool.x.shape[1:]}"
            )
        if pool.targets != first.targets:
            raise InputError(
                f"data set '{name}': expected targets {list(first.targets)} as in '{first_name}', "
                f"got {list(pool.targets)}"
            )
        if classes == "equal" and list(pool.classes) != names:
            raise InputError(
                f"data set '{name}': expected classes {names} as in '{first_name}', got "
                f"{list(pool.classes)}; rename them, or set classes to union or intersection"
            )


def _common(owned: Sequence[tuple[str, ...]], classes: JoinClasses) -> tuple[str, ...]:
    if classes == "intersection":
        found = tuple(name for name in owned[0] if all(name in names for names in owned))
        if not found:
            raise InputError(
                "classes = 'intersection': no class is in every data set; they have "
                + "; ".join(", ".join(names) for names in owned)
            )
        return found
    return tuple(dict.fromkeys(name for names in owned for name in names))


def _prefixed(name: str, pool: Pool) -> NDArray[np.str_]:
    return np.array([f"{name}-{owner}" for owner in ([] if pool.client is None else pool.client)])


def _counted_on(parts: list[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    """Recordings of several data sets under different numbers."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    shifts = np.cumsum([0, *(int(part.max(initial=-1)) + 1 for part in known)])
    return np.concatenate([part + shift for part, shift in zip(known, shifts, strict=False)])


def _stacked(parts: list[NDArray[np.bool_] | None]) -> NDArray[np.bool_] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None
