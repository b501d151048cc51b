"""``protofleet device record``: what sensors say, into a CSV."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections import Counter
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
    from protofleet.bundle.manifest import Manifest
    from protofleet.edge.data.iio import IioSensor
    from protofleet.edge.data.mqtt_readings import ChannelTopic, Joiner
    from protofleet.edge.data.serial_lines import SerialPort
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


def _port(
    _context: click.Context, parameter: click.Parameter, given: str | None
) -> SerialPort | None:
    from protofleet.edge.data.serial_lines import SerialPort

    try:
        return None if given is None else SerialPort.parse(given)
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
@click.option(
    "--iio",
    multiple=True,
    metavar="SENSOR",
    help="That this machine's kernel drives (a Raspberry Pi's), in the order of the bundle's "
    "channels: accel, anglvel, or DEVICE:accel; repeatable.",
)
@click.option(
    "--serial",
    callback=_port,
    metavar="PORT[@BAUD]",
    help="Lines of numbers of a microcontroller, one for each of the bundle's channels.",
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
    iio: tuple[str, ...],
    serial: SerialPort | None,
    broker: BrokerAccess | None,
    label: str,
    out: str,
    after_s: float,
    seconds: float | None,
    trust_files: tuple[Path, ...],
) -> None:
    """Write what sensors say into a CSV, for 'device prepare'.

    Of a phone it is what termux-sensor writes, on standard input (docs/android.md), of a Raspberry
    Pi what its kernel or a serial port has of a sensor, else what a broker has of Home Assistant,
    ESPHome, Zigbee2MQTT and the like. With '--out -' it is for 'device predict --data -'.

    \b
      termux-sensor -s accelerometer,gyroscope -d 20 |
        protofleet device record --bundle bundle.pfb --sensor accelerometer --sensor gyroscope \\
          --label walking --out mine.csv
      protofleet device record --bundle bundle.pfb --iio accel --iio anglvel \\
          --label walking --out mine.csv
      protofleet device record --bundle bundle.pfb --serial /dev/ttyUSB0 --out mine.csv
      protofleet device record --bundle bundle.pfb --broker mqtts://host --label sleeping \\
          --topic zigbee2mqtt/bed=temperature --topic zigbee2mqtt/bed=humidity --out mine.csv
    """  # noqa: D301 - click's mark for lines to keep
    sources = [bool(sensors), bool(topics), bool(iio), serial is not None]
    if sum(sources) != 1 or bool(topics) != (broker is not None):
        raise click.UsageError(
            "expected one of --sensor, --iio, --serial, or --topic together with --broker"
        )
    start_process(1, quiet=True)
    manifest = _manifest(bundle, trust_files, label, topics)
    channels = columns = manifest.preprocessing.channels
    if iio:
        driven, columns = _driven(iio, manifest)
    begin_s, count = time.time() + after_s, 0
    end_s = math.inf if seconds is None else begin_s + seconds
    with ExitStack() as stack:
        writer = csv.writer(_opened(stack, out, ("time_s", *columns, "label")))
        stack.callback(lambda: click.echo(f"{count} readings", err=True))
        if iio:
            readings = _within(_of_iio(driven, manifest), begin_s, end_s)
        elif serial is not None:
            readings = _within(_of_serial(stack, serial, len(channels)), begin_s, end_s)
        elif broker is None:
            readings = _within(_of_termux(sensors, len(channels)), begin_s, end_s)
        else:
            readings = _of_broker(stack, broker, topics, begin_s, end_s)
        stack.enter_context(on_interrupt("what was recorded is kept"))
        for reading in readings:
            writer.writerow((f"{reading.time_s:.4f}", *reading.values, label))
            count += 1


def _manifest(
    bundle: Path, trust_files: tuple[Path, ...], label: str, topics: tuple[ChannelTopic, ...]
) -> Manifest:
    """The bundle's, with channels that label and topics fit."""
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
    return manifest


def _within(readings: Iterator[Reading], begin_s: float, end_s: float) -> Iterator[Reading]:
    """Those of a time."""
    for reading in readings:
        if reading.time_s >= end_s:
            return
        if reading.time_s >= begin_s:
            yield reading


def _driven(
    names: tuple[str, ...], manifest: Manifest
) -> tuple[tuple[IioSensor, ...], tuple[str, ...]]:
    """The sensors, and the bundle's channels with the units that theirs are in."""
    from protofleet.edge.data import iio

    sensors, channels = iio.chosen_sensors(names, iio.ROOT), manifest.preprocessing.channels
    units = [one.unit for one in sensors for _ in one.axes]
    if len(units) != len(channels):
        said = ", ".join(f"{one.name} has {len(one.axes)}" for one in sensors)
        raise InputError(
            f"--iio: expected values for the bundle's channels {', '.join(channels)}, got "
            f"{len(units)} ({said})"
        )
    pairs = zip(channels, units, strict=True)
    return sensors, tuple(f"{name} [{unit}]" if unit else name for name, unit in pairs)


def _of_iio(sensors: tuple[IioSensor, ...], manifest: Manifest) -> Iterator[Reading]:
    from protofleet.edge.data.iio import read_iio

    return read_iio(sensors, manifest.preprocessing.rate_hz or 1.0, time.time, time.sleep)


def _of_serial(stack: ExitStack, port: SerialPort, channels: int) -> Iterator[Reading]:
    from protofleet.edge.data.serial_lines import read_lines

    left_out: Counter[str] = Counter()
    stack.callback(_tell_left_out, left_out)
    return read_lines(stack.enter_context(port.opened()), channels, time.time, left_out)


def _of_termux(sensors: tuple[Sensor, ...], channels: int) -> Iterator[Reading]:
    from protofleet.edge.data.termux import read_termux

    return read_termux(cast("Source", sys.stdin.buffer), sensors, channels, time.time)


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
    _tell_left_out(joiner.left_out)
    if joiner.silent:
        names = ", ".join(map(str, joiner.silent))
        click.echo(f"no value came of {names}; every channel needs one for a reading", err=True)


def _tell_left_out(left_out: Counter[str]) -> None:
    for reason, times in left_out.most_common():
        click.echo(f"left out: {times} x {reason}", err=True)


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
