"""A coordinator whose disk takes no writes: it waits, and goes on from its ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from protofleet.coordinator import events
from protofleet.coordinator.process.run import RunSupervisor
from protofleet.durable import TEMPORARY, takes_no_writes, write_synced
from protofleet.errors import StorageError

LOOK_S = 5.0
"""Between two attempts to write; whoever makes room wants to see that it helped."""
_STEP_S = 0.2
_PROBE_BYTES = 1 << 20


def serve(
    opened: Callable[[], AbstractContextManager[RunSupervisor]],
    folder: Path,
    sink: events.Sink,
    *,
    begun: Callable[[RunSupervisor], None] | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Run a federation to its end, with a pause while the disk of its folder takes no writes.

    Nothing is admitted in a pause. What was not in the ledger before it is asked for again, as
    after a kill: devices keep what they have no receipt for.

    Args:
        opened: opens the run's service.
        folder: of the run.
        sink: told of a pause and of its end.
        begun: told of each service before it runs.
        ended: whether the run is to be left as it is.

    Raises:
        StorageError: the folder could not be written from the start, or what is wrong with it
            does not pass: something was removed.
    """
    served = False
    while not ended():
        try:
            with opened() as service:
                served = True
                if begun is not None:
                    begun(service)
                if not ended():
                    service.run()
                return
        except StorageError as error:
            if not served or not takes_no_writes(error.__cause__):
                raise
            sink(events.StorageFailed(reason=str(error)))
            if _await_storage(folder, ended):
                sink(events.StorageBack(run_dir=str(folder)))


def _await_storage(folder: Path, ended: Callable[[], bool]) -> bool:
    """Wait until the folder can be written; False: the run is to be left as it is."""
    path = folder / ("probe" + TEMPORARY)
    while not ended():
        until = time.monotonic() + LOOK_S
        while not ended() and time.monotonic() < until:
            time.sleep(_STEP_S)
        try:
            write_synced(path, [bytes(_PROBE_BYTES)])
            path.unlink()
        except OSError:
            continue
        return True
    return False
