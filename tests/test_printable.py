from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größer als 5 °C", "größer als 5 °C"),
        ("\x1b]0;pwned\x07", "\\u001b]0;pwned\\u0007"),
        ("a\nb\r\u2028\x9b31m", "a\\u000ab\\u000d\\u2028\\u009b31m"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("\U000e0041", "\\udb40\\udc41"),
    ],
)
def test_what_is_not_seen_is_escaped(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_nothing_else_is_left_and_json_stays_the_same_value(text):
    assert printable(text).isprintable()
    line = json.dumps({"reason": text}, ensure_ascii=False)
    assert json.loads(printable(line)) == {"reason": text}
