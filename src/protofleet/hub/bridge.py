"""From a browser's WebSocket to the federation's broker and back, byte for byte.

One TCP (or TLS) connection for each WebSocket, always to the one broker of the federation file.
Either side that does not read stops the other: nothing is kept here but one read in each direction.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from protofleet.wire.mqtt.broker_access import BrokerAccess, BrokerAddress

SUBPROTOCOL = "mqtt"
MAX_FRAME_BYTES = 256 * 1024
"""Of a browser's message; brokers of ours take packets of 70 000 bytes."""
FIRST_S = 10.0
"""For the first packet after the handshake; the broker is dialled only then."""
DIAL_S = 10.0
IDLE_S = 600.0
"""Of silence of a browser; brokers of ours end sooner, after 1.5 keep-alives of at most 120 s."""
CLOSE_S = 5.0
READ_BYTES = 64 * 1024
_CONNECT = 0x10
"""First byte of every MQTT connection."""
_LOG_EVERY_S = 60.0
_PROBE_EVERY_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a WebSocket is closed: a status of RFC 6455, and the reason for people."""

    code: int
    reason: str = ""


_NO_BROKER = Ending(1013, "the federation's broker does not answer; try again later")
_GONE = Ending(1001, "the broker ended the connection")
_LEFT = Ending(1000)
_TEXT = Ending(1003, "expected binary frames")
_NO_MQTT = Ending(1002, "expected MQTT, which begins with CONNECT")
_SILENT = Ending(1008, "nothing was sent for too long")

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Bridge:
    """Relays to one broker.

    Args:
        access: where the broker listens and how to know it; browsers bring their own accounts.

    Attributes:
        open: WebSockets that are being relayed.

    Raises:
        InputError: its certificate files cannot be used.
    """

    def __init__(self, access: BrokerAccess) -> None:
        self._access = access
        self._address = BrokerAddress.parse(access.url)
        self._tls = access.tls()
        self.open = 0
        self._logged = self._probed = float("-inf")
        self._answers = False

    async def serve(self, websocket: WebSocket) -> None:
        """Relay one WebSocket until either side ends."""
        if SUBPROTOCOL not in websocket.scope["subprotocols"]:
            refusal = f"expected the WebSocket subprotocol '{SUBPROTOCOL}'\n"
            await websocket.send_denial_response(PlainTextResponse(refusal, 400))
            return
        await websocket.accept(SUBPROTOCOL)
        self.open += 1
        try:
            ending = await self._relay(websocket)
        except WebSocketDisconnect:
            return
        finally:
            self.open -= 1
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):  # it may be gone by now
            async with asyncio.timeout(CLOSE_S):
                await websocket.close(ending.code, ending.reason)

    async def broker_answers(self) -> bool:
        """Whether the broker takes connections; asked of it at most every few seconds."""
        now = time.monotonic()
        if now >= self._probed + _PROBE_EVERY_S:
            self._probed = now
            streams = await self._dial()
            self._answers = streams is not None
            if streams is not None:
                streams[1].close()
        return self._answers

    async def _relay(self, websocket: WebSocket) -> Ending:
        first = await _receive(websocket, FIRST_S)
        if isinstance(first, Ending):
            return first
        if not first or first[0] != _CONNECT:
            return _NO_MQTT
        streams = await self._dial()
        if streams is None:
            return _NO_BROKER
        reader, writer = streams
        writer.write(first)
        tasks = {
            asyncio.create_task(_up(websocket, writer)),
            asyncio.create_task(_down(reader, writer, websocket)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _close(writer)

    async def _dial(self) -> _Streams | None:
        host, port = self._address.host, self._address.port
        named = None if self._tls is None else host
        try:
            async with asyncio.timeout(DIAL_S):
                return await asyncio.open_connection(
                    host, port, ssl=self._tls, server_hostname=named, limit=READ_BYTES
                )
        except (OSError, TimeoutError) as error:
            now = time.monotonic()
            if now >= self._logged + _LOG_EVERY_S:
                self._logged = now
                _log.warning("broker %s: %s", self._access, error or "no answer")
            return None


async def _receive(websocket: WebSocket, within_s: float) -> bytes | Ending:
    """The next binary message, or how to end."""
    try:
        async with asyncio.timeout(within_s):
            message = await websocket.receive()
    except TimeoutError:
        return _SILENT
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    data: bytes | None = message.get("bytes")
    return _TEXT if data is None else data


async def _up(websocket: WebSocket, writer: asyncio.StreamWriter) -> Ending:
    while True:
        data = await _receive(websocket, IDLE_S)
        if isinstance(data, Ending):
            return data
        try:
            writer.write(data)
            await writer.drain()
        except OSError:
            return _GONE


async def _down(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, websocket: WebSocket
) -> Ending:
    link = writer.get_extra_info("socket")
    while True:
        try:
            data = await reader.read(READ_BYTES)
        except OSError:
            return _GONE
        if not data:
            return _GONE
        if hasattr(socket, "TCP_QUICKACK"):
            # A broker without TCP_NODELAY sends its next small packet only after this
            # acknowledgement, which the kernel would delay by 40 ms.
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        await websocket.send_bytes(data)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Without an MQTT DISCONNECT: the broker publishes the device's last will."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
