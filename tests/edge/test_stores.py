"""Stores in the user's data: listed, found when there is one, forgotten."""

from __future__ import annotations

import pytest
from personal import opened_store

from protofleet.edge.state.store import Store
from protofleet.edge.state.stores import (
    default_store,
    list_stores,
    only_store,
    reset_store,
    store_option,
    stores_folder,
    summarise,
)
from protofleet.errors import InputError, UnavailableError


@pytest.fixture(autouse=True)
def _users_data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_the_only_store_is_found_and_of_several_all_are_named(world):
    with pytest.raises(InputError, match=r"none in '.*devices'; give --store, or join"):
        only_store()
    first, second = default_store("home", None), default_store("home", "berta")
    opened_store(first, world.bundle).close()
    assert only_store() == first
    assert store_option(first) == ""
    assert store_option(world.root / "my store") == f"--store '{world.root}/my store'"
    Store.open(second, device_id=second.name).close()
    assert only_store() == first  # no federation has ever answered the other one
    opened_store(second, world.bundle).close()
    with pytest.raises(InputError, match="there are 2, choose one") as error:
        only_store()
    for path in (first, second):
        assert f"--store {path}" in str(error.value)
    assert first.parent == second.parent == stores_folder()


def test_a_listing_tells_what_each_store_is(world):
    opened_store(default_store("home", None), world.bundle).close()
    Store.open(default_store("new", "berta"), device_id="berta").close()
    damaged = default_store("old", "carla")
    Store.open(damaged, device_id="carla").close()
    (damaged / "journal.json").write_text("{")
    home, new, old = list_stores()
    assert (home.federation, home.device_id, home.round_id) == ("test-fed", "home", 2)
    assert home.bundle == "tiny"
    assert home.size_bytes > 3000
    assert (new.federation, new.device_id, new.bundle, new.round_id) == ("", "berta", "", 0)
    assert "damaged" in old.problem
    assert list_stores(world.root) == []


def test_a_reset_forgets_everything_but_the_identity(personal_store):
    reset_store(personal_store)
    assert sorted(path.name for path in personal_store.iterdir()) == ["identity.json", "lock"]
    with Store.open(personal_store) as store:
        assert (store.device_id, store.journal.binding) == ("anna", None)
        with pytest.raises(UnavailableError, match="another process uses it"):
            reset_store(personal_store)
    (personal_store / "journal.json").write_text("{")
    reset_store(personal_store)
    assert summarise(personal_store).problem == ""
    reset_store(personal_store, with_identity=True)
    assert not personal_store.exists()
