"""The device store: identity, lock, commits, and a process killed at every single write."""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from deadly_writes import die_at_write
from trained_round import trained_round

from protofleet.edge.state.journal import read_blob
from protofleet.edge.state.store import Store, StoreBinding, read_personal
from protofleet.errors import InputError, ProvisionError, RefusedError, UnavailableError
from protofleet.strategies.types import ClientState
from protofleet.tensors import blobs

_BINDING = StoreBinding(federation="fed", bundle="ab", layout_hash="cd")


def _state(round_id: int) -> ClientState:
    tensors = {"personal.w": np.full((2, 3), round_id, np.float32), "n": np.array([round_id])}
    return ClientState(round_id=round_id, tensors=tensors)


def test_the_identity_is_made_once_and_kept(tmp_path):
    with Store.open(tmp_path / "s") as store:
        first = store.device_id
    with Store.open(tmp_path / "s") as store:
        assert store.device_id == first
    with Store.open(tmp_path / "t") as other:
        assert other.device_id != first


def test_another_identity_is_refused(tmp_path):
    Store.open(tmp_path, device_id="anna").close()
    with pytest.raises(ProvisionError, match="belongs to device 'anna', got --id 'berta'"):
        Store.open(tmp_path, device_id="berta")
    Store.open(tmp_path, device_id="anna").close()


def test_a_link_in_a_store_is_refused_and_nothing_is_written_through_it(tmp_path):
    (tmp_path / "mine").write_text("kept")
    Store.open(tmp_path / "s").close()
    (tmp_path / "s" / "counters.bin").unlink()
    (tmp_path / "s" / "counters.bin").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match=r"'counters.bin' is a link to .* rm "):
        Store.open(tmp_path / "s")
    assert (tmp_path / "mine").read_text() == "kept"


def test_an_identity_that_cannot_be_a_topic_is_refused(tmp_path):
    with pytest.raises(InputError, match="device id"):
        Store.open(tmp_path, device_id="a/b")


def test_two_processes_cannot_share_a_store(tmp_path):
    with (
        Store.open(tmp_path),
        pytest.raises(UnavailableError, match="another process uses it"),
    ):
        Store.open(tmp_path)
    Store.open(tmp_path).close()


def test_a_store_of_another_federation_or_bundle_is_refused(tmp_path):
    with Store.open(tmp_path) as store:
        store.bind(_BINDING)
        store.bind(_BINDING)
        with pytest.raises(ProvisionError, match="belongs to bundle 'ab', got 'xx'"):
            store.bind(StoreBinding(federation="fed", bundle="xx", layout_hash="cd"))


def test_a_state_of_another_strategy_is_refused(tmp_path):
    with Store.open(tmp_path) as store:
        store.bind_strategy("fedavg", {"lr": 0.1})
        store.bind_strategy("fedali", {})
        store.commit_trained(trained_round(_state(1), b"update"), transfer_id="t")
        store.commit_delivered()
        with pytest.raises(ProvisionError, match="state is of strategy 'fedali'"):
            store.bind_strategy("fedavg", {})


def test_a_state_is_the_devices_own_only_after_delivery(tmp_path):
    with Store.open(tmp_path) as store:
        store.commit_received(1, "t1", b"payload")
        assert (store.journal.stage, store.load_received()) == ("received", b"payload")
        store.commit_trained(trained_round(_state(1), b"update"), transfer_id="t")
        assert (store.journal.stage, store.update_path().read_bytes()) == ("outbox", b"update")
        assert store.load_memory().state is None
        store.commit_delivered()
    with Store.open(tmp_path) as store:
        assert store.journal.stage == "idle"
        kept = store.load_memory().state
        assert kept.round_id == 1
        for name, expected in _state(1).tensors.items():
            np.testing.assert_array_equal(kept.tensors[name], expected)


def test_a_dropped_round_leaves_no_trace(tmp_path):
    with Store.open(tmp_path) as store:
        store.commit_trained(trained_round(_state(1), b"update 1"), transfer_id="t")
        store.commit_delivered()
        store.commit_trained(trained_round(_state(2), b"update 2"), transfer_id="t")
        store.commit_dropped()
        assert store.load_memory().state.round_id == 1
        assert store.update_path().read_bytes() == b"update 1"
        assert len(list(tmp_path.glob("*.blob"))) == 2


def test_a_dropped_round_keeps_the_residual_of_the_last_that_counted(tmp_path):
    with Store.open(tmp_path) as store:
        for round_id in (1, 2):
            residual = {"params/w": np.full(2, round_id, np.float32)}
            trained = trained_round(_state(round_id), b"u", residual)
            store.commit_trained(trained, transfer_id="t")
            if round_id == 1:
                store.commit_delivered()
        assert store.load_memory().residual["params/w"].tolist() == [1, 1]
        store.commit_dropped()
        assert store.load_memory().residual["params/w"].tolist() == [1, 1]
        assert len(list(tmp_path.glob("*.blob"))) == 3


