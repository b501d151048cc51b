"""What the hub serves: the page's files, the federation's bundle, and what the page asks first.

All of it is read once at the start, so that nobody's request opens a file.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec

from protofleet import __version__
from protofleet.bundle import Bundle
from protofleet.errors import InputError
from protofleet.federation.settings import FederationConfig

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
}
_BYTES = "application/octet-stream"
_HASHED = re.compile(r"^/assets/.+-[0-9a-f]{10}\.[a-z0-9.]+$")
"""Names that the page's build ends with a hash of their content."""
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
_WORTH = 0.95
"""A compressed copy that is not smaller than this share is not worth its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One answer to GET.

    Attributes:
        body: as it is.
        encoded: the same by ``Content-Encoding``, the best first.
        content_type: its MIME type.
        cache: its ``Cache-Control``.
    """

    body: bytes
    content_type: str
    encoded: Mapping[str, bytes]
    cache: str = _ASK_AGAIN

    @property
    def etag(self) -> str:
        """Names the content, however it is encoded."""
        return f'W/"{hashlib.sha256(self.body).hexdigest()[:32]}"'


class FederationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``/federation.json``: what a page has to know before it can ask the broker.

    Attributes:
        federation: its name.
        digest: SHA-256 of the bundle's manifest, hex; binding only where a certified announcement
            says the same.
        keys: whether records are signed and encrypted.
        hub: version of this package.
    """

    federation: str
    digest: str
    keys: bool
    hub: str = __version__


Site = Mapping[str, Resource]
"""By path, which begins with ``/``."""


def page_folder() -> Path:
    """Where the page's build lies, in a checkout and in the installed package."""
    return Path(str(files("protofleet.hub"))) / "page"


def make_site(config: FederationConfig, *, authority: bytes | None = None) -> Site:
    """Everything that is served for a federation.

    Args:
        config: its file; the bundle must be signed by a key that counts there.
        authority: certificate (PEM) that phones may install, for ``/ca.pem``.

    Raises:
        InputError: the page was not built, or there is no bundle.
        RefusedError: the bundle breaks a rule, or its signer is not trusted.
    """
    trusted = [bytes.fromhex(key) for key in config.trusted]
    bundle = Bundle.open(config.bundle, trusted=trusted)
    info = FederationInfo(
        federation=config.federation, digest=bundle.digest, keys=config.keys is not None
    )
    site = dict(_page(page_folder()))
    site["/federation.json"] = _resource(msgspec.json.encode(info), _TYPES[".json"])
    site["/bundle.pfb"] = _resource(_single_file(bundle), _BYTES)
    if authority is not None:
        # Shown inline: as a download, iOS does not offer to install it.
        site["/ca.pem"] = Resource(
            body=authority, content_type="application/x-x509-ca-cert", encoded={}
        )
    return site


def _page(folder: Path) -> Iterator[tuple[str, Resource]]:
    if not (folder / "index.html").is_file():
        raise InputError(
            f"page '{folder}': not built; in a checkout 'make web' builds it (Node 20 or newer), "
            "and every wheel of 'make wheel' has it"
        )
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.suffix in {".gz", ".br"}:
            continue
        path = f"/{file.relative_to(folder).as_posix()}"
        beside = {"br": Path(f"{file}.br"), "gzip": Path(f"{file}.gz")}
        resource = Resource(
            body=file.read_bytes(),
            content_type=_TYPES.get(file.suffix, _BYTES),
            encoded={name: made.read_bytes() for name, made in beside.items() if made.is_file()},
            cache=_FOR_EVER if _HASHED.match(path) else _ASK_AGAIN,
        )
        yield path, resource
        if path == "/index.html":
            yield "/", resource


def _resource(body: bytes, content_type: str) -> Resource:
    small = gzip.compress(body, 6, mtime=0)
    worth = len(small) < _WORTH * len(body)
    return Resource(body=body, content_type=content_type, encoded={"gzip": small} if worth else {})


def _single_file(bundle: Bundle) -> bytes:
    """The bundle as one ``.pfb``, also where it lies as a directory."""
    with tempfile.TemporaryDirectory(prefix="protofleet-hub-") as folder:
        path = Path(folder) / "bundle.pfb"
        bundle.copy_to(path)
        return path.read_bytes()
