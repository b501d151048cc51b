"""Codecs: what a reader gets, what it refuses, and that nothing is lost in the long run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protofleet.errors import InputError, RefusedError
from protofleet.tensors import blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import SMALL, Codec, Coding, decode, encode, to_raw

_LIMIT = 1 << 22
_CODED = [Codec.of(name, keep=0.1) for name in codecs.NAMES[1:]]
_FLOATS = st.floats(-1e4, 1e4, width=32)
_SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=30)
_ARRAYS = _SHAPES.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=_FLOATS))
_TENSORS = st.dictionaries(
    st.sampled_from(["params/a", "params/b", "state/p", "counts"]), _ARRAYS, max_size=4
)
_each = pytest.mark.parametrize("codec", _CODED, ids=lambda codec: codec.name)


def read(encoded, references=None, **changes):
    coding = dataclasses.replace(encoded.coding(""), **changes)
    return decode(encoded.blob, references or {}, coding, max_bytes=_LIMIT)


def made(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        "params/w": (rng.standard_normal((40, 30)) * scale).astype(np.float32),
        "state/p": (rng.standard_normal((9, 20)) * scale).astype(np.float32),
        "bias": rng.standard_normal(SMALL - 1).astype(np.float32),
        "labels": np.arange(99),
        "mask": rng.random(70) > 0.5,
        "images": rng.integers(0, 255, (3, 8, 8)).astype(np.uint8),
        "none": np.zeros((0, 50), np.float32),
    }


def test_raw_is_the_plain_blob():
    tensors = made()
    encoded = encode(tensors, {}, Codec(), residual={}, metadata={"a": "b"})
    assert encoded.blob == blobs.encode(tensors, {"a": "b"})
    assert (encoded.coding("x"), encoded.residual) == (Coding(), {})
    assert to_raw(encoded.blob, {}, Coding(), max_bytes=_LIMIT) == encoded.blob


@_each
@settings(max_examples=40)
@given(tensors=_TENSORS, references=_TENSORS, metadata=st.dictionaries(st.text("xy"), st.text()))
def test_what_is_read_is_within_the_codecs_bounds(codec, tensors, references, metadata):
    """A payload: no tensor is off by more than a step of its block's scale."""
    encoded = encode(tensors, references, codec, metadata=metadata)
    found, about = read(encoded, references)
    assert about == metadata
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, np.float32)
        known = references.get(name)
        known = known if known is not None and known.shape == value.shape else np.zeros_like(value)
        peak = float(np.abs(value - known).max(initial=0))
        levels = {"fp16": 2**11, "int4": 7}.get(codec.tensors.name, 127)
        bound = (
            0 if value.size < SMALL else 0.51 * peak / levels * (1 + (codec.tensors.name == "fp16"))
        )
        rounding = 4e-7 * float(np.abs(value).max(initial=0) + np.abs(known).max(initial=0))
        assert np.abs(found[name] - value).max(initial=0) <= bound + rounding + 1e-7


@_each
def test_other_dtypes_and_small_tensors_travel_exactly(codec):
    tensors = made()
    encoded = encode(tensors, {}, codec, residual={})
    found, _ = read(encoded)
    for name in ("bias", "labels", "mask", "images", "none"):
        np.testing.assert_array_equal(found[name], tensors[name])
        assert found[name].dtype == tensors[name].dtype
    assert len(encoded.blob) < len(blobs.encode(tensors))


@_each
def test_numbers_without_end_reach_the_receiver_that_refuses_them(codec):
    for bad in (np.nan, np.inf):
        tensors = made()
        tensors["params/w"][3, 4] = bad
        found, _ = read(encode(tensors, made(1), codec, residual={}), made(1))
        np.testing.assert_array_equal(found["params/w"], tensors["params/w"])
        with pytest.raises(RefusedError, match="finite"):
            blobs.check_finite(found)


@_each
@settings(max_examples=15)
@given(seed=st.integers(0, 999), rounds=st.integers(1, 12))
def test_in_the_long_run_nothing_of_an_update_is_lost(codec, seed, rounds):
    """The sum of what is read is the sum of the true differences but for the last residual."""
    rng = np.random.default_rng(seed)
    base = {"params/w": rng.standard_normal((20, 20)).astype(np.float32)}
    residual, true, read_sum = {}, np.zeros((20, 20)), np.zeros((20, 20))
    for _ in range(rounds):
        step = rng.standard_normal((20, 20)).astype(np.float32) * 0.01
        own = {"params/w": base["params/w"] + step}
        encoded = encode(own, base, codec, residual=residual)
        residual = encoded.residual
        found, _ = read(encoded, base)
        true += own["params/w"] - base["params/w"]
        read_sum += found["params/w"] - base["params/w"]
    left = residual["params/w"].reshape(20, 20)
    np.testing.assert_allclose(read_sum + left, true, atol=2e-6 * rounds)
    if codec.tensors.name != "topk":
        assert np.abs(left).max() < 0.01


