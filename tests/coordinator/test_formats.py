"""Run folders of earlier versions, each in the middle of its second round: ``folders``."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from fake_endpoint import CONNECTED

from protofleet import __version__
from protofleet.bundle import Bundle
from protofleet.coordinator.ledger import formats
from protofleet.coordinator.ledger.control import Orders, extended_rounds
from protofleet.coordinator.ledger.formats import FORMAT, OLDEST
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.queries import read_identity
from protofleet.coordinator.status import read_status
from protofleet.errors import InputError
from protofleet.federation.plan import make_plan

_FOLDERS = Path(__file__).with_name("folders")


@pytest.fixture
def stored(open_federation, tmp_path, clock):
    """The federation of a stored run folder."""

    def unpack(number):
        place = tmp_path / f"format{number}"
        with tarfile.open(_FOLDERS / f"format{number}.tar.xz") as tar:
            tar.extractall(place, filter="data")
        for folder in (place / "run", *(place / "run").rglob("*/")):
            folder.chmod(0o700)
        made = open_federation(rounds=3)
        signer = Bundle.open(place / "tiny.pfb", any_signer=True).signer
        config = msgspec.structs.replace(
            made.plan.config,
            bundle=place / "tiny.pfb",
            trusted=(signer,),
            run_dir=place / "run",
        )
        return type(made)(make_plan(config), place, clock)

    return unpack


def _meta(folder, **values):
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db, db:
        for key, value in values.items():
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def test_there_is_a_folder_of_every_format():
    found = {path.name for path in _FOLDERS.glob("*.tar.xz")}
    assert found == {f"format{number}.tar.xz" for number in range(OLDEST, FORMAT + 1)}


@pytest.mark.parametrize("number", range(OLDEST, FORMAT + 1))
def test_a_run_goes_on_in_the_middle_of_its_round_with_the_same_bits(
    stored, open_federation, number
):
    whole = open_federation(rounds=3, name="whole")
    rounds = [whole.delivers(name, k) for k in (1, 2, 3) for name in ("a", "b")]
    whole.play(CONNECTED, whole.online("a"), whole.online("b"), *rounds)
    fed, former = stored(number), f"ledger.format{number}.sqlite"
    run, both = fed.plan.config.run_dir, [fed.online("a"), fed.online("b")]
    fed.play(CONNECTED, both)
    assert fed.state.delivered == {"a"}
    assert (run / former).exists() == (number != FORMAT)
    fed.play(CONNECTED, both, fed.delivers("b", 2), fed.delivers("a", 3), fed.delivers("b", 3))
    assert not (run / former).exists(), "it is of no use once a round is committed"
    assert fed.server_state.round_id == 3
    for name, tensor in whole.server_state.tensors.items():
        assert fed.server_state.tensors[name].tobytes() == tensor.tobytes()
    assert read_identity(run)["format"] == str(FORMAT)
    assert read_identity(run)["version"] == __version__
    assert read_status(fed.plan.config).phase == "finished"


def test_who_only_looks_or_orders_leaves_it_to_the_coordinator(stored):
    config = stored(OLDEST).plan.config
    for use in (read_status, lambda config: Orders(config.run_dir)):
        with pytest.raises(InputError, match=r"start its coordinator once, protofleet coord"):
            use(config)
    assert extended_rounds(config.run_dir) == 0
    assert read_identity(config.run_dir)["format"] == str(OLDEST)


def test_killed_while_it_is_brought_up_it_is_as_it_was(stored, monkeypatch):
    fed = stored(OLDEST)
    before = formats._STEPS[OLDEST]

    def dies(db):
        before(db)
        raise KeyboardInterrupt

    monkeypatch.setattr(formats, "_STEPS", {OLDEST: dies})
    with pytest.raises(KeyboardInterrupt):
        fed.play(CONNECTED)
    assert read_identity(fed.plan.config.run_dir)["format"] == str(OLDEST)
    monkeypatch.undo()
    with Ledger(fed.plan.config.run_dir, fed.plan.identity) as ledger:
        assert ledger.state().delivered == {"a"}


@pytest.mark.parametrize(
    ("found", "remedy"),
    [("99", "install that version or a later one"), ("1", "choose another"), ("x", "choose ano")],
)
def test_another_format_is_refused_with_who_wrote_it(stored, found, remedy):
    fed = stored(FORMAT)
    run = fed.plan.config.run_dir
    _meta(run, format=found, version="9.8.7")
    for use in (fed.play, lambda: read_status(fed.plan.config), lambda: Orders(run)):
        told = rf"format {found}, written by Protofleet 9\.8\.7; .*{remedy}"
        with pytest.raises(InputError, match=told):
            use()


def test_a_section_that_has_a_setting_more_now_is_the_same_at_its_default(stored):
    """Else each new setting would end the runs of before."""
    fed = stored(FORMAT)
    _meta(fed.plan.config.run_dir, schedule='{"kind":"synchronous"}')
    fed.play(CONNECTED)
    _meta(fed.plan.config.run_dir, schedule='{"kind":"buffered"}')
    with pytest.raises(InputError, match="it holds a run with schedule"):
        fed.play(CONNECTED)
