"""Puts a hub together from federation files and run folders, and runs it."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from protofleet.broker.certificates import hosts_of, own_address, own_hosts
from protofleet.broker.folder import BrokerFolder
from protofleet.bundle.keys import config_folder
from protofleet.errors import InputError
from protofleet.federation.settings import FederationConfig
from protofleet.hub.app import make_app
from protofleet.hub.bridge import MAX_FRAME_BYTES, Bridge
from protofleet.hub.connections import FewErrors, LimitedListener, TimedConnection, allow_files
from protofleet.hub.dashboard.access import TOKEN_FILE, Access
from protofleet.hub.dashboard.app import Dashboard
from protofleet.hub.dashboard.watch import Watch, WatchedRun
from protofleet.hub.metrics import MetricsPage
from protofleet.hub.names import Names
from protofleet.hub.site import make_site
from protofleet.private_files import check_secret_file

HTTP_PORT, HTTPS_PORT = 8080, 8443
EVERYWHERE, LOOPBACK = "0.0.0.0", "127.0.0.1"  # noqa: S104 - asked for by the user
_BACKLOG = 1024
_DEFER_S = 10
_GRACE_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """Where a hub listens, and how browsers know it.

    Attributes:
        https: whether to speak TLS; with ``cert`` and ``key``, else with a certificate by the
            federation's own authority.
        cert, key: PEM files; ``cert`` with its chain.
        bind: address to listen on; None: every one with TLS, else this machine's own alone.
        port: 0: a free one; None: 8443 or 8080.
        hosts: names by which browsers reach the hub, beside those that this machine knows.
        websocket: a broker's own WebSocket listener (``wss://host:port/path``) that the page may
            speak to, too; '' for none.
        token_file: the operator's, for the dashboard; None: in the user's folder for keys.
    """

    https: bool = False
    cert: Path | None = None
    key: Path | None = None
    bind: str | None = None
    port: int | None = None
    hosts: tuple[str, ...] = ()
    websocket: str = ""
    token_file: Path | None = None

    @property
    def address(self) -> str:
        """To listen on."""
        return self.bind or (EVERYWHERE if self.https else LOOPBACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tls:
    """Attributes: certificate and key, and the authority (PEM) that phones may install."""

    cert: Path
    key: Path
    authority: bytes | None = None


class Hub:
    """A hub that listens; ``run`` answers.

    Args:
        config: of the federation that phones take part in; None: the dashboard alone.
        options: where and how.
        runs: that the dashboard shows; none: there is no dashboard.

    Attributes:
        port: that it listens on.
        origins: addresses that a browser can open, the most useful first.
        authority: certificate (PEM) that phones have to install; None: they know it, or no TLS.
        access: who may look at the dashboard and act; None: there is none.

    Raises:
        InputError: the page was not built, certificates cannot be used, the port is taken, or
            others could reach what is not protected.
        RefusedError: the bundle breaks a rule, or its signer is not trusted.
    """

    def __init__(
        self,
        config: FederationConfig | None,
        options: HubOptions,
        runs: Sequence[WatchedRun] = (),
    ) -> None:
        tls = _tls(config, options) if options.https else None
        if config is not None:
            _check_protected(config, options)
        self.authority = None if tls is None else tls.authority
        names = [*options.hosts, *own_hosts(), *([] if tls is None else hosts_of_file(tls.cert))]
        self.access = _access(options) if runs else None
        watch = Watch(runs)
        dashboard = None if self.access is None else Dashboard(watch, self.access)
        app = make_app(
            Names(names),
            site=None if config is None else make_site(config, authority=self.authority),
            bridge=None if config is None else Bridge(config.broker),
            dashboard=dashboard,
            metrics=None if self.access is None else MetricsPage(watch, self.access),
            websocket=_source(options.websocket),
        )
        self._socket = _listen(options)
        self.port: int = self._socket.getsockname()[1]
        self.origins = _origins(options, names, self.port)
        if dashboard is not None and config is not None:
            key = next((run.key for run in runs if run.config is config), "")
            dashboard.phones = (key, self.origins[0])
        allow_files()
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=TimedConnection,
                loop="asyncio",  # others do not ask the listener whether to accept
                ws="wsproto",
                ws_max_size=MAX_FRAME_BYTES,
                # A slow link is not a dead one; MQTT has its own keep-alive.
                ws_ping_interval=None,
                # 64 bytes of it may become megabytes.
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
                ssl_certfile=None if tls is None else tls.cert,
                ssl_keyfile=None if tls is None else tls.key,
            )
        )
        if tls is not None:
            self._load(tls)

    def run(self) -> None:
        """Answer until ``stop``, or until a signal ends the process."""
        log, few = logging.getLogger("uvicorn.error"), FewErrors()
        log.addFilter(few)
        try:
            self._server.run(sockets=[self._socket])
        finally:
            log.removeFilter(few)
            if self.access is not None:
                self.access.trail.tell(everything=True)

    def stop(self) -> None:
        """End ``run``; from any thread."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop listening, where ``run`` was not called."""
        self._socket.close()

    def _load(self, tls: _Tls) -> None:
        try:
            self._server.config.load()
        except OSError as error:  # of files or of OpenSSL
            self.close()
            raise InputError(f"certificate '{tls.cert}', key '{tls.key}': {error}") from error


