"""Runs the embedded broker with the set-up FOLDER of ``protofleet broker init``, until it is ended.

    python embedded_broker.py FOLDER

``protofleet broker run`` would take Mosquitto where that is installed.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from protofleet.broker.folder import BrokerFolder
from protofleet.firmware_sim.broker import BrokerOptions, open_broker

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = BrokerFolder.open(Path(sys.argv[1]))
    with open_broker(BrokerOptions(kind="amqtt", folder=folder)):
        signal.pause()
