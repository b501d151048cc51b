"""``protofleet`` that dies by SIGKILL at its Nth write; arguments: N, then its own."""

from __future__ import annotations

import sys

from deadly_writes import die_at_write

from protofleet.cli import main

die_at_write(int(sys.argv[1]))
main(sys.argv[2:])
