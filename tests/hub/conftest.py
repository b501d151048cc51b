"""A hub before a real Mosquitto, with a page of a few files."""

from __future__ import annotations

import gzip

import pytest
from brokers import mosquitto
from running_hub import HASHED, federation, running_hub
from tiny_plan import tiny

from protofleet.hub import site

__all__ = ["tiny"]


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """What a build leaves, small."""
    folder = tmp_path_factory.mktemp("static")
    (folder / "assets").mkdir()
    script = b"export const answer = 42;" * 400
    for name, body in {
        "index.html": b"<!doctype html><title>t</title>",
        "service_worker.js": b"// nothing",
        "manifest.webmanifest": b"{}",
        HASHED[1:]: script,
        "assets/ort-0123456789.wasm": b"\0asm" + bytes(1 << 20),
    }.items():
        (folder / name).write_bytes(body)
    (folder / f"{HASHED[1:]}.gz").write_bytes(gzip.compress(script))
    (folder / f"{HASHED[1:]}.br").write_bytes(b"smaller")
    return folder


@pytest.fixture(autouse=True, scope="module")
def built(page):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "page_folder", lambda: page)
        yield


@pytest.fixture(scope="module")
def broker_port(tmp_path_factory):
    with mosquitto(tmp_path_factory.mktemp("broker")) as port:
        yield port


@pytest.fixture(scope="module")
def hub(tmp_path_factory, broker_port):
    config = federation(tmp_path_factory.mktemp("hub"), f"mqtt://127.0.0.1:{broker_port}")
    with running_hub(config) as running:
        yield running
