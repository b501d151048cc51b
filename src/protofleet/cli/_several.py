"""Several federations in one process, each in a thread of its own: one's end is not another's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from protofleet.coordinator.events import Sink
from protofleet.coordinator.process.run import RunSupervisor
from protofleet.coordinator.process.storage import serve
from protofleet.errors import ProtofleetError
from protofleet.federation.settings import FederationConfig
from protofleet.threads import prepare_records

_LOOK_S = 0.2


class Served:
    """One federation of the process.

    Args:
        config: of the federation.
        open_service: opens its coordinator, in the thread that runs it.
        sink: takes its events.

    Attributes:
        name: of the federation.
        failure: why it has ended before its time; empty: it has not.
    """

    def __init__(
        self,
        config: FederationConfig,
        open_service: Callable[[], AbstractContextManager[RunSupervisor]],
        sink: Sink,
    ) -> None:
        self.name, self.sink, self.failure = config.federation, sink, ""
        self._folder, self._open = config.run_dir, open_service
        self._service: RunSupervisor | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Serve it to its end, or that of its patience with what went wrong."""
        try:
            serve(
                self._open,
                self._folder,
                self.sink,
                begun=self._begun,
                ended=self._ended.is_set,
            )
        except ProtofleetError as error:
            self.failure = str(error)
        except Exception as error:  # noqa: BLE001 - whatever ends one leaves the others alone
            self.failure = f"something that should not happen: {type(error).__name__}: {error}"

    def _begun(self, service: RunSupervisor) -> None:
        self._service = service

    def end(self) -> None:
        """Let ``run`` return soon, resumably; from any thread."""
        self._ended.set()
        if self._service is not None:
            self._service.end()


def serve_all(several: Sequence[Served], failed: Callable[[Served, str], None]) -> bool:
    """Serve federations beside each other until all have ended; whether none has failed.

    Args:
        several: each with a folder of its own.
        failed: told at once, in a thread, of one that has failed, and why.
    """

    def serve(one: Served) -> None:
        one.run()
        if one.failure:
            failed(one, one.failure)

    threads = [
        threading.Thread(target=serve, args=(one,), name=f"protofleet-{one.name}")
        for one in several
    ]
    prepare_records()
    with _ended(several, threads):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(_LOOK_S)  # signals come between
    return not any(one.failure for one in several)


@contextmanager
def _ended(several: Sequence[Served], threads: Sequence[threading.Thread]) -> Iterator[None]:
    """However the block ends, the federations are asked to end, and waited for."""
    try:
        yield
    finally:
        for one in several:
            one.end()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