def test_a_base_that_a_later_payload_named_stays_and_older_ones_go(tmp_path):
    """The coordinator may refer to either until it knows that the device is past the first."""
    with Store.open(tmp_path) as store:
        names = []
        for number in range(4):
            # Round 2 was not accepted: round 3 refers to the payload of round 1 again.
            reference = names[min(number, 2) - 1] if number else ""
            raw = blobs.encode({"n": np.array(number)})
            store.commit_received(number, "t", raw, reference=reference)
            names.append(store.journal.payloads[-1].sha256)
            store.commit_dropped()
        assert [store.has_payload(name) for name in names] == [False, True, False, True]
        assert store.load_payload(names[3])["n"] == 3
        with pytest.raises(RefusedError, match="does not have it"):
            store.load_payload(names[0])
        store.commit_received(5, "t", b"raw")
        assert store.journal.payloads == ()


def test_leftovers_are_removed_and_damage_is_named(tmp_path):
    with Store.open(tmp_path) as store:
        store.commit_trained(trained_round(_state(1), b"update"), transfer_id="t")
        store.commit_delivered()
    (tmp_path / "journal.json.tmp").write_bytes(b"{")
    (tmp_path / ("0" * 64 + ".blob")).write_bytes(b"half")
    with Store.open(tmp_path) as store:
        assert not list(tmp_path.glob("*.tmp"))
        kept = list(tmp_path.glob("*.blob"))
        assert len(kept) == 2
        for path in kept:
            path.write_bytes(b"flipped")
        for read in (store.load_memory, store.update_path):
            with pytest.raises(ProvisionError, match="storage is damaged"):
                read()
    (tmp_path / "journal.json").write_bytes(b"{")
    with pytest.raises(ProvisionError, match="damaged"):
        Store.open(tmp_path)


def test_byte_counters_add_up_over_restarts(tmp_path):
    with Store.open(tmp_path) as store:
        store.counters.record(10, 20)
        store.counters.record(30, 40)
    with Store.open(tmp_path) as store:
        assert store.counters.totals == (30, 40)
        store.counters.record(1, 2)
        assert store.counters.totals == (31, 42)


def _rounds(folder: Path, fatal: int) -> None:
    """Three rounds on the store; SIGKILL before the ``fatal``-th fsync, rename or removal."""
    die_at_write(fatal)
    with Store.open(folder, device_id="d") as store:
        while _advance(store, folder):
            pass


def _advance(store: Store, folder: Path) -> bool:
    state = store.load_memory().state or ClientState(round_id=0, tensors={"sum": np.zeros(1)})
    round_id = state.round_id + 1
    if store.journal.stage == "outbox":
        shutil.copy(store.update_path(), folder / f"delivered-{round_id}")
        store.commit_delivered()
    elif store.journal.stage == "received":
        new = {"sum": state.tensors["sum"] * 10 + store.load_received()[0]}
        trained = ClientState(round_id=round_id, tensors=new)
        left = store.load_memory().residual.get("sum", np.zeros(1)) * 10 + round_id + 0.5
        update = f"{new['sum'][0]} {left[0]}".encode()
        store.commit_trained(trained_round(trained, update, {"sum": left}), transfer_id="t")
    elif round_id <= 3:
        held = store.journal.payloads
        base = held[-1].sha256 if held else ""
        store.commit_received(round_id, "t", bytes([round_id]), reference=base)
    return store.journal.stage != "idle" or round_id <= 3


@pytest.mark.slow(seconds=3)
def test_killed_at_every_write_the_store_ends_in_the_undisturbed_state(ram_path):
    """One SIGKILL before each fsync, rename and removal: the restart finishes with equal values."""
    fork = multiprocessing.get_context("fork")
    killed = 0
    for fatal in itertools.count(1):
        folder = ram_path / f"store-{fatal}"
        for deadly_call in (fatal, 0):
            process = fork.Process(target=_rounds, args=(folder, deadly_call))
            process.start()
            process.join()
            if deadly_call:
                killed += process.exitcode == -signal.SIGKILL
        assert process.exitcode == 0
        with Store.open(folder) as store:
            assert store.load_memory().state.tensors["sum"] == 123
            assert store.journal.stage == "idle"
            assert store.load_memory().residual["sum"] == 178.5
            kept = [read_blob(folder, file) for file in store.journal.payloads]
            assert kept == [b"\2", b"\3"]
            assert len(list(folder.glob("*.blob"))) == 5
        updates = [(folder / f"delivered-{r}").read_text() for r in (1, 2, 3)]
        assert updates == ["1.0 1.5", "12.0 17.5", "123.0 178.5"]
        if killed < fatal:
            break
    assert killed > 30


def test_personal_state_can_be_read_beside_the_running_device(tmp_path):
    with pytest.raises(InputError, match="join a federation first"):
        read_personal(tmp_path)
    with Store.open(tmp_path) as store:
        with pytest.raises(InputError, match="no round was finished"):
            read_personal(tmp_path)
        store.bind(_BINDING)
        store.bind_strategy("fedali", {"lr": 1})
        store.commit_trained(trained_round(_state(1), b"update"), transfer_id="t")
        store.commit_delivered()
        personal, state = read_personal(tmp_path)
        assert (personal.binding, personal.strategy) == (_BINDING, "fedali")
        assert state.round_id == personal.state.round_id == 1


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path):
    """The lock holds between processes and vanishes with its holder."""
    code = (
        "import pathlib,sys\nfrom protofleet.edge.state.store import Store\n"
        "store = Store.open(pathlib.Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(UnavailableError):
            Store.open(tmp_path)
        child.kill()
    Store.open(tmp_path).close()
