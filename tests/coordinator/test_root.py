"""The root's ledger: what it knows of devices from the reports of cells, after a crash too."""

import pytest
from packed import pack_update
from toy_model import server_tools

from protofleet.coordinator.cells import root
from protofleet.coordinator.ledger.root import RootLedger
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.errors import RefusedError
from protofleet.federation import cells
from protofleet.federation.records import Costs, Scores, UpdateRecord
from protofleet.strategies.types import Update
from protofleet.wire.messages import Presence


@pytest.fixture
def opened(tiny):
    plan = tiny.plan
    ledgers = []

    def open_again():
        while ledgers:
            ledgers.pop().close()
        run_dir = plan.config.run_dir
        ledger = RootLedger(run_dir, plan.identity, strategy=plan.strategy, patience_s=0.0)
        ledgers.append(ledger)
        return ledger

    yield open_again
    while ledgers:
        ledgers.pop().close()


def _arrival(tiny, folder, cell, clients):
    files, entries = [], []
    for client in clients:
        update = Update(
            client_id=client, round_id=1, num_examples=cell * 10, tensors=tiny.tensors()
        )
        file = folder / f"{cell}-{client}"
        file.write_bytes(pack_update(update, Costs()))
        files.append(file)
        record = UpdateRecord(client_id=client, round_id=1, num_examples=cell * 10)
        entries.append(
            cells.ReportedUpdate(
                device_id=client,
                transfer_id=f"{cell:032x}",
                record=record,
                norms={"params": float(cell)},
                bytes=file.stat().st_size,
            )
        )
    path = folder / f"{cell}.report"
    cells.write_report(
        path, cells.ReportHeader(cell=cell, round_id=1, updates=tuple(entries)), files
    )
    name = cells.cell_name(cell)
    record = UpdateRecord(client_id=name, round_id=1, num_examples=0)
    return ArrivedUpdate(path, Accepted(device_id=name, transfer_id=f"{cell:032x}", record=record))


def test_devices_of_all_accepted_reports_count_each_once_over_restarts(tiny, opened, tmp_path):
    ledger = opened()
    ledger.open_round(1, ("cell-1", "cell-2", "cell-3"), 0.0)
    second = _arrival(tiny, tmp_path, 2, ["anna", "dora"])
    ledger.accept(second)
    ledger.accept(_arrival(tiny, tmp_path, 1, ["anna", "berta"]))
    ledger = opened()
    ledger.close_round(1)
    found = list(ledger.accepted(1))
    assert [one.device_id for one in found] == ["anna", "berta", "dora"]
    assert [one.record.num_examples for one in found] == [10, 10, 20]
    assert [one.norms["params"] for one in found] == [1.0, 1.0, 2.0]
    updates = ledger.updates(1)
    assert [(one.client_id, one.num_examples) for one in updates] == [
        ("anna", 10),
        ("berta", 10),
        ("dora", 20),
    ]
    state = tiny.plan.strategy.aggregate(tiny.plan.server_init(), updates, server_tools())
    ledger.commit_round(state, Scores(), 1.0, keep_states=1)
    assert [one.participants for one in ledger.committed()] == [3]
    assert [one.device_id for one in opened().accepted(1)] == ["anna", "berta", "dora"]


def test_the_cells_of_the_file_take_part_and_nobody_else():
    registry = root._Cells(
        bundle="bundle", layout_hash="layout", strategy="fedavg", silent_after_s=60.0
    )
    registry.of_federation("federation", 3)

    def comes(name):
        presence = Presence(
            device_id=name, boot_id="1", status="online", bundle="bundle", layout_hash="layout"
        )
        return registry.presence(name, presence, 0.0).live

    assert all(comes(cells.cell_name(number)) for number in (1, 2, 3))
    for stranger in (cells.cell_name(0), cells.cell_name(4), "anna"):
        with pytest.raises(RefusedError, match="has 3 cells, and devices join one of them"):
            comes(stranger)
