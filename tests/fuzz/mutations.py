"""Inputs near good ones: what a fault, a liar or a fuzzer makes of bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBERS = (
    b"-1", b"0", b"1", b"255", b"65536", b"2147483648", b"4294967295", b"9007199254740993",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1e400", b"-1e-400",
    b"0.5", b"1e308", b"-0", b"NaN", b"true", b"null", b'""', b"[]", b"{}", b"9" * 5000,
)  # fmt: skip
_TOKENS = (
    b"[" * 2000, b'{"a":' * 500, b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b'"', b",", b"\n",
    b"../", b"{}", b"[]", b"nan", b"inf", b"\r", b"\x1b]0;title\x07", b"\xf0\x9f\x98\x80",
)  # fmt: skip
_WIDTHS = (1, 2, 4, 8)


def mutate(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """``data`` with one to six changes.

    Args:
        data: an input.
        others: where foreign pieces come from.
        draw: decides.
    """
    for _ in range(draw.randint(1, 6)):
        data = draw.choice(_CHANGES)(data, others, draw)
    return data


def _place(data: bytes, draw: random.Random) -> int:
    return draw.randint(0, len(data))


def _slice(data: bytes, draw: random.Random) -> tuple[int, int]:
    begin, end = sorted((_place(data, draw), _place(data, draw)))
    return begin, end


def _flip(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    if not data:
        return b"\x00"
    at = draw.randint(0, len(data) - 1)
    return data[:at] + bytes([data[at] ^ (1 << draw.randint(0, 7))]) + data[at + 1 :]


def _cut(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    return data[: _place(data, draw)]


def _leave_out(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    begin, end = _slice(data, draw)
    return data[:begin] + data[end:]


def _repeat(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    begin, end = _slice(data, draw)
    return data[:end] + data[begin:end] * draw.randint(1, 3) + data[end:]


def _splice(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    other = draw.choice(others)
    begin, end = _slice(other, draw)
    at = _place(data, draw)
    return data[:at] + other[begin:end] + data[at:]


def _set_number(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    """A number in a text becomes an extreme one."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    number = draw.choice(found)
    return data[: number.start()] + draw.choice(_NUMBERS) + data[number.end() :]


def _set_length(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    """A field of a binary format becomes an extreme one."""
    width = draw.choice(_WIDTHS)
    top = 1 << 8 * width
    value = draw.choice((0, 1, top - 1, top // 2, top // 2 - 1, top // 256))
    at = _place(data, draw)
    field = value.to_bytes(width, draw.choice(("little", "big")))
    return data[:at] + field + data[at + width :]


def _insert(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + draw.choice(_TOKENS) + data[at:]


_CHANGES: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    _flip, _cut, _leave_out, _repeat, _splice, _set_number, _set_number, _set_length, _insert,
)  # fmt: skip


def long_inputs(data: bytes, size: int) -> list[bytes]:
    """Inputs of about ``size`` bytes: one thing again and again, alone and within ``data``."""
    things = (
        b"[",
        b'{"a":',
        b"[],",
        b"{},",
        b'"',
        b"9",
        b"1,",
        b"\n",
        b"\x00",
        b"\xff",
        b"a = 1\n",
    )
    texts = [thing * (size // len(thing)) for thing in things]
    keys = b"{" + b",".join(b'"%d":[]' % number for number in range(size // 10)) + b"}"
    middle = len(data) // 2
    return [
        *texts,
        keys,
        len(keys).to_bytes(8, "little") + keys,
        data * (size // max(1, len(data))),
        *(data[:middle] + text + data[middle:] for text in texts),
    ]
