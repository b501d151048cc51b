"""A link and a Mosquitto alone in a network namespace; prints what each says has passed, as JSON.

Run as ``unshare -Urn python counted_link.py FOLDER``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from brokers import mosquitto, wait_until

from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Link, LinkOptions, MqttMessage

_MESSAGES, _BYTES = 200, 50_000


def interface() -> tuple[int, int]:
    """Bytes and packets that the loopback interface has sent."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    fields = next(line for line in lines if line.strip().startswith("lo:")).split()
    return int(fields[9]), int(fields[10])


def sent_again() -> int:
    """Segments that TCP, whose timers run out on a busy machine, has sent a second time."""
    names, figures = (
        line.split()
        for line in Path("/proc/self/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(dict(zip(names, figures, strict=True))["RetransSegs"])


def main(folder: Path) -> None:
    """Publish to ourselves, and count."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with mosquitto(folder) as port:
        options = LinkOptions(broker=BrokerAccess(url=f"mqtt://127.0.0.1:{port}"), filters=("x",))
        before = interface()
        with closing(Link(options)) as link:
            link.start()
            while not isinstance(link.get(10.0), Connected):
                pass
            for _ in range(_MESSAGES):
                link.publish("x", bytes(_BYTES))
                while not isinstance(link.get(10.0), MqttMessage):
                    pass
            wait_until(lambda: link.traffic.payload_down_bytes == _MESSAGES * _BYTES)
            traffic, after = link.traffic, interface()
    counted = traffic.socket_up_bytes + traffic.socket_down_bytes
    sent, packets = (now - then for now, then in zip(after, before, strict=True))
    told = {"counted": counted, "interface": sent, "packets": packets, "again": sent_again()}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
