"""Invites devices and answers them, for the browser's tests: ``inviting.py FOLDER BROKER``.

Each name on its standard input is invited, and the invitation written as a line. What the operator
is told goes to standard error. Devices are answered until the input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from invited import Inviting

from protofleet.wire.mqtt.broker_access import BrokerAccess


def main() -> None:
    folder, broker = sys.argv[1:]
    inviting = Inviting(Path(folder), BrokerAccess(url=broker))
    with inviting.answering():
        for name in sys.stdin:
            sys.stdout.write(f"{inviting.invite(name.strip())}\n")
            sys.stdout.flush()
    sys.stderr.write("".join(f"{line}\n" for line in inviting.told))


if __name__ == "__main__":
    main()
