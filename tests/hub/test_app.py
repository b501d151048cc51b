"""Answers over HTTP: headers, caching, encodings, health."""

from __future__ import annotations

import gzip
import json
import socket

import pytest
from running_hub import HASHED, federation, get, running_hub

pytestmark = pytest.mark.mosquitto


@pytest.mark.parametrize("path", ["/", HASHED, "/federation.json", "/nothing", "/healthz"])
def test_every_answer_tells_the_browser_what_to_forbid(hub, path):
    answer, _ = get(hub.port, path)
    policy = dict(
        part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert policy["connect-src"] == policy["worker-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not any("unsafe-inline" in rule or "*" in rule for rule in policy.values())
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Server"] is None


def test_hashed_names_are_kept_and_the_page_is_asked_for_again(hub):
    kept, _ = get(hub.port, HASHED)
    assert kept.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    page, body = get(hub.port, "/")
    assert (page.status, page.headers["Cache-Control"]) == (200, "no-cache")
    again, nothing = get(hub.port, "/", if_none_match=page.headers["ETag"])
    assert (again.status, nothing) == (304, b"")
    other, same = get(hub.port, "/", if_none_match='W/"another"')
    assert (other.status, same) == (200, body)


def test_a_browser_gets_the_smallest_encoding_that_it_takes(hub, page):
    script = (page / HASHED[1:]).read_bytes()
    plain, body = get(hub.port, HASHED)
    assert (plain.headers["Content-Encoding"], body) == (None, script)
    smaller, body = get(hub.port, HASHED, accept_encoding="gzip, deflate, br")
    assert (smaller.headers["Content-Encoding"], body) == ("br", b"smaller")
    zipped, body = get(hub.port, HASHED, accept_encoding="br;q=0, gzip;q=0.5")
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == script
    assert zipped.headers["Vary"] == "Accept-Encoding"


def test_head_is_get_without_the_content_and_nothing_else_is_allowed(hub, page):
    answer, body = get(hub.port, "/assets/ort-0123456789.wasm", "HEAD")
    size = (page / "assets/ort-0123456789.wasm").stat().st_size
    assert (answer.status, answer.headers["Content-Length"], body) == (200, str(size), b"")
    for method in ("POST", "PUT", "DELETE"):
        answer, _ = get(hub.port, "/", method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/assets/../../secret",
        "//etc/passwd",
        "/%2e%2e/x",
        "/tiny.pfb",
        "/mqtt",
    ],
)
def test_only_what_is_served_is_found(hub, path):
    assert get(hub.port, path)[0].status == 404


def test_a_name_that_is_not_the_hub_s_is_refused(hub):
    """Else a page of somebody else could read the hub by a name that it points here."""
    answer, body = get(hub.port, "/federation.json", host="evil.example")
    assert (answer.status, b"--host NAME" in body) == (421, True)
    assert get(hub.port, "/federation.json", host="localhost:1")[0].status == 200


def test_health_says_whether_the_broker_answers(hub, tmp_path):
    answer, body = get(hub.port, "/healthz")
    assert (answer.status, json.loads(body)["broker"]) == (200, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with running_hub(federation(tmp_path, f"mqtt://127.0.0.1:{port}")) as alone:
        answer, body = get(alone.port, "/healthz")
        assert (answer.status, json.loads(body)) == (503, {"broker": False, "connections": 0})
