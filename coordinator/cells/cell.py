"""A cell: a coordinator whose rounds open by the root's order and end with the root's state.

::

    WAITING ── the root's order is here, and enough devices ──► OPEN ──► CLOSING
       ▲                                                                    │ report
       └───────────── the root's next order has the state ◄── root ◄────────┘

A cell that is killed writes the same report again. Its last round is committed when the root has
finished, with the state from before: the model of the whole federation is the root's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from protofleet.coordinator import events
from protofleet.coordinator.cells.root_link import RootLink
from protofleet.coordinator.rounds import Rounds
from protofleet.coordinator.service import Parts, Service
from protofleet.durable import sync_folder
from protofleet.federation.cells import (
    CellOrder,
    ReportedUpdate,
    ReportHeader,
    sum_updates,
    write_report,
)
from protofleet.federation.schedules import schedule
from protofleet.federation.schedules.gated_schedule import GatedSchedule
from protofleet.federation.schedules.schedule import RoundPhase, Schedule
from protofleet.federation.server import Aggregated
from protofleet.private_files import PRIVATE_FOLDER
from protofleet.strategies.types import ServerState


class CellRounds(Rounds):
    """A cell's rounds.

    Args:
        root: the way to it.
        cell: its number.
        sums: whether reports have the exact sum in the place of the updates.
        parts: as of ``Rounds``.
    """

    def __init__(self, *parts: Any, root: RootLink, cell: int, sums: bool, **more: Any) -> None:
        self._root, self._cell, self._sums = root, cell, sums
        super().__init__(*parts, **more)
        self._reports = self._ledger.folder / "reports"
        self._reports.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        self._take_first()

    def _make_schedule(self) -> Schedule:
        return GatedSchedule(
            inner=super()._make_schedule(),
            may_open=lambda round_id: round_id <= self._root.ordered_round(),
        )

    def _take_first(self) -> None:
        """The state before the first round is the root's, too."""
        found = self._root.order()
        if found is not None and found[1].round_id == 1 and self.server_state.round_id == 0:
            self.server_state = found[0]

    def _close(self, action: schedule.CloseRound) -> bool:
        """Report to the root, and wait for what it makes of all cells' reports."""
        round_id = action.round_id
        self._end_tasks(round_id)
        path = self._report(round_id, final=action.final)
        self._root.send(path, round_id)
        self._follow_root()
        return self._ended()

    def _report(self, round_id: int, *, final: bool) -> Path:
        path = self._reports / f"{round_id:06d}.report"
        if path.exists():
            return path
        spooled = self._ledger.updates(round_id)
        total = sum_updates(self.server.plan.strategy, spooled) if self._sums else None
        inside = not (final or self._sums)
        files = spooled.files if inside else ()
        header = ReportHeader(
            cell=self._cell,
            round_id=round_id,
            updates=tuple(
                ReportedUpdate(
                    device_id=one.device_id,
                    transfer_id=one.transfer_id,
                    record=one.record,
                    norms=dict(one.norms),
                    class_counts=counts,
                    bytes=file.stat().st_size if inside else 0,
                )
                for one, file, counts in zip(
                    self._ledger.accepted(round_id),
                    spooled.files,
                    spooled.class_counts,
                    strict=True,
                )
            ),
        )
        temporary = path.with_suffix(".tmp")
        write_report(temporary, header, files, None if final else total)
        temporary.replace(path)
        sync_folder(self._reports)
        return path

    def _follow_root(self) -> None:
        """Have as many rounds as the root."""
        if (rounds := self._root.rounds) and self.raise_to(rounds):
            self._sink(events.RoundsRaised(rounds=rounds))
        elif 0 < rounds < self.server.plan.config.rounds and rounds + 1 >= self.state.round_id:
            self.lower_to(rounds)
            self.announce()

    def on_news(self) -> None:
        """Go on where the root's word lets the cell go on."""
        self._follow_root()
        if self.state.phase is RoundPhase.CLOSING:
            if self._ended():
                self.apply(schedule.StateCommitted())
        elif self.state.phase is RoundPhase.WAITING and self.state.round_id == 1:
            self._take_first()
        self.apply(schedule.Tick())

    def _ended(self) -> bool:
        """End the closing round if the root has said what it has become."""
        found, round_id = self._root.order(), self.state.round_id
        if found is not None and found[1].round_id == round_id + 1:
            self._end_with(*found)
            return True
        if self._root.finished_in >= round_id:
            self._end_with(self.server_state, CellOrder(round_id=round_id + 1))
            return True
        return False

    def _end_with(self, state: ServerState, order: CellOrder) -> None:
        round_id = self.state.round_id
        self._commit(
            Aggregated(state=replace(state, round_id=round_id, figures={})),
            update_norms=order.update_norms,
        )
        (self._reports / f"{round_id:06d}.report").unlink(missing_ok=True)
        self._root.forget_orders(order.round_id)


class CellService(Service):
    """One run of a cell.

    Args:
        parts: as of ``Service``; its rounds are ``CellRounds``.
        root: the way to it, which the rounds have, too.
    """

    def __init__(self, parts: Parts, root: RootLink) -> None:
        super().__init__(parts)
        self._root = root

    def run(self) -> events.Finished | events.Stopped | None:
        """As of ``Service``."""
        try:
            return super().run()
        finally:
            self._root.close()

    def _resume(self) -> None:
        # Not before the lease: an order that a process in waiting took would not come again.
        self._root.start()
        super()._resume()

    def _watch(self) -> None:
        super()._watch()
        rounds = self._rounds
        if self._root.news() and isinstance(rounds, CellRounds) and not self._announcer.idle:
            rounds.on_news()

    def _save_model(self, aggregated: int) -> None:
        """The model is the root's: what a cell has is older by a round."""
