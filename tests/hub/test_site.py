"""What is served, and what is told where it is missing."""

from __future__ import annotations

import json

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from running_hub import HASHED, federation
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle
from protofleet.errors import InputError, RefusedError
from protofleet.hub import site
from protofleet.hub.site import make_site


@pytest.fixture
def config(tmp_path):
    return federation(tmp_path, "mqtt://127.0.0.1")


def test_the_page_comes_with_its_types_and_its_smaller_copies(config):
    made = make_site(config)
    assert made["/"] is made["/index.html"]
    script = made[HASHED]
    assert script.content_type == "text/javascript; charset=utf-8"
    assert list(script.encoded) == ["br", "gzip"]
    assert made["/assets/ort-0123456789.wasm"].content_type == "application/wasm"
    assert made["/manifest.webmanifest"].content_type == "application/manifest+json"
    assert not any(path.endswith((".br", ".gz")) for path in made)


def test_only_what_is_named_by_its_content_is_kept_for_ever(config):
    kept = {path for path, one in make_site(config).items() if "immutable" in one.cache}
    assert kept == {HASHED, "/assets/ort-0123456789.wasm"}


def test_the_federation_is_told_with_the_digest_of_its_bundle(config, tmp_path):
    digest = Bundle.open(config.bundle).digest
    told = json.loads(make_site(config)["/federation.json"].body)
    assert told.pop("hub")
    assert told == {"federation": "home", "digest": digest, "keys": False}
    keyed = msgspec.structs.replace(config, keys=tmp_path)
    assert json.loads(make_site(keyed)["/federation.json"].body)["keys"] is True


@pytest.mark.parametrize("name", ["tiny.pfb", "tiny"])
def test_the_bundle_is_one_file_however_it_lies(config, tmp_path, name):
    path = tiny_bundle(tmp_path / name, Ed25519PrivateKey.generate())
    served = make_site(msgspec.structs.replace(config, bundle=path))["/bundle.pfb"].body
    (tmp_path / "served.pfb").write_bytes(served)
    assert Bundle.open(tmp_path / "served.pfb").digest == Bundle.open(path).digest


def test_a_bundle_that_nobody_trusts_is_not_served(config):
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    with pytest.raises(RefusedError, match="not trusted"):
        make_site(msgspec.structs.replace(config, trusted=(stranger,)))


def test_the_authority_is_served_only_where_there_is_one(config):
    assert "/ca.pem" not in make_site(config)
    made = make_site(config, authority=b"pem")["/ca.pem"]
    assert (made.body, made.content_type) == (b"pem", "application/x-x509-ca-cert")


def test_a_page_that_was_not_built_is_said_with_the_command(config, tmp_path, monkeypatch):
    monkeypatch.setattr(site, "page_folder", lambda: tmp_path / "static")
    with pytest.raises(InputError, match="not built; in a checkout 'make web' builds it"):
        make_site(config)
