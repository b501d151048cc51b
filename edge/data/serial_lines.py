"""A microcontroller's readings: lines of numbers on a serial port, each timed as it arrives."""

from __future__ import annotations

import os
import re
import termios
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protofleet.edge.data.termux import Reading
from protofleet.errors import InputError, MissingDataError

_PIECE = 4096
_MOST_LINE = 1024
_CUTS = re.compile(r"[,;\s]+")
BAUD = 115_200


@dataclass(frozen=True, slots=True)
class SerialPort:
    """Where lines come from.

    Attributes:
        path: such as ``/dev/ttyUSB0``.
        baud: bits a second.
    """

    path: str
    baud: int = BAUD

    @classmethod
    def parse(cls, text: str) -> SerialPort:
        """``/dev/ttyUSB0`` or ``/dev/ttyUSB0@9600``; InputError: a speed that no port has."""
        path, _, baud = text.partition("@")
        if baud and not hasattr(termios, f"B{baud}"):
            raise InputError(f"--serial {text}: expected a speed such as 9600 or 115200 behind @")
        return cls(path, int(baud) if baud else BAUD)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Its descriptor, set to raw bytes.

        Raises:
            MissingDataError: there is no such port.
            InputError: it cannot be opened, or is none.
        """
        try:
            port = os.open(self.path, os.O_RDONLY | os.O_NOCTTY)
        except FileNotFoundError as error:
            raise MissingDataError(f"serial port '{self.path}': no such device") from error
        except OSError as error:
            remedy = "; add the user to its group (dialout)" if error.errno == 13 else ""
            raise InputError(f"serial port '{self.path}': {error.strerror}{remedy}") from error
        try:
            _make_raw(port, self.baud)
            yield port
        except termios.error as error:
            raise InputError(f"serial port '{self.path}': {error.args[-1]}") from error
        finally:
            os.close(port)


def _make_raw(port: int, baud: int) -> None:
    speed = getattr(termios, f"B{baud}")
    _, _, _, _, _, _, characters = termios.tcgetattr(port)
    control = termios.CS8 | termios.CREAD | termios.CLOCAL
    termios.tcsetattr(port, termios.TCSANOW, [0, 0, control, 0, speed, speed, characters])


def read_lines(
    port: int, channels: int, clock: Callable[[], float], left_out: Counter[str]
) -> Iterator[Reading]:
    """Readings of lines with as many numbers as there are channels.

    The first line is left out without a word where it is half of one.

    Args:
        port: a descriptor.
        channels: how many.
        clock: wall clock, seconds.
        left_out: counts, by reason, the lines that give no reading.
    """
    rest, is_first = b"", True
    while piece := os.read(port, _PIECE):
        time_s = clock()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            values = _numbers(line)
            if values is not None and len(values) == channels:
                yield Reading(time_s, values)
            elif line.strip() and not is_first:
                got = "no" if values is None else f"{len(values)} and not {channels}"
                left_out[f"a line of {got} numbers"] += 1
            is_first = False
        if len(rest) > _MOST_LINE:
            left_out["a line without an end"] += 1
            rest = b""


def _numbers(line: bytes) -> tuple[float, ...] | None:
    try:
        return tuple(float(one) for one in _CUTS.split(line.decode("ascii").strip(" ,;\r\t")))
    except ValueError:
        return None
