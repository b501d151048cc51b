"""Lines of a microcontroller on a pseudo terminal, into readings."""

from __future__ import annotations

import os
import threading
from collections import Counter

import pytest

from protofleet.edge.data.serial_lines import SerialPort, read_lines
from protofleet.errors import InputError, MissingDataError


@pytest.fixture
def line():
    """Where a microcontroller writes, and the port's name."""
    controller, port = os.openpty()
    yield controller, os.ttyname(port)
    for one in (controller, port):
        os.close(one)


def _read(line, *pieces, count, channels=3):
    controller, name = line
    left_out: Counter[str] = Counter()
    times = iter(range(1000))
    with SerialPort.parse(f"{name}@9600").opened() as port:

        def write():
            for piece in pieces:
                os.write(controller, piece)

        writer = threading.Thread(target=write)
        writer.start()
        found = read_lines(port, channels, lambda: float(next(times)), left_out)
        readings = [next(found).values for _ in range(count)]
        writer.join()
    return readings, left_out


def test_numbers_are_read_whatever_stands_between_them(line):
    pieces = (b"5,6\r\n1,2,3\r\n-1.5; 2e-1 ;+3\n", b"4\t5", b"\t6\n")
    found, left_out = _read(line, *pieces, count=3)
    assert found == [(1.0, 2.0, 3.0), (-1.5, 0.2, 3.0), (4.0, 5.0, 6.0)]
    assert not left_out  # the first line may be the rest of one


def test_what_is_no_reading_is_counted_by_its_reason(line):
    pieces = (b"1,2,3\n\nready\n1,2\n", b"9" * 1500, b"\n7,8,9\n")
    found, left_out = _read(line, *pieces, count=2)
    assert found == [(1.0, 2.0, 3.0), (7.0, 8.0, 9.0)]
    reasons = {"a line of no numbers", "a line of 2 and not 3 numbers"}
    assert reasons <= set(left_out)


def test_a_port_that_is_none_is_named(tmp_path):
    with (
        pytest.raises(MissingDataError, match=r"serial port '/dev/ttyNone': no such device"),
        SerialPort.parse("/dev/ttyNone").opened(),
    ):
        pass
    (tmp_path / "file").write_text("1,2,3\n")
    with (
        pytest.raises(InputError, match=r"serial port .*file"),
        SerialPort.parse(str(tmp_path / "file")).opened(),
    ):
        pass
    with pytest.raises(InputError, match="expected a speed such as 9600 or 115200"):
        SerialPort.parse("/dev/ttyUSB0@12345")