def _access(options: HubOptions) -> Access:
    path = options.token_file or config_folder() / TOKEN_FILE
    return Access(path, to_look=not _is_loopback(options.address))


def _source(websocket: str) -> str:
    """The address without its path: what a Content Security Policy names.

    Raises:
        InputError: no address of a WebSocket.
    """
    found = re.fullmatch(r"(wss?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?)(/[^\s;,]*)?", websocket)
    if websocket and not found:
        raise InputError(f"--websocket: expected wss://HOST:PORT/PATH, got {websocket[:80]!r}")
    return found[1] if found else ""


def hosts_of_file(certificate: Path) -> list[str]:
    """Names and addresses that a certificate's file (PEM) is for; none if it has none.

    Raises:
        InputError: it cannot be read.
    """
    try:
        data = certificate.read_bytes()
    except OSError as error:
        raise InputError(f"certificate '{certificate}': {error.strerror}") from error
    with suppress(InputError):
        return hosts_of(data)
    return []


def _tls(config: FederationConfig | None, options: HubOptions) -> _Tls:
    if options.cert is not None and options.key is not None:
        check_secret_file(options.key, "key")
        return _Tls(cert=options.cert, key=options.key)
    ca_file = None if config is None else config.broker.ca_file
    keys = None if config is None else config.keys
    for place in (keys, None if ca_file is None else ca_file.parent):
        folder = None if place is None else _broker_folder(place)
        if folder is not None:
            cert, key = folder.issue("hub", options.hosts)
            return _Tls(cert=cert, key=key, authority=folder.ca.read_bytes())
    raise InputError(
        "--https: no authority of this federation's own was found ('protofleet broker init' makes "
        "one); give a certificate that browsers know: --cert CERT.pem --key KEY.pem"
    )


def _broker_folder(place: Path) -> BrokerFolder | None:
    try:
        return BrokerFolder.open(place)
    except InputError:
        return None


def _check_protected(config: FederationConfig, options: HubOptions) -> None:
    config.broker.check_protected()
    if config.broker.insecure or _is_loopback(options.address):
        return
    if config.keys is None:
        raise InputError(
            f"hub on {options.address}: federation '{config.federation}' has no keys, so whoever "
            "opens the page could speak as any device or as the coordinator; give the federation "
            'file keys = "FOLDER" and invite the phones, or, in a network that you trust as a '
            "whole, --insecure"
        )
    if not options.https:
        raise InputError(
            f"hub on {options.address}: over plain HTTP browsers keep no keys and read no sensors, "
            "and everyone on the way can change the page; use --https, or --insecure all the same "
            "(docs/phone.md: what works then)"
        )


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def _listen(options: HubOptions) -> LimitedListener:
    port = options.port
    if port is None:
        port = HTTPS_PORT if options.https else HTTP_PORT
    try:
        family, kind, _, _, place = socket.getaddrinfo(
            options.address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = LimitedListener(family, kind)
    except OSError as error:
        raise InputError(f"hub: --bind {options.address}: {error.strerror}") from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_DEFER_ACCEPT"):
        # A connection on which nothing is said costs the kernel little, and this process nothing.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
    try:
        listening.bind(place)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise InputError(
            f"hub: cannot listen on {options.address}, port {port}: {error.strerror}; choose "
            "another: --port"
        ) from error
    return listening


def _origins(options: HubOptions, names: Sequence[str], port: int) -> list[str]:
    scheme, usual = ("https", 443) if options.https else ("http", 80)
    if options.address in (EVERYWHERE, "::"):
        own = own_address()
        places = [*options.hosts, own, *(name for name in names if name.endswith(".local"))]
    elif _is_loopback(options.address):
        places = ["localhost"]
    else:
        places = [*options.hosts, options.address]
    end = "" if port == usual else f":{port}"
    shown = [f"[{place}]" if ":" in place else place for place in dict.fromkeys(places)]
    return [f"{scheme}://{place}{end}" for place in shown]
