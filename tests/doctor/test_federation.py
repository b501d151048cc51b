"""A federation file that does not fit its bundle, its run, its keys; a run folder by itself."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from doctor_rows import levels, the
from tiny_bundle import tiny_bundle

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.membership.members import Members
from protofleet.federation.plan import make_plan
from protofleet.federation.settings import load_config

_FILE = """\
federation = "home"
broker = "mqtt://127.0.0.1:1"
bundle = "tiny.pfb"
run_dir = "run"
rounds = 3
"""


@pytest.fixture
def file(bundle):
    path = bundle.with_name("home.toml")
    path.write_text(_FILE)
    return path


def _problems(rows):
    return {row["check"] for row in rows if row["level"] == "problem"}


def test_a_file_that_fits_is_well_and_its_bundle_and_broker_are_examined(told, file):
    rows = told(file)
    assert _problems(rows) == {"broker.reach"}  # nobody listens on port 1
    assert "nobody listens there" in the(rows, "broker.reach")["text"]
    assert levels(rows, "federation.bundle") == levels(rows, "bundle.signature") == ["ok"]
    assert "no run was started there yet" in the(rows, "federation.run", "ok")["text"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('[strategy]\nname = "fedhp"\n', "fedhp"),
        ("[strategy.settings]\nepocks = 2\n", "epocks"),
        ('[evaluation]\npooled = "absent.npz"\n', "absent.npz"),
    ],
)
def test_a_file_that_does_not_fit_its_bundle_says_what_is_missing(told, file, lines, words):
    file.write_text(_FILE + lines)
    rows = told(file)
    assert "federation.bundle" in _problems(rows)
    assert words in the(rows, "federation.bundle")["text"]
    assert levels(rows, "federation.file") == ["ok"]


def test_a_trusted_key_that_is_none_is_told_and_the_rest_left(told, file):
    file.write_text(_FILE + 'trusted = ["no key"]\n')
    rows = told(file)
    assert "expected public keys in hex" in the(rows, "federation.bundle")["text"]
    assert levels(rows, "bundle.signature") == []


def test_a_setting_that_is_unknown_is_told_once(told, file):
    file.write_text(_FILE + "rouns = 4\n")
    rows = told(file)
    assert [row["check"] for row in rows] == ["federation.file"]
    assert "rouns" in rows[0]["text"]


def test_keys_of_another_federation_are_a_problem(told, file, tmp_path):
    Members.create(tmp_path / "keys", "office").__exit__()
    file.write_text(_FILE + 'keys = "keys"\n')
    assert "'office', expected 'home'" in the(told(file), "federation.keys")["text"]


def test_a_run_of_other_settings_and_a_damaged_ledger_are_problems(told, file, tmp_path):
    config = load_config(file)
    with Ledger(config.run_dir, make_plan(config).identity):
        rows = told(file)
        assert "a coordinator serves it" in the(rows, "federation.run", "ok")["text"]
    file.write_text(_FILE + "seed = 7\n")
    rows = told(file)
    assert "seed 0, the file says 7" in the(rows, "federation.run")["text"]
    assert "another run_dir" in the(rows, "federation.run")["remedy"]
    assert levels(told(tmp_path / "run"), "run.ledger") == ["ok"]
    assert levels(told(tmp_path / "run"), "run.results") == []  # no round is done
    ledger = tmp_path / "run" / "ledger.sqlite"
    data = bytearray(ledger.read_bytes())
    data[100:4000] = bytes(3900)
    ledger.write_bytes(data)
    assert "restore the folder" in the(told(tmp_path / "run"), "run.ledger")["text"]


def test_another_bundle_in_place_of_the_run_s_is_a_problem(told, file, tmp_path):
    config = load_config(file)
    Ledger(config.run_dir, make_plan(config).identity).close()
    tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate(), sequence=1)
    assert "holds a run with bundle" in the(told(file), "federation.run")["text"]
