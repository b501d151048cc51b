"""Stores of earlier versions, each with an update on its way: ``stores``."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from protofleet import __version__
from protofleet.edge.state.journal import FORMAT, OLDEST, read_journal
from protofleet.edge.state.store import Store, StoreBinding, read_personal
from protofleet.errors import ProvisionError

_STORES = Path(__file__).with_name("stores")
_BINDING = StoreBinding(federation="fed", bundle="ab" * 32, layout_hash="cd" * 32)


@pytest.fixture
def stored(tmp_path):
    def unpack(number):
        with tarfile.open(_STORES / f"format{number}.tar.xz") as tar:
            tar.extractall(tmp_path / f"{number}", filter="data")
        folder = tmp_path / f"{number}" / "store"
        folder.chmod(0o700)
        return folder

    return unpack


def test_there_is_a_store_of_every_format():
    found = {path.name for path in _STORES.glob("*.tar.xz")}
    assert found == {f"format{number}.tar.xz" for number in range(OLDEST, FORMAT + 1)}


@pytest.mark.parametrize("number", range(OLDEST, FORMAT + 1))
def test_a_store_goes_on_where_it_was(stored, number):
    folder = stored(number)
    former, before = folder / f"journal.format{number}.json", (folder / "journal.json").read_bytes()
    _, personal = read_personal(folder)
    assert personal.tensors["personal.w"].tolist() == [[1.0] * 3] * 2
    with Store.open(folder, device_id="anna") as store:
        store.bind(_BINDING)
        store.bind_strategy("fedavg", {"lr": 0.1})
        assert store.journal.stage == "outbox"
        if number != FORMAT:
            assert former.read_bytes() == before
        store.commit_delivered()
        assert not former.exists()
    _, state = read_personal(folder)
    assert state.round_id == 2
    np.testing.assert_array_equal(state.tensors["personal.w"], np.full((2, 3), 2.0))
    written = json.loads((folder / "journal.json").read_bytes())
    assert (written["format"], written["version"]) == (FORMAT, __version__)


@pytest.mark.parametrize(
    ("found", "version", "remedy"),
    [
        (99, "9.8.7", r"install version 9\.8\.7 or a later one"),
        (1, "", "use another --store"),
        ("x", "", "use another --store"),
        (None, "", "use another --store"),
    ],
)
def test_another_format_is_refused_with_the_version_that_reads_it(stored, found, version, remedy):
    folder = stored(FORMAT)
    path = folder / "journal.json"
    changed = {**json.loads(path.read_text()), "format": found, "version": version}
    path.write_text(json.dumps(changed))
    with pytest.raises(ProvisionError, match=rf"reads formats .*, got format {found}: {remedy}"):
        read_journal(folder)
