"""What an operator wants of a run: written into its ledger by one process, obeyed by another.

An order is durable before the process that serves the run hears of it, so it holds over a kill of
either, and a run that nobody serves takes it at its next start.
"""

from __future__ import annotations

import fcntl
import sqlite3
import time
from contextlib import closing
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from protofleet.coordinator.database import damaged, open_database
from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.formats import check_ledger
from protofleet.coordinator.ledger.rows import SCHEMA
from protofleet.errors import InputError, UnavailableError

ANSWER_S = 10.0
"""How long a command waits for the coordinator to take its order; it holds in any case."""
_POLL_S = 0.05


class Wish(Enum):
    """What the run is to do."""

    RUN = "run"
    PAUSE = "pause"
    """The open round ends by its rules, and no other opens."""
    STOP = "stop"
    """As ``PAUSE``; then the results are written and the process ends."""
    END = "end"
    """The process ends at once; the open round goes on at the next start."""
    STOPPED = "stopped"
    """The coordinator has obeyed ``STOP`` or ``END``; its next start runs."""


class OperatorOrder(NamedTuple):
    """The latest order.

    Attributes:
        serial: counts them; 0: there was none.
        wish: what the run is to do.
        since_s: when that was said, wall clock in seconds.
        rounds: to which the run was extended; 0: it was not.
        taken: serial of the latest order that a coordinator has taken.
    """

    serial: int = 0
    wish: Wish = Wish.RUN
    since_s: float = 0.0
    rounds: int = 0
    taken: int = 0


class Control:
    """The orders in a ledger, as the coordinator sees them.

    Args:
        db: of the ledger, which the coordinator owns.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._seen = self._version()

    def read(self) -> OperatorOrder:
        """The latest order."""
        return read_order(self._db)

    def changed(self) -> bool:
        """Whether another process has written into the ledger since the last call."""
        before, self._seen = self._seen, self._version()
        return self._seen != before

    def take(self, order: OperatorOrder) -> None:
        """The coordinator obeys an order from here on."""
        with self._db:
            self._db.execute("UPDATE control SET taken = ?", (order.serial,))

    def begin(self) -> None:
        """A process serves the run again: that one before it was stopped is over."""
        with self._db:
            self._db.execute(
                "UPDATE control SET wish = ?, since_s = ? WHERE wish = ?",
                (Wish.RUN.value, time.time(), Wish.STOPPED.value),
            )

    def note_stopped(self) -> None:
        """The order to stop was obeyed: all that was asked for is done."""
        with self._db:
            self._db.execute(
                "UPDATE control SET wish = ?, since_s = ? WHERE wish IN (?, ?)",
                (Wish.STOPPED.value, time.time(), Wish.STOP.value, Wish.END.value),
            )

    def _version(self) -> int:
        found: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return found


def not_started(run_dir: Path) -> InputError:
    """What to raise for a folder without a run."""
    return InputError(
        f"run folder {run_dir}: no run was started here; 'protofleet coordinator run FILE' starts "
        "the run of a federation file in its run_dir"
    )


def read_order(db: sqlite3.Connection) -> OperatorOrder:
    """The latest order in a ledger.

    An extension counts until the final fit has begun: what devices keep has changed with that.
    """
    row = db.execute("SELECT serial, wish, since_s, rounds, taken FROM control").fetchone()
    if row is None:
        return OperatorOrder()
    serial, wish, since_s, rounds, taken = row
    fit = db.execute("SELECT round_id FROM rounds WHERE final").fetchone()
    if fit is not None:
        rounds = min(rounds, fit[0] - 1)
    return OperatorOrder(serial, Wish(wish), since_s, rounds, taken)


def extended_rounds(run_dir: Path) -> int:
    """To how many rounds the run in a folder was extended; 0: it was not, or there is none."""
    path = run_dir / LEDGER
    if not path.is_file():
        return 0
    try:
        # Its coordinator is about to open it, and brings up a format of an earlier version.
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return read_order(db).rounds
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise InputError(damaged(path, error)) from error


def is_served(run_dir: Path) -> bool:
    """Whether a process on this machine serves the run in a folder."""
    try:
        file = (run_dir / "lock").open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


class Orders:
    """Gives orders to the run in a folder, from another process than its coordinator's.

    Raises:
        InputError: no run was started there, or its ledger cannot be used.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        path = run_dir / LEDGER
        if not path.is_file():
            raise not_started(run_dir)
        self._db = open_database(path, SCHEMA, partial(check_ledger, run_dir))

    def close(self) -> None:
        """Release the ledger."""
        self._db.close()

    def wish(self, wish: Wish) -> OperatorOrder:
        """Say what the run is to do; durable when this returns.

        Raises:
            UnavailableError: to stop: nobody serves the run.
        """
        if wish in (Wish.STOP, Wish.END) and not is_served(self._run_dir):
            raise UnavailableError(f"run folder {self._run_dir}: no coordinator is running in it")
        return self._write("wish = ?, since_s = ?", (wish.value, time.time()))

    def extend(self, rounds: int) -> OperatorOrder:
        """Let the run have so many rounds; durable when this returns.

        Raises:
            InputError: its final fit has begun.
        """
        order = self._write("rounds = max(rounds, ?)", (rounds,))
        if order.rounds < rounds:
            raise InputError(
                f"rounds: this run's final fit began after round {order.rounds}, so that no round "
                "can follow; for more rounds choose another run_dir and new device stores"
            )
        return order

    def await_taken(self, order: OperatorOrder, timeout_s: float = ANSWER_S) -> bool:
        """Whether a coordinator takes an order in time; False too if none is there."""
        until = time.monotonic() + timeout_s
        while read_order(self._db).taken < order.serial:
            if time.monotonic() >= until or not is_served(self._run_dir):
                return read_order(self._db).taken >= order.serial
            time.sleep(_POLL_S)
        return True

    def _write(self, change: str, values: tuple[object, ...]) -> OperatorOrder:
        with self._db:
            self._db.execute(
                "INSERT OR IGNORE INTO control VALUES (1, 0, ?, ?, 0, 0)",
                (Wish.RUN.value, time.time()),
            )
            self._db.execute(f"UPDATE control SET serial = serial + 1, {change}", values)  # noqa: S608 - ours
            return read_order(self._db)
