from __future__ import annotations

import logging

from fake_endpoint import Clock

from protofleet.edge import log_throttle
from protofleet.edge.log_throttle import BURST, MINUTE_S, WarningThrottle


def test_a_flood_of_one_kind_is_ten_lines_and_one_a_minute_that_counts(monkeypatch, caplog):
    clock = Clock()
    monkeypatch.setattr(log_throttle, "time", clock)
    warnings = WarningThrottle(logging.getLogger("protofleet.test"))
    for i in range(10_000):
        warnings.warning("ignored a message: %s", i)
    assert len(caplog.messages) == BURST
    warnings.warning("another kind")
    assert caplog.messages[-1] == "another kind"
    clock.advance(MINUTE_S)
    warnings.warning("ignored a message: %s", "last")
    warnings.warning("ignored a message: %s", "and least")
    assert len(caplog.messages) == BURST + 2
    assert caplog.messages[-1] == (
        f"ignored a message: last (and {10_000 - BURST} more since the last such line)"
    )
