"""``protofleet hub``: browsers take part, and operators look on."""

from __future__ import annotations

import hashlib
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._broker import GivenBroker, broker_overrides
from protofleet.cli._qr import show_qr
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._trust import as_hex, trust_option
from protofleet.cli._verbosity import start_logging
from protofleet.printable import shell_word

if TYPE_CHECKING:
    from protofleet.federation.settings import FederationConfig
    from protofleet.hub.dashboard.watch import WatchedRun
    from protofleet.hub.run import Hub

_PEM = click.Path(dir_okay=False, path_type=Path)
_PLACE = click.Path(path_type=Path)


@click.command()
@click.argument("places", metavar="FILE|RUN_DIR...", nargs=-1, required=True, type=_PLACE)
@click.option("--https", is_flag=True, help="Speak TLS, which phones in your network need.")
@click.option(
    "--cert",
    type=_PEM,
    help="Certificate with its chain, PEM.  [default: one by the authority of 'broker init']",
)
@click.option("--key", type=_PEM, help="Its private key, PEM.")
@click.option(
    "--bind",
    metavar="ADDRESS",
    help="Address to listen on.  [default: every one with --https, else 127.0.0.1]",
)
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 8443, or 8080 without TLS]")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name or address by which browsers reach this machine, beside those it knows; repeatable.",
)
@click.option(
    "--websocket",
    default="",
    metavar="URL",
    help="A broker's own WebSocket listener that the page may speak to, beside the hub's bridge.",
)
@click.option(
    "--token-file",
    type=_PEM,
    help="The operator's token, made if there is none.  [default: in your folder for keys]",
)
@click.option(
    "--qr/--no-qr", default=None, help="Its address as a QR code; default: on a terminal."
)
@trust_option
@broker_overrides()
def hub(
    places: tuple[Path, ...],
    *,
    broker: GivenBroker,
    trust_files: tuple[Path, ...],
    qr: bool | None,
    **options: Any,
) -> None:
    """Show runs to their operator, and let browsers take part in a federation.

    Each FILE (TOML) or RUN_DIR, which may be a demonstration's folder, is shown on the dashboard,
    at /dashboard. Looking is free on this
    machine; whoever acts, or looks from elsewhere, needs the operator's token.

    A phone opens the hub's page, verifies the bundle of the first FILE, trains on its own data, and
    talks to the broker through the hub. Nothing is installed on it. The coordinator and the
    broker run as ever; this is one process beside them.

    \b
    Browsers keep keys, read sensors and work without a network only over HTTPS or on localhost:
      protofleet hub FILE --https              a certificate by the authority of 'broker init',
                                               which each phone installs once, from the page
      protofleet hub FILE --https --cert C.pem --key K.pem      one that every browser knows
      protofleet hub FILE                      this machine, or a phone on a cable (adb reverse)
    Then invite each phone; it scans the code:
      protofleet device invite NAME --qr --hub https://ADDRESS:8443

    docs/phone.md and docs/dashboard.md have all of it.
    """  # noqa: D301 - click's mark for lines to keep
    from dataclasses import replace

    from protofleet.hub.dashboard.watch import run_keys
    from protofleet.hub.run import Hub, HubOptions

    start_logging()
    if (options["cert"] is None) != (options["key"] is None):
        raise click.UsageError("--cert and --key go together")
    if options["cert"] is not None and not options["https"]:
        raise click.UsageError("--cert is for --https")
    runs = [_run(place, trust_files, broker) for place in places]
    runs = [replace(run, key=key) for run, key in zip(runs, run_keys(runs), strict=True)]
    config = next((run.config for run in runs if run.config is not None), None)
    with on_interrupt("to go on: the same command; browsers reconnect"):
        made = Hub(config, HubOptions(**options), runs)
        for line in (*(() if config is None else _lines(made, config)), *_dashboard_lines(made)):
            click.echo(line)
        if config is not None and (sys.stdout.isatty() if qr is None else qr):
            show_qr(made.origins[0])
        sys.stdout.flush()
        made.run()


def _run(place: Path, trust_files: tuple[Path, ...], broker: GivenBroker) -> WatchedRun:
    """A federation file, or the folder of a run."""
    import msgspec

    from protofleet.coordinator.status import find_run
    from protofleet.federation.settings import load_config
    from protofleet.hub.dashboard.watch import WatchedRun

    if place.is_dir():
        return WatchedRun("", find_run(place))
    config = load_config(place)
    config = msgspec.structs.replace(
        config,
        trusted=(*config.trusted, *as_hex(trust_files)),
        broker=broker.over(config.broker),
    )
    return WatchedRun("", config.run_dir, config)


def _dashboard_lines(made: Hub) -> Iterator[str]:
    from protofleet.hub.metrics import metrics_token

    access = made.access
    if access is None:
        return
    yield f"dashboard: {made.origins[0]}/dashboard/, metrics: {made.origins[0]}/metrics"
    yield f"to act there, once: {made.origins[0]}/dashboard/sign-in#{access.token}"
    if access.to_look:
        yield "from elsewhere the token is needed to look, too"
        yield f"for Prometheus: Authorization: Bearer {metrics_token(access.token)}"
        if made.origins[0].startswith("http:"):
            yield "plain HTTP: everyone on the way can read the token and the pages; use --https"


def _lines(made: Hub, config: FederationConfig) -> Iterator[str]:
    yield f"hub of federation '{config.federation}', broker {config.broker}; Ctrl-C stops it"
    for number, origin in enumerate(made.origins):
        yield f"{'open on the phone: ' if number == 0 else '               or: '}{origin}/"
    if made.origins == [f"http://localhost:{made.port}"]:
        yield f"this machine alone; a phone on a cable: adb reverse tcp:{made.port} tcp:{made.port}"
        yield "phones in the network need --https"
    elif made.origins[0].startswith("http:"):
        yield "plain HTTP: browsers on other machines keep no keys and read no sensors; use --https"
    if made.authority is not None:
        found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(made.authority.decode())).hexdigest()
        shown = ":".join(found[i : i + 2] for i in range(0, 64, 2)).upper()
        yield f"each phone installs this authority once (docs/phone.md): {made.origins[0]}/ca.pem"
        yield f"  SHA-256 {shown}"
    if config.keys is not None:
        yield (
            f"for each phone: protofleet device invite --keys {shell_word(config.keys)} "
            f"--hub {made.origins[0]} --qr NAME"
        )
    else:
        yield "no keys: whoever opens the page takes part, and can speak as anyone"
