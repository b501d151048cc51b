"""Power is cut at every write of a device's store, and the disk forgets what was not synced."""

from __future__ import annotations

import numpy as np
from power_loss import cuts, record
from trained_round import trained_round

from protofleet.edge.state.store import Store
from protofleet.strategies.types import ClientState

_ROUNDS = 3


def _state(round_id: int) -> ClientState:
    tensors = {"personal.w": np.full((2, 3), round_id, np.float32), "n": np.array([round_id])}
    return ClientState(round_id=round_id, tensors=tensors)


def work(folder, mark):
    """Rounds of a device: what a mark says the coordinator has been told, or has told."""
    with Store.open(folder, device_id="anna") as store:
        mark("joined")
        for round_id in range(1, _ROUNDS + 1):
            store.commit_received(round_id, f"r{round_id}", b"payload %d" % round_id)
            store.commit_trained(
                trained_round(_state(round_id), b"update %d" % round_id), transfer_id=f"t{round_id}"
            )
            mark(f"offered {round_id}")
            store.counters.record(100 * round_id, 200 * round_id)
            store.commit_delivered()
            mark(f"delivered {round_id}")


def test_a_store_loses_nothing_that_it_has_promised(tmp_path):
    root = tmp_path / "store"
    calls = record(__file__, root, tmp_path)
    tried = 0
    for cut in cuts(calls, root, tmp_path / "left"):
        tried += 1
        _check(cut)
    assert tried > 60


def _check(cut):
    delivered = sum(one.startswith("delivered") for one in cut.marks)
    offered = sum(one.startswith("offered") for one in cut.marks)
    where = f"{cut.place}, {cut.disk}, {cut.marks}"
    with Store.open(cut.folder, device_id=None) as store:
        if cut.marks:
            assert store.device_id == "anna", where
        journal = store.journal
        memory = store.load_memory().state
        counted = 0 if memory is None else memory.round_id
        assert counted in (delivered, delivered + 1), where
        if memory is not None:
            np.testing.assert_array_equal(
                memory.tensors["personal.w"], _state(counted).tensors["personal.w"]
            )
        if offered > counted:
            assert journal.stage == "outbox", where
        if journal.stage == "outbox":
            assert store.update_path().read_bytes() == b"update %d" % (counted + 1), where
        if journal.stage == "received":
            assert store.load_received() == b"payload %d" % (counted + 1), where