@_each
@settings(max_examples=15)
@given(seed=st.integers(0, 999), rounds=st.integers(1, 12))
def test_what_coding_loses_of_an_increment_comes_with_the_next(codec, seed, rounds):
    """Whatever the other end has by its name: an increment is no difference to anything."""
    rng = np.random.default_rng(seed)
    name, shape = "change/c/w", (20, 20)
    base = {name: np.full(shape, 99, np.float32)}
    residual, true, read_sum = {}, np.zeros(shape), np.zeros(shape)
    for _ in range(rounds):
        step = {name: rng.standard_normal(shape).astype(np.float32) * np.float32(0.01)}
        encoded = encode(step, base, codec, residual=residual)
        assert encoded.blob == encode(step, {}, codec, residual=residual).blob
        residual = encoded.residual
        found, _ = read(encoded)
        true += step[name]
        read_sum += found[name]
    left = residual[name].reshape(shape)
    np.testing.assert_allclose(read_sum + left, true, atol=2e-6 * rounds)
    assert np.abs(left).max() < 0.01


def test_an_increment_never_has_less_than_8_bits():
    """The server adds them up: what is missing of one round's is missing until the next."""
    for kind in ("int4", "topk"):
        coded = encode({"change/w": made()["params/w"]}, {}, Codec.of(kind), residual={})
        _, about = blobs.decode(coded.blob, max_bytes=_LIMIT)
        assert json.loads(about["codec"]) == [["change/w", [40, 30], "int8", False]]


def test_the_next_payload_corrects_what_the_last_one_lost():
    """Each payload refers to what the last one decoded to: a model that stands still is reached."""
    target, known = made(0), made(1)
    errors = []
    for _ in range(5):
        known, _ = read(encode(target, known, Codec.of("int4")), known)
        errors.append(float(np.abs(known["params/w"] - target["params/w"]).max()))
    assert all(after < before / 5 for before, after in itertools.pairwise(errors))


def test_what_is_stated_anew_every_round_gets_no_memory_and_no_coarse_codec():
    """A class mean is no difference: an old error must not be added to it."""
    tensors, base = made(0), made(1)
    for kind in ("int4", "topk"):
        encoded = encode(tensors, base, Codec.of(kind), residual={})
        assert encoded.residual.keys() == {"params/w"}
        found, _ = read(encoded, base)
        peak = np.abs(tensors["state/p"] - base["state/p"]).max()
        assert np.abs(found["state/p"] - tensors["state/p"]).max() <= 0.51 * peak / 127
        # Without a reference a parameter is no difference either.
        assert not encode(tensors, {}, Codec.of(kind), residual={}).residual


def test_top_k_sends_the_largest_entries_alone():
    base = made(1)
    own = {name: value.copy() for name, value in base.items()}
    own["params/w"] += np.linspace(-1, 1, 1200, dtype=np.float32).reshape(40, 30) ** 3
    encoded = encode(own, base, Codec.of("topk", keep=0.1), residual={})
    found, _ = read(encoded, base)
    changed = np.flatnonzero(found["params/w"] != base["params/w"])
    assert set(changed) == {*range(60), *range(1140, 1200)}
    assert not encoded.residual["params/w"][200:1000].any() or len(changed) == 120


@_each
@settings(max_examples=60)
@given(data=st.data())
def test_damaged_blobs_are_refused_and_nothing_else_happens(codec, data):
    """One byte changed, cut off, or added: refused, or tensors of the shapes that are named."""
    tensors, base = made(0), made(1)
    encoded = encode(tensors, base, codec, residual={})
    blob = bytearray(encoded.blob)
    kind = data.draw(st.sampled_from(["flip", "cut", "add"]))
    place = data.draw(st.integers(0, len(blob) - 1))
    if kind == "flip":
        blob[place] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del blob[place:]
    else:
        blob += b"\0" * (1 + place % 9)
    try:
        found, _ = decode(bytes(blob), base, encoded.coding(""), max_bytes=_LIMIT)
    except RefusedError:
        return
    assert kind == "flip"
    assert sum(value.nbytes for value in found.values()) <= _LIMIT


@_each
@given(noise=st.binary(max_size=200), size=st.integers(-1, 300))
@settings(max_examples=30)
def test_noise_is_refused(codec, noise, size):
    with pytest.raises(RefusedError):
        decode(noise, {}, Coding(codec=codec.name, raw_bytes=size), max_bytes=_LIMIT)


