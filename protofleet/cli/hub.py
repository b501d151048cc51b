"""``protofleet hub``: browsers take part."""

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

if TYPE_CHECKING:
    from protofleet.federation.settings import FederationConfig
    from protofleet.hub.run import Hub

_PEM = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=_PEM)
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
    "--qr/--no-qr", default=None, help="Its address as a QR code; default: on a terminal."
)
@trust_option
@broker_overrides
def hub(
    file: Path,
    *,
    broker: GivenBroker,
    trust_files: tuple[Path, ...],
    qr: bool | None,
    **options: Any,
) -> None:
    """Let browsers take part in the federation FILE (TOML).

    A phone opens the hub's page, verifies the federation's bundle, trains on its own data, and
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

    docs/phone.md has all of it.
    """  # noqa: D301 - click's mark for lines to keep
    import msgspec

    from protofleet.federation.settings import load_config
    from protofleet.hub.run import Hub, HubOptions

    start_logging()
    if (options["cert"] is None) != (options["key"] is None):
        raise click.UsageError("--cert and --key go together")
    if options["cert"] is not None and not options["https"]:
        raise click.UsageError("--cert is for --https")
    config = load_config(file)
    config = msgspec.structs.replace(
        config,
        trusted=(*config.trusted, *as_hex(trust_files)),
        broker=broker.over(config.broker),
    )
    with on_interrupt("to go on: the same command; browsers reconnect"):
        made = Hub(config, HubOptions(**options))
        for line in _lines(made, config):
            click.echo(line)
        if sys.stdout.isatty() if qr is None else qr:
            show_qr(made.origins[0])
        sys.stdout.flush()
        made.run()


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
            f"for each phone: protofleet device invite --keys {config.keys} "
            f"--hub {made.origins[0]} --qr NAME"
        )
    else:
        yield "no keys: whoever opens the page takes part, and can speak as anyone"
