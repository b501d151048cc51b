"""``protofleet`` that SIGKILL ends when it hears that its update of round N was taken; N first.

The coordinator has the update by then, and the store does not know it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from protofleet.cli import main
from protofleet.edge.state.store import Store

fatal = int(sys.argv[1])
commit_delivered = Store.commit_delivered


def _die_or_commit(store: Store) -> Any:
    pending = store.journal.pending
    if pending is not None and pending.round_id == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return commit_delivered(store)


Store.commit_delivered = _die_or_commit
main(sys.argv[2:])