def test_a_bomb_is_refused_before_it_is_unpacked():
    bomb = zlib.compress(bytes(1 << 24), 9)
    coding = Coding(codec="int8+zlib", raw_bytes=1 << 16)
    with pytest.raises(RefusedError, match="one whole stream of 65536 bytes"):
        decode(bomb, {}, coding, max_bytes=_LIMIT)
    with pytest.raises(RefusedError, match=f"expected 1 to {_LIMIT} bytes before compression"):
        decode(bomb, {}, dataclasses.replace(coding, raw_bytes=1 << 24), max_bytes=_LIMIT)


def test_an_unknown_codec_is_refused():
    with pytest.raises(RefusedError, match="'lzma'"):
        decode(b"x", {}, Coding(codec="lzma", raw_bytes=1), max_bytes=_LIMIT)


def _rewritten(codec, change):
    """A blob of one parameter whose parts ``change`` has altered."""
    base = {"params/w": made(1)["params/w"]}
    encoded = encode({"params/w": made()["params/w"]}, base, codec, residual={})
    parts, about = blobs.decode(encoded.blob, max_bytes=_LIMIT)
    parts = {name: value.copy() for name, value in parts.items()}
    table = json.loads(about["codec"])
    change(parts, table)
    blob = blobs.encode(parts, {"codec": json.dumps(table)})
    return decode(blob, base, Coding(codec=codec.name, raw_bytes=len(blob)), max_bytes=_LIMIT)


def _entry(place, value):
    return lambda _parts, table: table[0].__setitem__(place, value)


def _part(name, change):
    def alter(parts, _table):
        parts[f"codec/{name}"] = change(parts[f"codec/{name}"])

    return alter


def _put(place, value):
    def alter(stream):
        stream[place] = value
        return stream

    return alter


_HUGE = [[1 << 20, 1 << 20], "topk", False]
_HOSTILE = {
    "nan scale": ("int8", _part("scales", _put(1, np.nan)), "scales"),
    "negative scale": ("int4", _part("scales", _put(0, -1)), "scales"),
    "infinite scale": ("int4", _part("scales", _put(0, np.inf)), "scales"),
    "code -128": ("int8", _part("codes", _put(5, -128)), "-128"),
    "nibble 0": ("int4", _part("nibbles", _put(5, 0x07)), "nibbles"),
    "nan half": ("fp16", _part("halves", lambda planes: np.full_like(planes, 255)), "fp16"),
    "fewer codes": ("int8", _part("codes", lambda codes: codes[:-1]), "expected 1200 more"),
    "more codes": ("int8", _part("codes", lambda codes: np.append(codes, codes[:1])), "no tensor"),
    "other dtype": ("int8", _part("codes", lambda codes: codes.view(np.uint8)), "int8"),
    "two axes": ("int8", _part("codes", lambda codes: codes.reshape(2, -1)), "one axis"),
    "odd planes": ("fp16", _part("halves", lambda planes: planes[:-1]), "byte planes"),
    "more chosen than sent": ("topk", _part("bitmaps", np.invert), "more numbers"),
    "fewer bits": ("topk", _part("bitmaps", lambda bits: bits[:-1]), "bitmaps"),
    "other shape": ("int8", _entry(1, [30, 40]), "refers to one that is not here"),
    "unknown name": ("int8", _entry(0, "params/v"), "refers to one that is not here"),
    "negative axis": ("int8", _entry(1, [-40, -30]), "shape"),
    "nine axes": ("int8", _entry(1, [1] * 9), "shape"),
    "huge": ("topk", lambda _p, table: table[0].__setitem__(slice(1, 4), _HUGE), "in all"),
    "no such kind": ("int8", _entry(2, "int2"), "table of tensors"),
    "no table": ("int8", lambda _parts, table: table.clear(), "belong to no tensor"),
    "name twice": ("int8", lambda _parts, table: table.append(table[0]), "once"),
    "our own prefix": ("int8", _entry(0, "codec/x"), "codec/"),
    "unknown stream": ("int8", lambda p, _t: p.update({"codec/x": p["codec/codes"]}), "no such"),
    "in both": ("int8", lambda p, _t: p.update({"params/w": p["codec/codes"]}), "once"),
}  # fmt: skip


@pytest.mark.parametrize("name", _HOSTILE)
def test_what_no_encoder_writes_is_refused(name):
    kind, change, message = _HOSTILE[name]
    with pytest.raises(RefusedError, match=message) as caught:
        _rewritten(Codec.of(kind), change)
    assert caught.value.rule == "codec"


