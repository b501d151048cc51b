"""Files of users and operators, damaged: each reader ends in one line, and nothing else escapes."""

from __future__ import annotations

import io
import random
import shutil
import sqlite3
import zipfile

import numpy as np
import pytest
from tiny_bundle import tiny_data

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.queries import read_identity
from protofleet.datasets import load_device_data
from protofleet.edge.state.journal import StoreBinding
from protofleet.edge.state.store import Store, read_personal
from protofleet.edge.state.stores import summarise
from protofleet.errors import InputError, ProtofleetError, ProvisionError
from protofleet.federation.settings import load_config
from protofleet.firmware_sim.profile import load_fleet

_DEEP = b"[" * 100_000
_INSERTED = (b"9" * 400, b"[" * 3000, b'{"a":' * 3000, b"\xff\xfe", b"\0", b"1e400", b'"\\ud800"')
_WORDS = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0")
_ROUNDS = 150


def _damaged(data: bytes, rng: random.Random) -> bytes:
    """One kind of damage, in one to five places."""
    found, kind = bytearray(data), rng.randrange(5)
    for _ in range(rng.choice([1, 2, 5])):
        at = rng.randrange(max(len(found) - 8, 1))
        if kind == 0:
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[at:]
            found += b"\0"
        elif kind == 2:
            found[at:at] = rng.choice(_INSERTED)
        elif kind == 3:
            found[at : at + 4] = rng.choice(_WORDS)
        else:
            del found[at : at + rng.randrange(16)]
    return bytes(found)


def _survives(data, path, read):
    """Every damaged form is read, or refused in one line."""
    rng, said = random.Random(7), []
    for _ in range(_ROUNDS):
        path.write_bytes(_damaged(data, rng))
        try:
            read(path)
        except ProtofleetError as error:
            said.append(str(error))
    assert said
    assert not any("\n" in line for line in said)


def _npz(**more):
    x, y = tiny_data(0)
    file = io.BytesIO()
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(file, **arrays, classes=("a", "b", "c"), **more)
    return file.getvalue()


def test_data_in_any_state(tmp_path):
    _survives(_npz(), tmp_path / "a.npz", load_device_data)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1099511627776)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (281474976710656,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, '",
        b"(" * 5000,
        b"\xff\xfe",
        b"{'descr': 5, 'fortran_order': 1, 'shape': 7}",
    ],
    ids=range(7),
)
@pytest.mark.parametrize("method", [0, 8, 12, 99])
def test_an_array_with_a_header_that_is_none(tmp_path, header, method):
    """No memory holds it, no Python reads it, and no ZIP reader knows the method 99."""
    path, whole = tmp_path / "a.npz", io.BytesIO(_npz())
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, data if name == "x_train.npy" else old.read(name), method % 99)
    if method == 99:
        content = path.read_bytes().replace(
            b"PK\x01\x02\x14\x03\x14\0\0\0\0\0", b"PK\x01\x02\x14\x03\x14\0\0\0c\0"
        )
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a plain \.npz file \(.+\)"):
        load_device_data(path)


_FEDERATION = b"""federation = "home"
broker = "mqtt://127.0.0.1"
bundle = "b.pfb"
run_dir = "r"
rounds = 3
[round]
quorum = 0.5
[strategy.settings]
epochs = 2
"""
_FLEET = b"""federation = "home"
broker = {url = "mqtt://127.0.0.1"}
bundle = "b.pfb"
folder = "f"
[[devices]]
id = "a"
[profiles.x.link]
delay_ms = 1
"""


@pytest.mark.parametrize(("data", "read"), [(_FEDERATION, load_config), (_FLEET, load_fleet)])
def test_files_of_federations_and_fleets(tmp_path, data, read):
    path = tmp_path / "a.toml"
    _survives(data, path, read)
    path.write_bytes(b"a = " + _DEEP)
    with pytest.raises(InputError, match=r"a\.toml: "):
        read(path)
    path.write_bytes(b'federation = "\xff"')
    with pytest.raises(InputError, match=r"a\.toml: "):
        read(path)


@pytest.mark.parametrize("name", ["journal.json", "identity.json"])
def test_a_store(tmp_path, name):
    store = tmp_path / "store"
    with Store.open(store, device_id="anna") as opened:
        opened.bind(StoreBinding(federation="f", bundle="0" * 64, layout_hash="0" * 64))

    def read(_):
        summarise(store)
        with pytest.raises((InputError, ProvisionError)):  # no round has counted
            read_personal(store)
        Store.open(store).close()

    good = (store / name).read_bytes()
    _survives(good, store / name, read)
    for content in (_DEEP, b'{"device_id": "\xff", "strategy": "\xff"}'):
        (store / name).write_bytes(content)
        assert summarise(store).problem
        with pytest.raises(ProvisionError, match="damaged"):
            Store.open(store)


def test_a_ledger(tmp_path):
    run, copy = tmp_path / "run", tmp_path / "copy"
    Ledger(run, {"federation": "home"}).close()
    shutil.copytree(run, copy)
    data = (run / "ledger.sqlite").read_bytes()
    _survives(data, copy / "ledger.sqlite", lambda _: read_identity(copy))
    with sqlite3.connect(run / "ledger.sqlite") as db:
        db.execute("UPDATE meta SET value = CAST(x'ff' AS TEXT)")
    with pytest.raises(InputError, match=r"its ledger cannot be read \(.*; restore the folder, or"):
        read_identity(run)
