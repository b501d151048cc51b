"""The largest header that is read at all: whatever it holds, one pass decides."""

from __future__ import annotations

import pytest

from protofleet.errors import RefusedError
from protofleet.tensors import blobs, strict_json

_MANY = ",".join(f'"k{index:06d}":0' for index in range(140_000))


def _blob(header: str) -> bytes:
    data = header.encode()
    assert len(data) <= blobs.MAX_HEADER_BYTES
    return len(data).to_bytes(8, "little") + data


@pytest.mark.timeout(60)
@pytest.mark.parametrize("last", ["k139999", "k000000"])
def test_a_repeated_key_among_140_000_is_found_in_one_pass(last):
    """Looked for in a list it takes half an hour: the test would run into its time limit."""
    with pytest.raises(RefusedError, match=f"'{last}' occurs twice"):
        strict_json.loads(f'{{{_MANY},"{last}":0}}'.encode(), rule="blob-header", what="it")


def test_a_key_of_a_million_characters_is_not_repeated_in_the_message():
    key = "a" * 1_000_000
    with pytest.raises(RefusedError, match="occurs twice") as caught:
        strict_json.loads(f'{{"{key}":0,"{key}":0}}'.encode(), rule="blob-header", what="it")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        (f"{{{_MANY}}}", "blob-header"),
        ("[" * 2_000_000, "blob-header"),
        ('{"a":' * 300_000, "blob-header"),
        (f'{{"a":{"9" * 2_000_000}}}', "blob-header"),
        (f'{{"a":1e{"9" * 1_000_000}}}', "blob-header"),
        (
            f'{{"a":{{"dtype":"F32","shape":[{"1," * 900_000}1],"data_offsets":[0,16]}}}}',
            "blob-shape",
        ),
    ],
)
def test_many_keys_deep_nesting_and_endless_numbers_are_refused(header, rule):
    with pytest.raises(RefusedError) as caught:
        blobs.decode(_blob(header), max_bytes=1 << 30)
    assert caught.value.rule == rule
    assert len(str(caught.value)) < 300


def test_nesting_as_deep_as_the_interpreter_goes_is_refused_by_name():
    rules = set()
    for depth in range(900, 1000):
        nested = "[" * depth + "]" * depth
        header = f'{{"a":{{"dtype":{nested},"shape":[1],"data_offsets":[0,4]}}}}'
        with pytest.raises(RefusedError) as caught:
            blobs.decode(_blob(header), max_bytes=1 << 30)
        rules.add(caught.value.rule)
    assert rules == {"blob-dtype", "blob-header"}