def test_bits_behind_the_last_entry_are_refused():
    base = {"params/w": made(1)["params/w"][:, :29].reshape(-1)[:41]}
    encoded = encode({"params/w": base["params/w"] + 1}, base, Codec.of("topk"), residual={})
    parts, about = blobs.decode(encoded.blob, max_bytes=_LIMIT)
    bits = parts["codec/bitmaps"].copy()
    bits[-1] |= 1
    blob = blobs.encode({**parts, "codec/bitmaps": bits}, about)
    with pytest.raises(RefusedError, match="zeros behind the last"):
        decode(blob, base, Coding(codec="topk", raw_bytes=len(blob)), max_bytes=_LIMIT)


def test_a_strategys_own_name_with_our_prefix_is_refused_by_the_sender():
    with pytest.raises(InputError, match="codec/"):
        encode({"codec/x": np.arange(3)}, {}, Codec.of("int8"))


def test_equal_codes_that_refer_to_different_payloads_are_different_blobs():
    """Their transfers must differ: a device refuses one because it lacks the base."""
    small = {"b": np.zeros(3, np.float32)}
    one, other = (
        encode(small, {}, Codec.of("int8"), reference=reference) for reference in ("", "a" * 64)
    )
    assert one.blob != other.blob
    assert read(other)[1] == {}


@pytest.mark.parametrize("name", codecs.NAMES)
def test_names_are_read_back(name):
    assert Codec.of(name, keep=0.25).name == name


@pytest.mark.parametrize("name", codecs.CODECS)
def test_a_codec_has_its_own_settings_and_is_specified(name):
    """Its name stands in the protocol's table, for who writes a client in another language."""
    assert Codec.of(name, keep=0.25, other=3) == Codec(codecs.CODECS[name].of(keep=0.25))
    assert f"`{name}`" in (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def test_what_is_not_known_falls_back_to_raw():
    assert Codec.of("int2") == Codec.of("topk", keep=0.0) == Codec.of("raw+zlib") == Codec()


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 257, "__metadata__"])
def test_a_name_that_no_blob_may_hold_is_refused(name):
    with pytest.raises(RefusedError, match="a name is not allowed"):
        _rewritten(Codec.of("int8"), _entry(0, name))


@pytest.mark.parametrize("shape", [[10**4000, 10**4000], [10**30], [2**31, 2**31]])
def test_a_shape_of_astronomic_numbers_is_refused(shape):
    with pytest.raises(RefusedError, match="impossible shape"):
        _rewritten(Codec.of("int8"), _entry(1, shape))


def test_more_tensors_than_a_blob_may_hold_are_refused_before_they_are_read():
    entries = [[f"t{i}", [1], "int8", False] for i in range(blobs.MAX_TENSORS + 1)]
    blob = blobs.encode({"codec/codes": np.zeros(0, np.int8)}, {"codec": json.dumps(entries)})
    coding = Coding(codec="int8", raw_bytes=len(blob))
    with pytest.raises(RefusedError, match=f"at most {blobs.MAX_TENSORS}"):
        to_raw(blob, {}, coding, max_bytes=_LIMIT)


@_each
def test_the_order_in_which_a_sender_holds_its_tensors_does_not_show(codec):
    tensors = made()
    turned = dict(reversed(tensors.items()))
    assert encode(tensors, {}, codec).blob == encode(turned, {}, codec).blob


def test_an_update_without_tensors_keeps_what_was_lost_before():
    references = {"params/w": np.zeros((40, 30), np.float32)}
    first = encode(made(), references, Codec.of("topk"), residual={})
    assert np.abs(first.residual["params/w"]).sum() > 0
    second = encode({}, references, Codec.of("topk"), residual=first.residual)
    np.testing.assert_array_equal(second.residual["params/w"], first.residual["params/w"])


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e5, 1e30])
def test_half_floats_are_left_where_they_would_cut_off_or_vanish(scale):
    tensors = made(scale=scale)
    found, _ = read(encode(tensors, {}, Codec.of("fp16")))
    largest = np.abs(tensors["state/p"]).max()
    assert np.abs(found["state/p"] - tensors["state/p"]).max() <= largest / 200


@_each
def test_the_largest_finite_numbers_reach_the_receiver(codec):
    tensors = {"params/w": np.full((8, 8), np.finfo(np.float32).max)}
    references = {"params/w": np.zeros((8, 8), np.float32)}
    found, _ = read(encode(tensors, references, codec, residual={}), references)
    np.testing.assert_array_equal(found["params/w"], tensors["params/w"])
