"""Cells: one federation served by several coordinators, and a root that aggregates for all of them.

A *cell* is a coordinator of a sub-federation ``<federation>.<k>`` with devices of its own. In a
round it admits their updates and sends the root a *report*: what was noted of each update, and
either the updates themselves or their exact sum. The root makes the new server state of all
reports, and sends it to every cell with the next round's *order*. ``docs/cells.md`` has the whole.

Everything here is pure but for the report files, which are read in parts: they may be large.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import msgspec
import numpy as np

from protofleet.durable import write_synced
from protofleet.errors import InputError, RefusedError
from protofleet.federation.coding import read_update
from protofleet.federation.outcomes.calibration import AUTO
from protofleet.federation.plan import Plan
from protofleet.federation.records import UpdateRecord
from protofleet.federation.schedules.early_stopping import NEVER
from protofleet.federation.settings import (
    AggregationSettings,
    CellSettings,
    CodecSettings,
    CohortSettings,
    FederationConfig,
    PrivacySettings,
    RoundSettings,
    StragglerSettings,
)
from protofleet.kernels import ExactSum
from protofleet.strategies.common import ordered
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import ServerState, Update, Updates
from protofleet.tensors import Layout, TensorMap, blobs, vector_of

_ORDER = "order"
_LENGTH_BYTES = 8
_MOST_HEADER = 1 << 30
_MOST_STATE = 2**62
_ALL_CELLS = "cells"
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


def cell_name(cell: int) -> str:
    """By what name a cell takes part in the root's federation."""
    return f"cell-{cell}"


def cell_federation(federation: str, cell: int) -> str:
    """The name of a cell's own federation, which its devices join."""
    return f"{federation}.{cell}"


