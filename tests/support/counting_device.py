"""``protofleet`` with the counting strategy; dies by SIGKILL at the Nth write of its store.

Arguments: N (0: never), seconds to wait for the fate of an old update, then those of protofleet.
"""

from __future__ import annotations

import sys

from counting_strategy import Counting
from deadly_writes import die_at_write

from protofleet import strategies
from protofleet.cli import main
from protofleet.edge import agent

strategies.STRATEGIES["counting"] = Counting
strategies.DESCRIPTIONS["counting"] = Counting.description
die_at_write(int(sys.argv[1]))
agent.SETTLE_S = float(sys.argv[2])
main(sys.argv[3:])
