"""A TCP proxy that makes a link slow, far away or unreliable, and counts what passes.

It needs no root and works for any protocol over TCP. Rates and delays are per connection and
direction; what it imitates is a link's capacity, not packet loss (TCP hides loss as delay).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import msgspec

from protofleet.errors import InputError, UnavailableError
from protofleet.firmware_sim.pace import Pace, Rate, TracePace, read_trace

_BLOCK_BYTES = 16 * 1024
_START_TIMEOUT_S = 10.0
_Answer = TypeVar("_Answer")


class LinkProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a device's link can do.

    Attributes:
        up_kbit_s, down_kbit_s: rate limits in 1000 bit/s; 0: unlimited.
        up_trace, down_trace: files of recorded links instead (``pace.read_trace``), from the
            proxy's start on, again and again.
        delay_ms: added to each direction.
        cut_after_bytes: the connection is cut after so many bytes in both directions together;
            each new connection gets as many again; 0: never.
        nat_timeout_s: a connection on which nothing passes for so long is forgotten by the router
            on its way: it stays open to both ends, and nothing passes any more; 0: never.
        roams_every_s: so often the device gets another address, so that the connections that it
            has are forgotten likewise; 0: never.
    """

    up_kbit_s: float = 0.0
    down_kbit_s: float = 0.0
    up_trace: Path | None = None
    down_trace: Path | None = None
    delay_ms: float = 0.0
    cut_after_bytes: int = 0
    nat_timeout_s: float = 0.0
    roams_every_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float | int) and value < 0:
                raise InputError(f"link.{name}: expected >= 0, got {value}")
        for way in ("up", "down"):
            if getattr(self, f"{way}_kbit_s") and getattr(self, f"{way}_trace"):
                raise InputError(f"link: give {way}_kbit_s or {way}_trace, not both")


@dataclass(slots=True)
class LinkCounters:
    """Bytes that passed, and connections that were cut and forgotten."""

    bytes_up: int = 0
    bytes_down: int = 0
    cuts: int = 0
    forgotten: int = 0