def cell_of(device_id: str, count: int) -> int:
    """A device's cell, from 1 to ``count``, where nothing but its id says which."""
    digest = hashlib.sha256(device_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") % count + 1


def cell_config(config: FederationConfig, cell: int) -> FederationConfig:
    """The federation file of one cell, from that of all.

    Its names of folders end in the cell's number. A cell scores no model and ends no run: the root
    does.

    Raises:
        InputError: there is no such cell.
    """
    count = _cells(config).count
    if not 1 <= cell <= count:
        raise InputError(f"cell: expected 1 to {count}, as the file says, got {cell}")
    return msgspec.structs.replace(
        config,
        federation=cell_federation(config.federation, cell),
        run_dir=cell_folder(config.run_dir, cell),
        keys=None if config.keys is None else cell_folder(config.keys, cell),
        evaluation=msgspec.structs.replace(config.evaluation, pooled=None),
        stop=NEVER,
        privacy=_sends_only(config.privacy),
        cells=None,
    )


def cell_folder(folder: Path, cell: int) -> Path:
    """A cell's folder beside the root's."""
    return folder.with_name(f"{folder.name}.{cell}")


def root_store(config: FederationConfig, cell: int) -> Path:
    """Where a cell's enrolment with the root lies: beside its run folder, as a device's store."""
    return cell_folder(config.run_dir, cell).with_name(f"{config.run_dir.name}.{cell}.root")


def root_config(config: FederationConfig) -> FederationConfig:
    """The federation file of the root, whose members are the cells: all of them, in every round."""
    cells = _cells(config)
    summed = AggregationSettings(kind="mean", norm_clip=0.0, most_examples=0.0)
    return msgspec.structs.replace(
        config,
        cohort=CohortSettings(minimum=cells.count),
        round=RoundSettings(deadline_s=config.round.deadline_s, quorum=1.0),
        stragglers=StragglerSettings(),
        codec=CodecSettings(),
        aggregation=summed if cells.send == "sums" else config.aggregation,
    )


def _cells(config: FederationConfig) -> CellSettings:
    if config.cells is None:
        raise InputError("cells: expected a section [cells] in the federation file, got none")
    return config.cells


def _sends_only(privacy: PrivacySettings) -> PrivacySettings:
    """What devices are told not to send; noise is the root's."""
    return PrivacySettings(scores=privacy.scores, counts=privacy.counts)


def check_cells(config: FederationConfig, plan: Plan) -> None:
    """Refuse what the root cannot do with what the cells send.

    Args:
        config: the federation file, as it was written.
        plan: of it.

    Raises:
        InputError: sums of a strategy that looks at single updates, beside a rule that does, or
            noise, or a learning rate that devices are to find.
    """
    cells, name = _cells(config), plan.strategy.description.name
    if config.privacy.noise_multiplier is not None:
        raise InputError(
            "cells: expected no privacy.noise_multiplier beside them: a device's part in the noise "
            "is not followed over cells; leave one of the two out"
        )
    if plan.rates:
        raise InputError(
            f'optimiser.lr = "{AUTO}": devices of several cells do not find one together; give a '
            "number, such as the one that a device finds with protofleet device try"
        )
    if config.schedule.takes_older:
        raise InputError(
            f"cells: expected rounds in which all updates are of one state, got schedule.kind "
            f"'{config.schedule.kind}' with updates of earlier ones; leave one of the two out"
        )
    if cells.send != "sums":
        return
    if plan.strategy.mean is None:
        raise InputError(
            f"cells.send: strategy '{name}' with these settings looks at single updates, so that "
            'sums do not suffice; take send = "updates"'
        )
    rule = config.aggregation
    for setting, good, expected in (
        ("kind", rule.kind == "exact_mean", '"exact_mean", whose sums cells can share'),
        ("norm_clip", rule.norm_clip == 0, "0: the median norm is that of all cells' updates"),
        ("most_examples", rule.most_examples == 0, "0: the median is that of all cells' devices"),
    ):
        if not good:
            raise InputError(
                f'aggregation.{setting}: with cells.send = "sums" expected {expected}, got '
                f'{getattr(rule, setting)!r}; or take send = "updates"'
            )


class ReportedUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An update that a cell has admitted.

    Attributes:
        device_id: whose.
        transfer_id: of its transfer to the cell.
        record: what its device says of it.
        norms: of its differences (``claims.difference_norms``).
        class_counts: what its device had registered; None: nothing.
        bytes: of its raw blob in the report; 0: it is not in there.
    """

    device_id: str
    transfer_id: str
    record: UpdateRecord
    norms: dict[str, float] = {}
    class_counts: tuple[_Count, ...] | None = None
    bytes: _Count = 0


class ReportedSum(msgspec.Struct, frozen=True, kw_only=True):
    """An exact sum in a report; fields as in ``kernels.ExactSum``."""

    size: _Count
    terms: _Count
    weight: Annotated[float, msgspec.Meta(ge=0)]


class ReportHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says before its bytes.

    Attributes:
        cell: who reports.
        round_id: of what round.
        updates: by ascending device_id; their blobs follow in this order.
        sum: instead of the blobs; limbs and tops follow, little-endian.
    """

    cell: int
    round_id: int
    updates: tuple[ReportedUpdate, ...]
    sum: ReportedSum | None = None


def write_report(
    path: Path, header: ReportHeader, files: Iterable[Path], total: ExactSum | None = None
) -> None:
    """Write a report, durably but for its name.

    Args:
        path: of the new file.
        header: its ``sum`` is that of ``total``.
        files: blobs of the updates, in order; none with a sum.
        total: what ``sum_updates`` made.
    """
    if total is not None:
        told = ReportedSum(size=total.size, terms=total.terms, weight=total.weight)
        header = msgspec.structs.replace(header, sum=told)
    text = msgspec.json.encode(header)

    def parts() -> Iterator[bytes]:
        yield len(text).to_bytes(_LENGTH_BYTES, "little")
        yield text
        for file in files:
            yield file.read_bytes()
        if total is not None:
            yield total.limbs.astype("<f8").tobytes()
            yield total.tops.astype("<i8").tobytes()

    write_synced(path, parts())


def read_header(path: Path) -> ReportHeader:
    """What a report says, if the file is as long as that.

    Raises:
        RefusedError: rule ``report``: it is none.
    """
    with path.open("rb") as file:
        header, start = _header(file)
        size = file.seek(0, 2)
    expected = start + sum(one.bytes for one in header.updates) + _sum_bytes(header.sum)
    _refuse_unless(size == expected, f"{expected} bytes", f"{size}")
    ids = [one.device_id for one in header.updates]
    _refuse_unless(ids == sorted(set(ids)), "its devices in order", "others")
    for one in header.updates:
        told = (one.record.client_id, one.record.round_id)
        _refuse_unless(
            told == (one.device_id, header.round_id),
            f"the record of '{one.device_id}' for round {header.round_id}",
            f"one of '{told[0][:64]}' for round {told[1]}",
        )
    return header


def _header(file: IO[bytes]) -> tuple[ReportHeader, int]:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    _refuse_unless(length <= _MOST_HEADER, f"a header of at most {_MOST_HEADER} bytes", f"{length}")
    try:
        header = msgspec.json.decode(file.read(length), type=ReportHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("report", f"report: {error}") from error
    return header, _LENGTH_BYTES + length


def _refuse_unless(holds: bool, expected: str, got: str) -> None:  # noqa: FBT001 - the checked condition
    if not holds:
        raise RefusedError("report", f"report: expected {expected}, got {got}")


def _sum_bytes(told: ReportedSum | None) -> int:
    if told is None:
        return 0
    empty = ExactSum(0)
    _, limbs, width = empty.limbs.shape
    return -(-told.size // width) * 8 * (limbs * width + 1)


def read_sum(path: Path) -> ExactSum | None:
    """The exact sum in a report that ``read_header`` has passed; None: it has none."""
    with path.open("rb") as file:
        header, _ = _header(file)
        if header.sum is None:
            return None
        total = ExactSum(header.sum.size)
        total.terms, total.weight = header.sum.terms, header.sum.weight
        limbs = np.frombuffer(file.read(total.limbs.nbytes), "<f8")
        total.limbs[...] = limbs.reshape(total.limbs.shape)
        total.tops[...] = np.frombuffer(file.read(total.tops.nbytes), "<i8")
    if not np.isfinite(total.limbs).all():
        raise RefusedError("report", "report: expected a sum of finite numbers, got others")
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUpdate:
    """Where an update lies in a report's file.

    Attributes:
        path: of the report.
        start, stop: its bytes.
        class_counts: as in ``ReportedUpdate``.
    """

    path: Path
    start: int
    stop: int
    class_counts: tuple[int, ...] | None

    def read(self) -> Update:
        """The update."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            return read_update(file.read(self.stop - self.start), self.class_counts)


@dataclass(frozen=True, slots=True)
class CellUpdates:
    """Updates of several reports by ascending client_id; each is read when it is asked for."""

    stored: tuple[StoredUpdate, ...]

    def __len__(self) -> int:
        return len(self.stored)

    def __iter__(self) -> Iterator[Update]:
        return (one.read() for one in self.stored)


@dataclass(frozen=True, slots=True)
class GatheredRound:
    """What all reports of a round say together.

    Attributes:
        updates: for the strategy: those of all cells, or one that stands for them.
        reported: of each device, by ascending id. Of one in two cells: what the first says.
    """

    updates: Updates
    reported: tuple[ReportedUpdate, ...]


def gather(paths: Sequence[Path], strategy: Strategy) -> GatheredRound:
    """What the reports of a round's cells say; their order does not matter.

    Raises:
        RefusedError: one is damaged.
    """
    stored: dict[str, tuple[ReportedUpdate, StoredUpdate]] = {}
    total: ExactSum | None = None
    with_cells = sorted((read_header(path).cell, path) for path in paths)
    for _, path in with_cells:
        with path.open("rb") as file:
            header, start = _header(file)
        for one in header.updates:
            place = StoredUpdate(
                path=path, start=start, stop=start + one.bytes, class_counts=one.class_counts
            )
            stored.setdefault(one.device_id, (one, place))
            start += one.bytes
        part = read_sum(path)
        if part is not None and total is not None:
            total.merge(part)
        total = total or part
    in_order = [stored[device_id] for device_id in sorted(stored)]
    updates: Updates = CellUpdates(tuple(place for one, place in in_order if one.bytes))
    if total is not None:
        updates = [stand_in(strategy, total)]
    return GatheredRound(updates, tuple(one for one, _ in in_order))


def sum_updates(strategy: Strategy, updates: Updates) -> ExactSum:
    """The exact sum of updates of a strategy with a ``mean``.

    Raises:
        InputError: two updates of one client.
    """
    if strategy.mean is None:
        raise InputError(f"strategy '{strategy.description.name}': its updates have no sum")
    layout, by_examples = _layout(strategy), strategy.mean.by_examples
    total = ExactSum(layout.size)
    total.add_all(
        (vector_of(update.tensors, layout), update.num_examples if by_examples else 1)
        for update in ordered(updates)
        if update.num_examples
    )
    return total


def stand_in(strategy: Strategy, total: ExactSum) -> Update:
    """An update of which the strategy makes the same as of all in the sum."""
    if total.weight == 0:
        return Update(client_id=_ALL_CELLS, round_id=0, num_examples=0, tensors={})
    by_examples = strategy.mean is None or strategy.mean.by_examples
    return Update(
        client_id=_ALL_CELLS,
        round_id=0,
        num_examples=int(total.weight) if by_examples else 1,
        tensors=TensorMap(_layout(strategy), total.mean()),
    )


def _layout(strategy: Strategy) -> Layout:
    shapes = {
        name: tuple(axis or 0 for axis in form.shape)
        for name, form in strategy.uplink.required.items()
    }
    return Layout.of(shapes)


class CellOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the root says of a round beside the server's state.

    Attributes:
        round_id: that is to be opened.
        update_norms: of the round before (``RoundRecord.update_norms``); empty before the first.
    """

    round_id: int
    update_norms: dict[str, float] = {}


def encode_order(state: ServerState, order: CellOrder) -> bytes:
    """The blob that a cell is sent."""
    return blobs.encode(state.tensors, {_ORDER: msgspec.json.encode(order).decode()})


def decode_order(data: bytes) -> tuple[ServerState, CellOrder]:
    """The server's state before the round that is to be opened, and what the root says of it.

    Raises:
        RefusedError: rule ``order``: it is none.
    """
    with suppress(msgspec.DecodeError):
        tensors, metadata = blobs.decode(data, max_bytes=_MOST_STATE)
        order = msgspec.json.decode(metadata.get(_ORDER, ""), type=CellOrder)
        return ServerState(round_id=order.round_id - 1, tensors=tensors), order
    raise RefusedError("order", "order: expected a server's state with an order, got another blob")


def describe_cells(cells: CellSettings, cell: int | None = None) -> str:
    """What a run's ledger keeps: whose it is, of how many cells, and what they send."""
    return f"{'root' if cell is None else cell} of {cells.count}, {cells.send}"
