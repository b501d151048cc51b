"""``protofleet doctor``: what is wrong here, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._broker import broker_options
from protofleet.cli._trust import bundle_trust_option
from protofleet.cli._verbosity import verbosity
from protofleet.printable import printable

if TYPE_CHECKING:
    from protofleet.doctor import Diagnosis, Subject
    from protofleet.wire.mqtt.broker_access import BrokerAccess

_PATH = click.Path(path_type=Path)
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command()
@click.argument("files", nargs=-1, type=_PATH)
@broker_options("A broker to examine.")
@click.option("--bundle", "bundles", type=_PATH, multiple=True, help="A bundle to examine.")
@click.option("--store", "stores", type=_PATH, multiple=True, help="A device's store.")
@click.option("--federation", "federations", type=_PATH, multiple=True, help="A federation file.")
@click.option("--device", default="", help="A device's account, to try a broker's access list.")
@click.option("--device-password-file", type=_PATH, help="Its password; default: NAME.password.")
@bundle_trust_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each line.")
def doctor(
    files: tuple[Path, ...],
    *,
    broker: BrokerAccess | None,
    bundles: tuple[Path, ...],
    stores: tuple[Path, ...],
    federations: tuple[Path, ...],
    device: str,
    device_password_file: Path | None,
    trust_files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Examine this machine, and whatever FILES are: what is wrong, and what to do about it.

    A file may be a bundle, a federation file, a device's store, a run folder or a broker's folder;
    without any, this user's stores are examined. What a file names (bundle, broker) is, too.
    The exit status is 1 where there is a problem, and 0 with warnings alone. -q leaves out what is
    well; docs/doctor.md has the names of the checks.
    """
    from protofleet import doctor as examination

    given: list[Subject] = [examination.guess(file) for file in files]
    given += [examination.BundleSubject(path) for path in bundles]
    given += [examination.StoreSubject(path) for path in stores]
    given += [examination.FederationSubject(path) for path in federations]
    if broker is not None:
        given.append(examination.BrokerSubject(access=broker))
    subjects = [
        _completed(one, trust_files, device, device_password_file)
        for subject in given or _own_stores()
        for one in examination.with_what_it_names(subject)
    ]
    show = _show_json if as_json else _Text().show
    failed = False
    for line in examination.examine(examination.with_machine(subjects)):
        failed = failed or line.level is examination.Level.PROBLEM
        show(line)
    if failed:
        sys.exit(1)


def _own_stores() -> Iterator[Subject]:
    from protofleet.doctor import StoreSubject
    from protofleet.edge.state.stores import list_stores

    for one in list_stores():
        yield StoreSubject(one.path)


def _completed(
    subject: Subject, trust_files: tuple[Path, ...], device: str, password_file: Path | None
) -> Subject:
    """With keys and accounts of the command line."""
    from protofleet.bundle import keys
    from protofleet.doctor import BrokerSubject, BundleSubject

    if isinstance(subject, BundleSubject) and trust_files:
        known = frozenset(subject.trusted) or keys.user_trust()
        more = map(keys.load_public_key, trust_files)
        return replace(subject, trusted=known.union(more))
    if isinstance(subject, BrokerSubject) and device:
        return replace(subject, device=device, device_password_file=password_file)
    return subject


class _Text:
    """Prints lines below what they are about."""

    def __init__(self) -> None:
        self._subject = ""

    def show(self, line: Diagnosis) -> None:
        if verbosity() < 0 and line.level.value == "ok":
            return
        if line.subject != self._subject:
            self._subject = line.subject
            click.echo(click.style(printable(line.subject), bold=True))
        level = click.style(f"{line.level.value:8}", fg=_COLOURS[line.level.value])
        click.echo(f"  {level} {line.check:17} {printable(line.text)}")
        if line.remedy:
            click.echo(f"{'':29}remedy: {printable(line.remedy)}")


def _show_json(line: Diagnosis) -> None:
    import msgspec

    click.echo(msgspec.json.encode(line).decode())
