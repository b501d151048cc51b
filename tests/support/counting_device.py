"""``protofleet`` with the counting strategy; dies by SIGKILL at the Nth write of its store.

Arguments: N (0: never), seconds to wait for the fate of an old update, then those of protofleet.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

from counting_strategy import counting

from protofleet import strategies
from protofleet.cli import main
from protofleet.edge import agent

_FATAL, _CALLS = int(sys.argv[1]), itertools.count(1)


def _deadly(function):
    def call(*args, **kwargs):
        if next(_CALLS) == _FATAL:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return call


strategies.STRATEGIES["counting"] = counting
strategies.DESCRIPTIONS["counting"] = counting(None, None).description
os.fsync = _deadly(os.fsync)
Path.replace = _deadly(Path.replace)
agent.SETTLE_S = float(sys.argv[2])
main(sys.argv[3:])
