from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet import signatures
from protofleet.bundle import keys
from protofleet.cli.bundle import bundle as command
from protofleet.cli.main import main
from protofleet.errors import InputError


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """A configuration folder of this test's own."""
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


def test_a_key_is_made_once_and_only_its_owner_reads_it(config):
    first, second = keys.load_or_create_signing_key(), keys.load_or_create_signing_key()
    assert first.private_bytes_raw() == second.private_bytes_raw()
    assert [path.name for path in config.iterdir()] == ["signing-key.pem"]
    assert stat.S_IMODE((config / "signing-key.pem").stat().st_mode) == 0o600


def test_a_key_that_others_may_read_is_not_used(config):
    keys.load_or_create_signing_key()
    (config / "signing-key.pem").chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        keys.load_or_create_signing_key()


def test_files_that_are_no_ed25519_key_are_named(tmp_path):
    path = tmp_path / "key.pem"
    path.touch(0o600)
    curve = ec.generate_private_key(ec.SECP256R1())
    encodings = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked = serialization.BestAvailableEncryption(b"secret")
    for content in (
        b"",
        b"no key",
        curve.private_bytes(*encodings, serialization.NoEncryption()),
        curve.private_bytes(*encodings, locked),
    ):
        path.write_bytes(content)
        for load in (keys.load_signing_key, keys.load_public_key):
            with pytest.raises(InputError, match=r"key\.pem"):
                load(path)


def test_the_trust_store_holds_what_was_trusted():
    publics = [keys.load_or_create_signing_key().public_key().public_bytes_raw(), bytes(range(32))]
    assert keys.trusted_keys() == frozenset()
    for public in publics:
        keys.trust(public)
    assert keys.trusted_keys() == frozenset(publics)


def test_a_signature_fits_only_its_key_and_message():
    key = keys.load_or_create_signing_key()
    public, signature = key.public_key().public_bytes_raw(), key.sign(b"message")
    assert signatures.verify(public, signature, b"message")
    assert not signatures.verify(public, signature, b"massage")
    assert not signatures.verify(public, signature[:-1], b"message")
    assert not signatures.verify(public[:-1], signature, b"message")


def test_the_commands_make_a_key_trust_it_and_verify(tmp_path):
    run = CliRunner().invoke
    path = str(tiny_bundle(tmp_path / "a.pfb", stranger := Ed25519PrivateKey.generate()))
    public = str(tmp_path / "me.pem")
    assert run(command, ["keygen", "--out", public]).exit_code == 0
    mine = str(tiny_bundle(tmp_path / "mine.pfb", keys.load_or_create_signing_key()))
    assert json.loads(run(command, ["verify", mine, "--json"]).stdout)["valid"] is True
    keys.save_public_key(stranger.public_key().public_bytes_raw(), Path(public))
    assert json.loads(run(command, ["verify", path, "--json"]).stdout)["rule"] == "untrusted"
    assert run(command, ["verify", path, "--trust", public]).exit_code == 0
    assert run(command, ["trust", public]).exit_code == 0
    assert json.loads(run(command, ["verify", path, "--json"]).stdout)["valid"] is True
    shown = json.loads(run(command, ["inspect", path, "--json"]).stdout)
    assert shown["signer"] == signatures.fingerprint(keys.load_public_key(tmp_path / "me.pem"))
    told = run(command, ["inspect", path]).stdout
    assert "class0" in told
    assert "\nmean " in told
    assert "\nstd " in told


def test_a_refusal_is_one_line_and_exit_status_1(tmp_path, capsys):
    path = tiny_bundle(tmp_path / "a", keys.load_or_create_signing_key())
    (path / "surplus").touch()
    with pytest.raises(SystemExit) as caught:
        main(["bundle", "inspect", str(path)])
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert said == f"protofleet: '{path}': bundle file 'surplus': not in the manifest\n"