@dataclass(slots=True, eq=False)
class _Connection:
    """Both directions of one connection share its byte allowance.

    Attributes:
        left_bytes: of the allowance.
        address: which of its addresses the device had.
        passed_s: when a byte passed last.
        is_forgotten: it is open to both ends, and nothing passes.
    """

    left_bytes: float
    address: int
    passed_s: float
    is_cut: bool = False
    is_forgotten: bool = False
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class LinkProxy:
    """One listening port on loopback that leads to a broker through a ``LinkProfile``.

    Args:
        host: the broker's.
        port: the broker's.
        profile: what the link can do.

    Raises:
        InputError: a trace that cannot be read.

    Attributes:
        port: where the device connects.
        counters: what has passed so far.
        refusing: while True, new connections are closed at once.
        black_hole: while True, connections stay up and nothing passes.
    """

    def __init__(self, host: str, port: int, profile: LinkProfile) -> None:
        self._target = (host, port)
        self._profile = profile
        traces = {True: profile.up_trace, False: profile.down_trace}
        self._traces = {
            up: None if path is None else read_trace(path) for up, path in traces.items()
        }
        self._opened_s = 0.0
        self._connections: set[_Connection] = set()
        self.port = 0
        self.counters = LinkCounters()
        self.refusing = False
        self.black_hole = False

    async def serve(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._opened_s = asyncio.get_running_loop().time()
        return server

    def cut(self) -> None:
        """Cut every connection now."""
        for connection in list(self._connections):
            self.counters.cuts += not connection.is_cut
            connection.is_cut = True
            connection.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        now_s = asyncio.get_running_loop().time()
        connection = _Connection(
            left_bytes=self._profile.cut_after_bytes or float("inf"),
            address=self._address(now_s),
            passed_s=now_s,
            writers=[writer, far_writer],
        )
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._pump(connection, reader, far_writer, up=True),
                self._pump(connection, far_reader, writer, up=False),
            )
        except asyncio.CancelledError:
            return  # the proxy closes; asyncio would report a cancelled handler as a failure
        finally:
            connection.close()
            self._connections.discard(connection)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        up: bool,
    ) -> None:
        """One direction: the reader is paced by the rate, a second task delays what was read."""
        pace = self._pace(up=up)
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        sender = asyncio.create_task(_deliver(queue, writer))
        clock = asyncio.get_running_loop().time
        try:
            while block := await _read(reader):
                while self.black_hole:  # noqa: ASYNC110 - a test fixture's switch, seldom on
                    await asyncio.sleep(0.05)
                if self._forgets(connection, clock()):
                    continue
                if not self._count(connection, len(block), up=up):
                    break
                if pace is not None:
                    await asyncio.sleep(pace.passed_s(len(block), clock()) - clock())
                await queue.put((clock() + self._profile.delay_ms / 1000, block))
        finally:
            await queue.put((0.0, b""))
            await sender
            if not connection.is_forgotten:  # else the other end is not told
                connection.close()

    def _address(self, now_s: float) -> int:
        """Which of its addresses the device has."""
        every_s = self._profile.roams_every_s
        return int((now_s - self._opened_s) / every_s) if every_s else 0

    def _forgets(self, connection: _Connection, now_s: float) -> bool:
        """Whether nothing passes any more; else something does now."""
        if not connection.is_forgotten:
            timeout_s = self._profile.nat_timeout_s
            connection.is_forgotten = connection.address != self._address(now_s) or (
                timeout_s > 0 and now_s - connection.passed_s > timeout_s
            )
            connection.passed_s = now_s
            self.counters.forgotten += connection.is_forgotten
        return connection.is_forgotten

    def _pace(self, *, up: bool) -> Pace | None:
        """Of a direction of a new connection; None: unlimited."""
        trace = self._traces[up]
        if trace is not None:
            return TracePace(trace, self._opened_s)
        kbit_s = self._profile.up_kbit_s if up else self._profile.down_kbit_s
        return Rate(kbit_s * 125.0) if kbit_s else None

    def _count(self, connection: _Connection, size: int, *, up: bool) -> bool:
        connection.left_bytes -= size
        if connection.left_bytes < 0:
            self.counters.cuts += not connection.is_cut
            connection.is_cut = True
            return False
        if up:
            self.counters.bytes_up += size
        else:
            self.counters.bytes_down += size
        return True


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_BLOCK_BYTES)
    except OSError:
        return b""  # the peer reset the connection: the same end as a close


async def _deliver(queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    clock = asyncio.get_running_loop().time
    broken = False
    while True:
        due_s, block = await queue.get()
        if not block:
            return
        if broken:
            continue
        await asyncio.sleep(max(0.0, due_s - clock()))
        try:
            writer.write(block)
            await writer.drain()
        except OSError:
            broken = True  # keep emptying the queue so that the reader can end


class Serves(Protocol):
    """What a ``ProxyThread`` runs."""

    async def serve(self) -> asyncio.Server:
        """Listen."""
        ...


class ProxyThread:
    """Runs proxies in a thread of its own: ``with ProxyThread() as proxies``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_TIMEOUT_S)
        self._loop.close()

    def add(self, host: str, port: int, profile: LinkProfile) -> LinkProxy:
        """Open a proxy to ``host:port``; its ``port`` is ready when this returns."""
        proxy = LinkProxy(host, port, profile)
        self.serve(proxy)
        return proxy

    def serve(self, link: Serves) -> None:
        """Open any other kind of link; its ``port`` is ready when this returns."""
        self._servers.append(self._run(link.serve()))

    def ask(self, function: Callable[[], _Answer]) -> _Answer:
        """What ``function()`` returns in the proxies' thread."""

        async def call() -> _Answer:
            return function()

        answer: _Answer = self._run(call())
        return answer

    def call(self, function: Any) -> None:
        """Run ``function()`` in the proxies' thread, e.g. ``proxy.cut``."""
        self._loop.call_soon_threadsafe(function)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_TIMEOUT_S)
        except TimeoutError as error:
            raise UnavailableError("link proxy: its thread did not answer in 10 s") from error
