"""``protofleet chaos`` in its quick form: faults of every layer cost time, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.bundle.keys import save_public_key
from protofleet.chaos.evidence import Evidence, gather
from protofleet.chaos.faults import FAULTS
from protofleet.chaos.models import DEVICES, METHODS
from protofleet.chaos.page import page
from protofleet.chaos.processes import namespaces_permitted
from protofleet.chaos.run import DisturbedRun, FaultResult, Options, schedule
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.datasets import DeviceData
from protofleet.edge.state.store import Store
from protofleet.errors import InputError

_COLUMNS = {
    "fault",
    "injected",
    "rounds_completed",
    "lost",
    "counted_twice",
    "bytes_resent",
    "same_bits",
}


@pytest.fixture
def models(tmp_path, key):
    """A folder with a bundle that was not exported, because that takes longer than all of this."""
    folder = tmp_path / "chaos" / "models" / METHODS["fedavg"].model[0]
    folder.mkdir(parents=True)
    tiny_bundle(folder / "bundle.pfb", key, features=40)
    save_public_key(key.public_key().public_bytes_raw(), folder / "signer.pem")
    for number, device in enumerate(DEVICES):
        x, y = tiny_data(number, 24, features=40)
        classes = ("class0", "class1", "class2")
        own = DeviceData(x_train=x, y_train=y, x_test=x, y_test=y, classes=classes)
        own.save(folder / f"{device}.npz")
    return tmp_path / "chaos"


@pytest.mark.mosquitto
@pytest.mark.slow(seconds=25)
@pytest.mark.timeout(300)
@pytest.mark.skipif(not shutil.which("unshare"), reason="no util-linux")
def test_faults_of_every_layer_change_no_bit(models, tmp_path):
    faults = ["coordinator-kill", "network-cut"]
    faults += ["disk-full"] if namespaces_permitted() else []
    command = [
        "chaos",
        "--strategies",
        "fedavg,fedavg-buffered",
        "--rounds",
        "2",
        "--injections",
        "3",
        "--broadcast-from",
        "3",
    ]
    files = ["--folder", models, "--json", tmp_path / "rows.json", "--out", tmp_path / "page.md"]
    done = subprocess.run(
        [sys.executable, "-m", "protofleet", *command, "--faults", ",".join(faults), *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["fault"] for row in rows] == faults
    for row in rows:
        assert row.keys() == _COLUMNS
        assert row["injected"] >= 4
        assert row["rounds_completed"] == 4
        assert (row["lost"], row["counted_twice"], row["same_bits"]) == (0, 0, True)
    file = models / "runs" / "network-cut-fedavg" / "federation.toml"
    assert "broadcast_from = 3" in file.read_text()
    assert "| `network-cut` |" in (tmp_path / "page.md").read_text()


def _evidence(**changes):
    places = {(device, number): f"{device}{number}" for device in DEVICES for number in (1, 2)}
    told = {
        "states": {1: "aa", 2: "bb"},
        "counted": places,
        "models": dict.fromkeys(DEVICES, "cc"),
        "receipts": frozenset(places),
        "admitted": tuple(places),
    }
    return Evidence(**{**told, **changes})


def test_what_is_lost_or_counted_twice_is_found():
    calm = _evidence()
    assert (calm.lost, calm.counted_twice, calm.same_bits(_evidence())) == (0, 0, True)
    counted = dict(calm.counted)
    del counted["anna", 1]
    lossy = _evidence(counted=counted)
    assert (lossy.lost, lossy.same_bits(calm)) == (1, False)
    again = _evidence(admitted=(*calm.admitted, ("anna", 1)))
    assert again.counted_twice == 1
    elsewhere = _evidence(counted={**calm.counted, ("anna", 2): calm.counted["anna", 1]})
    assert elsewhere.counted_twice == 1
    assert not _evidence(states={1: "aa", 2: "xx"}).same_bits(calm)
    assert not _evidence(models={**calm.models, "anna": "xx"}).same_bits(calm)


def test_the_schedule_follows_from_the_seed():
    def drawn(seed):
        options = Options(rounds=3, injections=4, seed=seed)
        return list(schedule(options, FAULTS["network-cut"], "fedavg"))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert np.shape(drawn(1)) == (3, 4, 2)


def test_a_fault_that_there_is_not_is_named():
    with pytest.raises(InputError, match="fault 'fire': expected one of broker-restart"):
        Options(faults=("fire",))


def test_a_federation_that_did_not_end_has_not_the_same_bits():
    calm = _evidence()
    outcome = DisturbedRun(
        strategy="fedavg",
        evidence=calm,
        expected=calm,
        injected=1234,
        finished=False,
        bytes_resent=7,
        most_resent=7,
        seconds=1.0,
    )
    found = FaultResult(fault=FAULTS["clock"], outcomes=[outcome])
    assert not found.row.same_bits
    assert "| `clock` | 1,234 | 2 | 0 | 0 | 7 | 7 | **no** |" in page([found], Options())


def test_a_device_none_of_whose_updates_counted_keeps_no_model(tmp_path):
    """In a buffered run the others' may fill every buffer."""
    run_dir = tmp_path / "run"
    with Ledger(run_dir, {"federation": "home"}):
        pass
    with Store.open(tmp_path / "store", device_id="anna"):
        pass
    events = {"anna": tmp_path / "anna.jsonl"}
    found = gather(run_dir, {"anna": tmp_path / "store"}, events)
    assert found.same_bits(Evidence(states={}, counted={}, models={}))
