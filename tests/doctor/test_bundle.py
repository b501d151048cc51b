"""A bundle that a device would not take, an old one, and one whose programs do not run here."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from doctor_rows import levels, the
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.keys import save_public_key

pytestmark = pytest.mark.slow(seconds=4)


def test_a_bundle_of_ours_is_well(told, bundle):
    rows = told(bundle)
    assert levels(rows, "bundle.signature") == ["ok"]
    assert set(levels(rows, "bundle.programs")) == {"ok"}


def test_a_foreign_bundle_is_a_problem_until_its_key_is_trusted(
    told, command, tmp_path, monkeypatch
):
    monkeypatch.setenv("PROTOFLEET_TESTS_TRUST", "")
    key = Ed25519PrivateKey.generate()
    path = tiny_bundle(tmp_path / "foreign.pfb", key)
    found = the(told(path), "bundle.signature")
    assert "whom nobody here trusts" in found["text"]
    assert "protofleet bundle trust" in found["remedy"]
    assert levels(told(path), "bundle.programs") == []  # a bundle is code
    save_public_key(key.public_key().public_bytes_raw(), tmp_path / "key.pem")
    code, rows = command(path, "--trust", tmp_path / "key.pem")
    assert code == 0
    assert levels(rows, "bundle.signature") == ["ok"]


def test_a_damaged_bundle_is_told_by_its_rule_and_once(told, bundle):
    data = bytearray(bundle.read_bytes())
    data[-10] ^= 1
    bundle.write_bytes(data)
    rows = told(bundle)
    assert the(rows, "bundle.signature")["text"].startswith("rule ")
    assert [row["check"] for row in rows] == ["bundle.signature"]


@pytest.mark.parametrize(
    ("days", "check", "words"),
    [
        (-500, "warning", "500 days ago"),
        (3, "problem", "before this bundle was made"),
    ],
)
def test_an_old_bundle_is_a_warning_and_one_of_the_future_a_wrong_clock(
    told, tmp_path, days, check, words
):
    key = Ed25519PrivateKey.generate()
    opened = Bundle.open(tiny_bundle(tmp_path / "a.pfb", key), any_signer=True)
    made = dt.datetime.now(dt.UTC) + dt.timedelta(days=days, hours=-1 if days < 0 else 1)
    manifest = msgspec.structs.replace(opened.manifest, created=made.isoformat())
    files = {name: opened.read(name) for name in manifest.files}
    write_bundle(tmp_path / "b.pfb", manifest, files, key)
    assert words in the(told(tmp_path / "b.pfb"), "bundle.age", check)["text"]


def test_a_program_that_does_not_run_here_is_a_problem(told, tmp_path):
    key = Ed25519PrivateKey.generate()
    opened = Bundle.open(tiny_bundle(tmp_path / "a.pfb", key), any_signer=True)
    files = {name: opened.read(name) for name in opened.manifest.files}
    files["programs/infer.onnx"] = files["programs/features.onnx"]
    write_bundle(tmp_path / "b.pfb", opened.manifest, files, key)
    assert "logits" in the(told(tmp_path / "b.pfb"), "bundle.programs")["text"]
