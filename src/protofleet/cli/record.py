"""``protofleet device record``: an Android phone's sensors, or a broker's, into a CSV."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import click

from protofleet.cli._broker import broker_options
from protofleet.cli._process import start_process
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._trust import bundle_trust_option, trusted_keys
from protofleet.errors import InputError

if TYPE_CHECKING:
    from protofleet.edge.data.mqtt_readings import ChannelTopic, Joiner
    from protofleet.edge.data.termux import Reading, Sensor, Source
    from protofleet.wire.mqtt.broker_access import BrokerAccess

_PATH = click.Path(path_type=Path)


def _sensors(
    _context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[Sensor, ...]:
    from protofleet.edge.data.termux import Sensor

    found = []
    for text in given:
        name, separator, factor = text.partition("=")
        try:
            number = float(factor) if separator else 1.0
        except ValueError:
            number = math.nan
        if not name or not math.isfinite(number):
            raise click.BadParameter(
                f"expected NAME or NAME=FACTOR such as accelerometer=0.102, got '{text}'",
                param=parameter,
            )
        found.append(Sensor(name, number))
    return tuple(found)


def _topics(
    _context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[ChannelTopic, ...]:
    from protofleet.edge.data.mqtt_readings import ChannelTopic

    try:
        return tuple(ChannelTopic.parse(text) for text in given)
    except InputError as error:
        raise click.BadParameter(str(error), param=parameter) from error


@click.command()
@click.option("--bundle", type=_PATH, required=True, help="Folder or .pfb file.")
@click.option(
    "--sensor",
    "sensors",
    multiple=True,
    callback=_sensors,
    metavar="NAME[=FACTOR]",
    help="Of a phone, in the order of the bundle's channels; FACTOR: to its unit; repeatable.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=_topics,
    metavar="TOPIC[=FIELD][*FACTOR]",
    help="Of --broker, one for each of the bundle's channels; FIELD: a.b in JSON; repeatable.",
)
@click.option("--label", default="", help="What the owner does meanwhile: a class of the bundle.")
@click.option("--out", required=True, help="FILE.csv, to which it is added, or - for the output.")
@click.option(
    "--after",
    "after_s",
    type=click.FloatRange(0),
    default=3,
    show_default=True,
    help="Seconds at the beginning that are left out, while the phone is put away.",
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after so many.")
@broker_options("Where sensors publish, for --topic.")
@bundle_trust_option
def record(
    *,
    bundle: Path,
    sensors: tuple[Sensor, ...],
    topics: tuple[ChannelTopic, ...],
    broker: BrokerAccess | None,
    label: str,
    out: str,
    after_s: float,
    seconds: float | None,
    trust_files: tuple[Path, ...],
) -> None:
    """Write what sensors say into a CSV, for 'device prepare'.

    Of a phone it is what termux-sensor writes, on standard input (docs/android.md), else what a
    broker has of Home Assistant, ESPHome, Zigbee2MQTT and the like. With '--out -' it is for
    'device predict --data -'.

    \b
      termux-sensor -s accelerometer,gyroscope -d 20 |
        protofleet device record --bundle bundle.pfb --sensor accelerometer --sensor gyroscope \\
          --label walking --out mine.csv
      protofleet device record --bundle bundle.pfb --broker mqtts://host --label sleeping \\
          --topic zigbee2mqtt/bed=temperature --topic zigbee2mqtt/bed=humidity --out mine.csv
    """  # noqa: D301 - click's mark for lines to keep
    if bool(sensors) == bool(topics) or bool(topics) != (broker is not None):
        raise click.UsageError("expected either --sensor, or --topic together with --broker")
    start_process(1, quiet=True)
    channels = _channels(bundle, trust_files, label, topics)
    begin_s, count = time.time() + after_s, 0
    end_s = math.inf if seconds is None else begin_s + seconds
    with ExitStack() as stack:
        writer = csv.writer(_opened(stack, out, ("time_s", *channels, "label")))
        stack.callback(lambda: click.echo(f"{count} readings", err=True))
        readings = (
            _of_termux(sensors, channels, begin_s, end_s)
            if broker is None
            else _of_broker(stack, broker, topics, begin_s, end_s)
        )
        stack.enter_context(on_interrupt("what was recorded is kept"))
        for reading in readings:
            writer.writerow((f"{reading.time_s:.4f}", *reading.values, label))
            count += 1


def _channels(
    bundle: Path, trust_files: tuple[Path, ...], label: str, topics: tuple[ChannelTopic, ...]
) -> tuple[str, ...]:
    """The bundle's, which label and topics fit."""
    from protofleet.bundle import Bundle

    manifest = Bundle.open(bundle, trusted=trusted_keys(trust_files)).manifest
    channels = manifest.preprocessing.channels
    if not channels:
        raise InputError(f"bundle '{bundle}': expected one with channels, which sensors fill")
    if label and label not in manifest.classes:
        raise InputError(f"label '{label}': expected one of {', '.join(manifest.classes)}")
    if topics and len(topics) != len(channels):
        raise InputError(
            f"--topic: expected one for each channel of the bundle ({', '.join(channels)}), in "
            f"this order, got {len(topics)}"
        )
    return channels


def _of_termux(
    sensors: tuple[Sensor, ...], channels: tuple[str, ...], begin_s: float, end_s: float
) -> Iterator[Reading]:
    from protofleet.edge.data.termux import read_termux

    source = cast("Source", sys.stdin.buffer)
    for reading in read_termux(source, sensors, len(channels), time.time):
        if reading.time_s >= end_s:
            return
        if reading.time_s >= begin_s:
            yield reading


def _of_broker(
    stack: ExitStack,
    broker: BrokerAccess,
    topics: tuple[ChannelTopic, ...],
    begin_s: float,
    end_s: float,
) -> Iterator[Reading]:
    from protofleet.edge.data.mqtt_readings import Joiner, read_mqtt
    from protofleet.wire.mqtt.link import Link, LinkOptions

    joiner = Joiner(topics)
    link = Link(LinkOptions(broker=broker, filters=joiner.topics))
    stack.callback(_tell, joiner)
    stack.callback(link.close)
    link.start()
    return read_mqtt(link, joiner, time.time, begin_s=begin_s, end_s=end_s)


def _tell(joiner: Joiner) -> None:
    """What gave no reading."""
    for reason, times in joiner.left_out.most_common():
        click.echo(f"left out: {times} x {reason}", err=True)
    if joiner.silent:
        names = ", ".join(map(str, joiner.silent))
        click.echo(f"no value came of {names}; every channel needs one for a reading", err=True)


def _opened(stack: ExitStack, out: str, header: tuple[str, ...]) -> TextIO:
    """The CSV, which begins with ``header``."""
    line = ",".join(header) + "\n"
    if out == "-":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        sys.stdout.write(line)
        return sys.stdout
    path = Path(out)
    if path.exists():
        with path.open(encoding="utf-8") as found:
            if found.readline() != line:
                raise InputError(f"'{path}': has other columns than this bundle; choose another")
        return stack.enter_context(path.open("a", encoding="utf-8", newline="", buffering=1))
    made = stack.enter_context(path.open("w", encoding="utf-8", newline="", buffering=1))
    made.write(line)
    return made
