"""The embedded amqtt broker: ``python -m protofleet.firmware_sim._amqtt HOST PORT [FOLDER]``.

With a folder of ``protofleet broker init``: TLS, the accounts and the access list of that folder.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from amqtt.adapters import ReaderAdapter, StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker, BrokerContext
from amqtt.contexts import Action
from amqtt.mqtt.connect import ConnectPacket, ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from protofleet.broker.access import AccessList
from protofleet.broker.accounts import matches
from protofleet.broker.folder import PACKET_BYTES, BrokerFolder
from protofleet.errors import InputError
from protofleet.wire.topics import is_retained

_MQTT_3_1_1 = 4
"""Protocol level in CONNECT."""
_WANTED: dict[Action | None, Literal["read", "write"]] = {
    Action.PUBLISH: "write",
    Action.RECEIVE: "read",
}


class FolderPlugin(BaseAuthPlugin, BaseTopicPlugin):  # type: ignore[misc]
    """Lets in who has an account of the folder, to what its access list allows."""

    @dataclass
    class Config:
        """Settings of the plugin: the folder's path."""

        folder: str = ""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._folder = BrokerFolder(Path(self.config.folder))
        self.read()

    def read(self) -> None:
        """Take accounts and access list as they are now.

        Raises:
            InputError: one of them cannot be read.
        """
        accounts = self._folder.accounts
        access = AccessList(accounts.access_file.read_text(encoding="utf-8"))
        self._hashes, self._access = accounts.hashes(), access

    def known(self, session: Session) -> bool:
        """Whether user and password are those of an account."""
        hashed = self._hashes.get(session.username or "")
        return hashed is not None and matches(session.password or "", hashed)

    async def authenticate(self, *, session: Session) -> bool:
        """Whether to let a connection in; a will counts as something to be published."""
        if not self.known(session):
            return False
        topic = session.will_topic if session.will_flag else None
        return topic is None or self._access.may(session.username, "write", topic)

    async def topic_filtering(
        self,
        *,
        session: Session | None = None,
        topic: str | None = None,
        action: Action | None = None,
    ) -> bool:
        """Whether a session may publish on, receive from or subscribe to a topic."""
        if session is None or not session.username or topic is None:
            return False
        if action == Action.SUBSCRIBE:
            return self._access.may_subscribe(session.username, topic)
        return self._access.may(session.username, _WANTED[action], topic)


class _LimitedReader(StreamReaderAdapter):  # type: ignore[misc]
    """A socket that ends with the first packet that is too large, before it is read."""

    async def read(self, n: int = -1) -> bytes:
        if n > PACKET_BYTES:
            # Any other kind of error makes amqtt go on, in the middle of the packet.
            raise ValueError(f"packet of {n} bytes: at most {PACKET_BYTES}")
        data: bytes = await super().read(n)
        return data


class _AnyVersionPayload(ConnectPayload):  # type: ignore[misc]
    """What follows the head of a CONNECT; of other versions than 3.1.1 it is passed over.

    amqtt would read the properties of MQTT 5 as a client id, of thousands of bytes that never
    come, where it should refuse the version: every client waited for its own timeout.
    """

    @classmethod
    async def from_stream(
        cls,
        reader: ReaderAdapter,
        fixed_header: MQTTFixedHeader,
        variable_header: ConnectVariableHeader,
    ) -> ConnectPayload:
        if variable_header.proto_level == _MQTT_3_1_1:
            return await super().from_stream(reader, fixed_header, variable_header)
        await reader.read(max(0, fixed_header.remaining_length - variable_header.bytes_length))
        return ConnectPayload(client_id="", will_topic="", will_message=b"")


class _LimitedBroker(Broker):  # type: ignore[misc]
    """amqtt, with a bound on packets, and retaining only what the protocol retains."""

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        limited = _LimitedReader(reader)
        await self._client_connected(listener_name, limited, StreamWriterAdapter(writer))

    async def retain_message(
        self,
        source_session: Session | None,
        topic_name: str | None,
        data: bytes | bytearray | None,
        qos: int | None = None,
    ) -> None:
        if topic_name is not None and is_retained(topic_name):
            await super().retain_message(source_session, topic_name, data, qos)

    async def reread(self, plugin: FolderPlugin) -> None:
        """Take accounts and access list anew; disconnect those who are known no more."""
        try:
            plugin.read()
        except (InputError, OSError, UnicodeDecodeError) as error:
            self.logger.warning("accounts and access list stay as they were: %s", error)
            return
        for session, handler in list(self._sessions.values()):
            if not plugin.known(session):
                await handler.handle_connection_closed()


def _config(host: str, port: str, folder: BrokerFolder | None) -> dict[str, Any]:
    listener: dict[str, Any] = {"type": "tcp", "bind": f"{host}:{port}"}
    if folder is None:
        name, settings = "amqtt.plugins.authentication.AnonymousAuthPlugin", {}
    else:
        files = {"certfile": folder.path / "server.pem", "keyfile": folder.path / "server.key"}
        listener |= {"ssl": True, **files}
        name, settings = f"{__name__}.FolderPlugin", {"folder": str(folder.path)}
    return {"listeners": {"default": listener}, "plugins": {name: settings}}


async def _serve(host: str, port: str, folder: BrokerFolder | None) -> None:
    ConnectPacket.PAYLOAD = _AnyVersionPayload
    broker = _LimitedBroker(_config(host, port, folder))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if folder is not None:
        plugin = broker.plugins_manager.get_plugin("FolderPlugin")
        tasks = set[asyncio.Task[None]]()
        loop.add_signal_handler(
            signal.SIGHUP, lambda: tasks.add(loop.create_task(broker.reread(plugin)))
        )
        # Who finds the pid may send that signal.
        folder.pid_file.write_text(f"{os.getpid()}\n", encoding="ascii")
    await broker.start()
    await stop.wait()
    if folder is not None:
        folder.pid_file.unlink(missing_ok=True)
    await broker.shutdown()


if __name__ == "__main__":
    _, _host, _port, *_folder = sys.argv
    asyncio.run(_serve(_host, _port, BrokerFolder(Path(_folder[0])) if _folder else None))
