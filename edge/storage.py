"""A device whose disk takes no writes: held, with all that it has, until the disk takes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from protofleet.edge.notices import HeldNotice, StopFlag
from protofleet.edge.owner.participation import Participation
from protofleet.edge.owner.policy import Unmet
from protofleet.edge.state.store import Store
from protofleet.errors import StorageError

_log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Between two attempts to write; whoever makes room wants to see that it helped."""
CONDITION = "storage"
"""The word in ``held`` of the presence."""
_STEP_S = 0.2
_Result = TypeVar("_Result")


class StorageWait:
    """Waits in the agent's thread, while the link stays up, and then lets the write be tried again.

    Nothing in progress is given up: a round that was trained is kept in memory, an update stays
    where it is, and what a transfer has stays on the disk.

    Args:
        store: told to wait here, too.
        participation: has the condition meanwhile.
        held: says so, to the coordinator and to the owner.
        ending: whether the device is to leave.
    """

    def __init__(
        self,
        store: Store,
        participation: Participation,
        held: HeldNotice,
        stop_flag: StopFlag,
    ) -> None:
        self._store, self._participation = store, participation
        self._held, self._stop_flag = held, stop_flag
        store.await_storage = self.wait

    def wait(self, error: StorageError) -> None:
        """Return when a write may be tried again.

        Raises:
            StorageError: the same, because the device is to end.
        """
        _log.error("%s; this device takes no part until it can write there", error)
        self._participation.storage = Unmet(CONDITION, str(error))
        self._held.tell()
        try:
            while not self._written():
                if self._stop_flag.wanted:
                    raise error
        finally:
            self._participation.storage = None
        _log.warning("device store '%s': it can be written again", self._store.folder)

    def _written(self) -> bool:
        until = time.monotonic() + LOOK_S
        while not self._stop_flag.wanted and time.monotonic() < until:
            time.sleep(_STEP_S)  # signals come between
        try:
            self._store.probe()
        except StorageError:
            return False
        return True

    def repeat(self, act: Callable[[], _Result]) -> _Result:
        """What ``act`` returns, which is called again after each wait."""
        while True:
            try:
                return act()
            except StorageError as error:
                self.wait(error)
