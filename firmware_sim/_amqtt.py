"""The embedded amqtt broker: ``python -m protofleet.firmware_sim._amqtt HOST PORT``."""

from __future__ import annotations

import asyncio
import signal
import sys

from amqtt.broker import Broker


async def _serve(host: str, port: int) -> None:
    config = {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
    broker = Broker(config)
    await broker.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
