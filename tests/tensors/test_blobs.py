from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.errors import InputError, RefusedError
from protofleet.tensors.blobs import check_finite, decode, encode, nested_parts

_DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
_NAMES = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20).filter(
    lambda name: name != "__metadata__"
)
_ARRAYS = st.sampled_from(_DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)
_TENSORS = st.dictionaries(_NAMES, _ARRAYS, max_size=5)
_METADATA = st.dictionaries(_NAMES, st.text(st.characters(codec="utf-8")), max_size=3)
_LIMIT = 1 << 20


@given(_TENSORS, _METADATA)
def test_what_was_encoded_is_decoded_bit_for_bit(tensors, metadata):
    decoded, read_metadata = decode(encode(tensors, metadata), max_bytes=_LIMIT)
    assert read_metadata == metadata
    assert decoded.keys() == tensors.keys()
    for name, value in tensors.items():
        assert (decoded[name].dtype, decoded[name].shape) == (value.dtype, value.shape)
        assert decoded[name].tobytes() == value.tobytes()


@given(_TENSORS, _METADATA)
def test_the_order_of_the_input_changes_no_byte(tensors, metadata):
    backwards = dict(reversed(tensors.items()))
    assert encode(tensors, metadata) == encode(backwards, dict(reversed(metadata.items())))


@given(_TENSORS)
def test_the_reference_library_reads_what_we_write(tensors):
    theirs = safetensors.numpy.load(encode(tensors, {"k": "v"}))
    assert theirs.keys() == tensors.keys()
    for name, value in tensors.items():
        assert theirs[name].tobytes() == value.tobytes()
        assert theirs[name].shape == value.shape


@given(_TENSORS)
def test_we_read_what_the_reference_library_writes(tensors):
    decoded, metadata = decode(safetensors.numpy.save(tensors, {"k": "v"}), max_bytes=_LIMIT)
    assert metadata == {"k": "v"}
    assert {n: v.tobytes() for n, v in decoded.items()} == {
        n: v.tobytes() for n, v in tensors.items()
    }


@settings(max_examples=300)
@given(st.data())
def test_altered_bytes_are_refused_or_read_as_the_reference_library_reads_them(data):
    """Never another exception, and never a blob that a stricter reader would call broken."""
    blob = bytearray(
        encode({"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.bool_)}, {"k": "v"})
    )
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    del blob[data.draw(st.integers(0, len(blob))) :]
    try:
        decoded, _ = decode(bytes(blob), max_bytes=_LIMIT)
    except RefusedError:
        return
    theirs = dict(safetensors.deserialize(bytes(blob)))
    assert {n: bytes(v["data"]) for n, v in theirs.items()} == {
        n: v.tobytes() for n, v in decoded.items()
    }


def test_decoded_arrays_share_the_blobs_memory_and_are_read_only():
    data = encode({"a": np.arange(6, dtype=np.float32)})
    array = decode(data, max_bytes=_LIMIT)[0]["a"]
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_an_array_that_a_foreign_writer_misaligned_is_readable():
    """One byte of another tensor before it; the values come out right, in a copy."""
    text = (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}'
    )
    body = b"\x07" + np.float32(1.5).tobytes()
    decoded, _ = decode(len(text).to_bytes(8, "little") + text + body, max_bytes=_LIMIT)
    assert decoded["b"].flags.aligned
    assert decoded["b"].tolist() == [1.5]


def test_other_byte_orders_and_strides_are_written_as_the_values_they_are():
    big = np.arange(6, dtype=">f4").reshape(2, 3).T
    assert decode(encode({"a": big}), max_bytes=_LIMIT)[0]["a"].tolist() == big.tolist()


@pytest.mark.parametrize(
    "tensors",
    [
        {"": np.zeros(1)},
        {"__metadata__": np.zeros(1)},
        {"x" * 257: np.zeros(1)},
        {"a\nb": np.zeros(1)},
        {"a": np.zeros(1, np.complex64)},
        {"a": np.array(["text"])},
        {"a": np.array([None])},
        {"a": np.zeros((1,) * 9)},
        {f"t{index}": np.zeros(0) for index in range(4097)},
    ],
)
def test_what_no_reader_would_accept_is_not_written(tensors):
    with pytest.raises(InputError):
        encode(tensors)


def test_only_floats_can_be_other_than_finite():
    check_finite({"a": np.ones(3, np.float16), "b": np.array([2**63 - 1])})
    with pytest.raises(RefusedError, match="'c'"):
        check_finite({"c": np.array([1, np.inf], np.float16)})


def test_one_header_read_again_gives_metadata_of_its_own():
    """Headers that come again are not parsed again; who reads one may change what it got."""
    blob = encode({"a": np.arange(3, dtype=np.float32)}, {"about": "x"})
    decode(blob, max_bytes=len(blob))[1].clear()
    tensors, metadata = decode(blob, max_bytes=len(blob))
    assert metadata == {"about": "x"}
    tensors.clear()
    assert list(decode(blob, max_bytes=len(blob))[0]) == ["a"]
    with pytest.raises(RefusedError, match="tensors fill 12 bytes of 16"):
        decode(blob + b"\0" * 4, max_bytes=len(blob) + 4)


_ENTRY = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"__metadata__":{"k":"1"},' + _ENTRY + "}", ""),
        ('{"__metadata__":{"k":"\\u0031"},' + _ENTRY + "}", ""),
        ('{ "__metadata__": {"k":"1"} , ' + _ENTRY + "}", ""),
        ("{" + _ENTRY + ',"__metadata__":{"k":"1"}}', ""),
        ('{"__metadata__":{"k":"1"},' + _ENTRY + ',"__metadata__":{}}', "occurs twice"),
        ('{"__metadata__":{"k":"1"},' + _ENTRY + ',"\\u005f_metadata__":{}}', "occurs twice"),
        ('{"__metadata__":{"k":"1","k":"1"},' + _ENTRY + "}", "occurs twice"),
        ('{"__metadata__":{"k":1},' + _ENTRY + "}", "metadata of strings"),
        ('{"__metadata__":"k",' + _ENTRY + "}", "metadata of strings"),
        ('{"__metadata__":{"k":"1"},}', "not strict JSON"),
        ('{"__metadata__":{"k":"1"},' + _ENTRY, "not strict JSON"),
        ('{"__metadata__":{"k":"1"}' + _ENTRY + "}", "not strict JSON"),
    ],
)
def test_a_header_is_read_alike_wherever_its_metadata_stands(text, reason):
    """That of an update stands first, and what is behind it is not parsed again."""
    data = len(text).to_bytes(8, "little") + text.encode() + np.float32(1.5).tobytes()
    for _ in range(2):
        if reason:
            with pytest.raises(RefusedError, match=reason):
                decode(data, max_bytes=_LIMIT)
        else:
            tensors, metadata = decode(data, max_bytes=_LIMIT)
            assert (tensors["a"].tolist(), metadata) == ([1.5], {"k": "1"})


def test_contents_in_parts_make_the_blob_of_their_joined_bytes():
    parts = {"b": [b"12", memoryview(b"345")], "a": [], "c": [encode({"x": np.ones(3)})]}
    joined = {name: np.frombuffer(b"".join(of), np.uint8) for name, of in parts.items()}
    assert b"".join(nested_parts(parts, {"about": "x"})) == encode(joined, {"about": "x"})
