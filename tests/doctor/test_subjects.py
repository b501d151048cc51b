"""What a path is, and what it names."""

from __future__ import annotations

import pytest

from protofleet.broker.folder import BrokerFolder
from protofleet.doctor.subjects import (
    BrokerSubject,
    BundleSubject,
    FederationSubject,
    Machine,
    RunSubject,
    StoreSubject,
    guess,
    with_machine,
    with_what_it_names,
)
from protofleet.edge.credentials import FOLDER, Enrolment, save_enrolment
from protofleet.edge.state.store import Store
from protofleet.errors import InputError
from protofleet.wire.mqtt.broker_access import BrokerAccess


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("identity.json", StoreSubject),
        ("ledger.sqlite", RunSubject),
        ("manifest.json", BundleSubject),
    ],
)
def test_a_folder_is_what_lies_in_it_and_so_is_that_file(tmp_path, name, kind):
    with pytest.raises(InputError, match=r"found none of identity\.json, ledger.sqlite"):
        guess(tmp_path)
    (tmp_path / name).touch()
    assert guess(tmp_path) == guess(tmp_path / name) == kind(tmp_path)


def test_files_are_bundles_or_federation_files(tmp_path):
    for name, kind in (("a.toml", FederationSubject), ("a.pfb", BundleSubject)):
        (tmp_path / name).touch()
        assert guess(tmp_path / name) == kind(tmp_path / name)
    with pytest.raises(InputError, match="no such file or folder"):
        guess(tmp_path / "b.toml")


def test_a_broker_s_folder_is_the_broker_that_runs_on_it(tmp_path):
    folder = BrokerFolder.create(tmp_path / "fed" / "broker", port=7883, federations=["home"])
    for path in (tmp_path / "fed", folder.path, folder.config):
        found = guess(path)
        assert isinstance(found, BrokerSubject)
        assert str(found) == "broker mqtts://127.0.0.1:7883"
        assert (found.federation, found.folder) == ("home", folder.path)


def test_an_enrolled_device_names_its_broker_and_others_none(tmp_path):
    with Store.open(tmp_path / "store", device_id="pi-1"):
        pass
    store = StoreSubject(tmp_path / "store")
    assert list(with_what_it_names(store)) == [store]
    folder = tmp_path / "store" / FOLDER
    folder.mkdir(mode=0o700)
    access = BrokerAccess(url="mqtts://pi-1@broker.example")
    enrolment = Enrolment(
        federation="home",
        device_id="pi-1",
        grant="",
        federation_key="0" * 64,
        broker=access.to_table(),
    )
    save_enrolment(folder, enrolment)
    _, broker = with_what_it_names(store)
    assert (str(broker.access), broker.federation) == ("mqtts://broker.example", "home")
    (folder / "enrolment.json").write_text("{")
    assert list(with_what_it_names(store)) == [store]  # its own check says why


def test_the_machine_is_examined_with_the_folders_that_are_written_in(tmp_path):
    file = tmp_path / "home.toml"
    file.write_text(
        'federation = "a"\nbroker = "mqtt://localhost"\nbundle = "b"\nrun_dir = "r"\nrounds = 1\n'
    )
    subjects = [FederationSubject(file), StoreSubject(tmp_path / "s"), BundleSubject(tmp_path)]
    machine = Machine((tmp_path / "r", tmp_path / "s"))
    assert list(with_machine(subjects)) == [machine, *subjects]
