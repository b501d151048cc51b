"""What a coordinator finds of updates that had not arrived whole when its last process ended."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.process.run import _make_endpoint
from protofleet.federation.records import Scores
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.strategies.types import ServerState
from protofleet.wire.trust.protection import Plain


@pytest.mark.parametrize("opens", [True, False])
def test_they_stay_while_their_round_is_open_and_go_after_it(tiny, opens):
    config = tiny.plan.config
    with Ledger(config.run_dir, tiny.plan.identity) as ledger:
        if opens:
            ledger.open_round(1, ("a",), 0.0)
        partial = ledger.folder / "partial" / "a" / "data"
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"half of an update")
        _make_endpoint(config, ledger, Plain(), 1000).close()
        assert partial.exists() == opens


@pytest.mark.parametrize("late", ["weighted", "drop"])
def test_those_behind_their_round_stay_where_the_schedule_waits_for_them(tiny, late):
    config = msgspec.structs.replace(tiny.plan.config, schedule=ScheduleSettings(late=late))
    with Ledger(config.run_dir, tiny.plan.identity) as ledger:
        ledger.open_round(1, ("a", "b"), 0.0)
        ledger.close_round(1)
        after = ServerState(round_id=1, tensors={"w": np.zeros(1)})
        ledger.commit_round(after, Scores(), 1.0, keep_states=2)
        partial = ledger.folder / "partial" / "a" / "data"
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"half of an update")
        _make_endpoint(config, ledger, Plain(), 1000).close()
        assert partial.exists() == (late == "weighted")
