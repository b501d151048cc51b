"""Half floats, 8-bit codes, sparse updates and byte planes against their definitions."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles import codecs as oracle

from protofleet.errors import InputError
from protofleet.kernels import (
    fp16_decode,
    fp16_encode,
    int8_decode,
    int8_encode,
    shuffle_decode,
    shuffle_encode,
    topk_decode,
    topk_encode,
)

pytestmark = pytest.mark.usefixtures("backend")
_HUGE = np.finfo(np.float32).max
_LARGE = 300_001  # three parts for threads, and an odd end
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
buffers = hnp.arrays(np.float32, st.integers(0, 150), elements=floats)
cuts = st.lists(st.integers(0, 150), max_size=6)
seeds = st.integers(0, 2**64 - 1)


def normal(size, seed=0):
    values = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    values.flags.writeable = False
    return values


def boundaries(inner, size):
    return np.array(sorted([0, size, *(min(cut, size) for cut in inner)]), np.int64)


def bits(array):
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def all_codes(infinity):
    """Every finite 16-bit float."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    return codes[codes & 0x7FFF < infinity]


def edges(codes, decode):
    """Every value of a 16-bit format, the middles between neighbours, and what lies beside."""
    values = decode(codes).astype(np.float64)
    values = np.sort(values[values >= 0])
    middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    edge = np.concatenate([values.astype(np.float32), middles, *near, [_HUGE, 1e-45, 65520]])
    edge = edge.astype(np.float32)
    return np.concatenate([edge, -edge])


@pytest.mark.jit
def test_fp16_is_numpy_s_for_every_code_and_every_tie():
    codes = all_codes(0x7C00).view(np.float16)
    np.testing.assert_array_equal(bits(fp16_decode(codes)), bits(codes.astype(np.float32)))
    np.testing.assert_array_equal(bits(fp16_encode(fp16_decode(codes))), bits(codes))
    values = edges(codes, lambda halves: halves.astype(np.float32))
    expected = np.clip(values, -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(bits(fp16_encode(values)), bits(expected))


@examples
@given(values=buffers)
def test_half_floats_are_the_nearest_ones(values):
    values.flags.writeable = False
    expected = np.clip(values, -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(bits(fp16_encode(values)), bits(expected))
    np.testing.assert_array_equal(fp16_decode(expected), expected.astype(np.float32))


def test_half_floats_saturate_instead_of_overflowing():
    values = np.array([65519, 65520, -1e38, _HUGE, -_HUGE], np.float32)
    assert fp16_encode(values).tolist() == [65504, 65504, -65504, 65504, -65504]


def test_no_tensor_makes_no_segment():
    codes, scales = int8_encode(np.empty(0, np.float32), np.zeros(1, np.int64))
    assert (codes.size, scales.size) == (0, 0)
    assert int8_decode(codes, scales, np.zeros(1, np.int64)).size == 0


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@examples
@given(values=buffers, inner=cuts, seed=seeds)
def test_int8_follows_its_definition(rounding, values, inner, seed):
    values.flags.writeable = False
    starts = boundaries(inner, values.size)
    codes, scales = int8_encode(values, starts, seed=seed, rounding=rounding)
    theirs, their_scales = oracle.int8(values, starts, seed=seed, rounding=rounding)
    np.testing.assert_array_equal(scales, their_scales)
    np.testing.assert_array_equal(codes, theirs)
    decoded = int8_decode(codes, scales, starts)
    spread = np.repeat(scales, np.diff(starts))
    np.testing.assert_array_equal(decoded, codes * spread)
    assert np.isfinite(decoded).all()
    error = np.abs(codes * spread.astype(np.float64) - values)
    assert (error <= spread * (0.5001 if rounding == "nearest" else 1.0)).all()


def test_int8_is_exact_on_multiples_of_the_scale():
    values = np.arange(-127, 128).astype(np.float32) * np.float32(2.0**-7)
    starts = np.array([0, values.size])
    for seed in range(20):
        codes, scales = int8_encode(values, starts, seed=seed)
        np.testing.assert_array_equal(int8_decode(codes, scales, starts), values)


def test_int8_stays_safe_where_a_scale_would_vanish_or_overflow():
    values = np.array([0, -0.0, 1e-45, -3e-40, _HUGE, -_HUGE], np.float32)
    starts = np.array([0, 2, 4, 6])
    codes, scales = int8_encode(values, starts)
    assert codes.tolist()[:2] == [0, 0]
    assert codes.tolist()[4:] == [127, -127]
    assert (scales >= np.finfo(np.float32).tiny).all()
    assert np.isfinite(int8_decode(codes, scales, starts)).all()


@pytest.mark.jit
def test_stochastic_rounding_is_unbiased_over_seeds():
    """The mean error of n draws is within five of its standard deviations, per element."""
    values, draws = normal(500), 2000
    starts = np.array([0, 500])
    total, scale = np.zeros(500), 0.0
    for seed in range(draws):
        codes, scales = int8_encode(values, starts, seed=seed)
        total += codes
        scale = float(scales[0])
    quotient = values.astype(np.float64) / scale
    share = quotient - np.floor(quotient)
    deviation = np.sqrt(share * (1 - share) / draws)
    assert (np.abs(total / draws - quotient) <= 5 * deviation + 1e-4).all()


@pytest.mark.jit
def test_rounding_is_independent_between_neighbours_and_seeds():
    """Half of all elements round up; whether one does says nothing about the next."""
    values = np.full(_LARGE, 0.5, np.float32)
    values[0] = 127
    starts = np.array([0, values.size])
    rows = np.array([int8_encode(values, starts, seed=seed)[0][1:] for seed in (0, 1, 2**63)])
    limit = 5 / np.sqrt(_LARGE)
    signs = rows * 2.0 - 1
    assert (np.abs(signs.mean(axis=1)) < limit).all()
    for step in (1, 2, 64, 4096):
        assert (np.abs((signs[:, step:] * signs[:, :-step]).mean(axis=1)) < limit).all()
    products = signs @ signs.T / signs.shape[1]
    assert (np.abs(products[~np.eye(3, dtype=bool)]) < limit).all()


@pytest.mark.jit
@pytest.mark.parametrize("width", [9, 128, _LARGE])
def test_results_do_not_depend_on_threads_or_compiler(monkeypatch, width):
    for limit in ("_MANY", "_MANY_TO_ROUND", "_MANY_TO_SELECT"):
        monkeypatch.setattr(f"protofleet.kernels.codecs.{limit}", 0)
    values = normal(_LARGE)
    starts = np.append(np.arange(0, _LARGE, width), _LARGE)
    results = []
    for switch, threads in (("1", 1), ("1", 2), ("1", 3), ("0", 1), ("0", 2)):
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        monkeypatch.setattr("protofleet.kernels.native.pool._Setting.threads", threads)
        codes, scales = int8_encode(values, starts, seed=7)
        near, _ = int8_encode(values, starts, rounding="nearest")
        decoded = int8_decode(codes, scales, starts)
        residual = normal(_LARGE, 1).copy()
        sparse = topk_encode(values, residual, 3000)
        planes = shuffle_encode(values)
        halves = fp16_encode(values)
        results.append((codes, scales, near, decoded, residual, *sparse, planes, halves))
        np.testing.assert_array_equal(shuffle_decode(planes, "f4"), values)
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(bits(mine), bits(theirs))


@examples
@given(values=buffers, share=st.floats(0, 1), seed=st.integers(0, 99))
def test_topk_takes_the_largest_and_keeps_the_rest(values, share, seed):
    values, k = values / np.float32(2), round(share * values.size)
    residual = np.round(normal(values.size, seed) * 2)
    sums = values + residual
    left = residual.copy()
    values.flags.writeable = False
    indices, sent = topk_encode(values, left, k)
    assert (indices.dtype, sent.dtype) == (np.uint32, np.float32)
    np.testing.assert_array_equal(indices, oracle.topk(sums, k))
    np.testing.assert_array_equal(sent, sums[indices])
    np.testing.assert_array_equal(topk_decode(indices, sent, sums.size) + left, sums)
    assert not left[indices].any()


@pytest.mark.jit
@pytest.mark.parametrize("kind", ["normal", "ties", "one value", "mostly zero", "misleading"])
@pytest.mark.parametrize("k", [0, 1, 700, 60_000, _LARGE])
def test_topk_is_exact_whatever_the_sample_says(kind, k):
    delta = {
        "normal": normal(_LARGE),
        "ties": np.round(normal(_LARGE)),
        "one value": np.full(_LARGE, -2, np.float32),
        "mostly zero": np.where(np.arange(_LARGE) % 997, 0, normal(_LARGE)),
        "misleading": np.where(np.arange(_LARGE) % (_LARGE >> 13), 1, 9) + normal(_LARGE),
    }[kind].astype(np.float32)
    residual = np.zeros(_LARGE, np.float32)
    indices, sent = topk_encode(delta, residual, k)
    np.testing.assert_array_equal(indices, oracle.topk(delta, k))
    np.testing.assert_array_equal(topk_decode(indices, sent, _LARGE) + residual, delta)


def test_what_is_not_sent_is_sent_later():
    """Three updates that send one entry each: nothing is lost."""
    delta, residual = np.array([3, -2, 1], np.float32), np.zeros(3, np.float32)
    sent = [topk_encode(delta, residual, 1) for _ in range(3)]
    assert [int(indices[0]) for indices, _ in sent] == [0, 1, 0]
    assert [float(values[0]) for _, values in sent] == [3, -4, 6]
    assert residual.tolist() == [0, -2, 3]


@examples
@given(
    data=st.data(),
    dtype=st.sampled_from(["u1", "u2", "f2", "u4", "f4", "i8", "f8", "c16"]),
    size=st.integers(0, 90),
)
def test_byte_planes_are_the_transposed_bytes(data, dtype, size):
    width = np.dtype(dtype).itemsize
    raw = data.draw(st.binary(min_size=size * width, max_size=size * width))
    items = np.frombuffer(raw, dtype)
    planes = shuffle_encode(items)
    np.testing.assert_array_equal(planes, oracle.shuffle(items))
    assert shuffle_decode(planes, dtype).tobytes() == raw


def test_unaligned_and_strided_inputs_are_accepted():
    values = normal(9)
    raw = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:].view(np.float32)
    np.testing.assert_array_equal(shuffle_encode(raw), shuffle_encode(values))
    np.testing.assert_array_equal(fp16_encode(raw), fp16_encode(values))
    np.testing.assert_array_equal(fp16_encode(values[::2]), fp16_encode(values[::2].copy()))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_named(wrong):
    values = normal(100).copy()
    values[70] = wrong
    residual = np.zeros(100, np.float32)
    place = rf"expected finite numbers, got -?{abs(wrong)} at \(70,\)"
    for name, call in {
        "fp16": lambda: fp16_encode(values),
        "int8": lambda: int8_encode(values, np.array([0, 50, 100])),
        "delta": lambda: topk_encode(values, residual, 5),
        "residual": lambda: topk_encode(residual, values, 0),
        "fp16 codes": lambda: fp16_decode(values.astype(np.float16)),
        "top-k values": lambda: topk_decode(np.arange(100, dtype=np.uint32), values, 100),
    }.items():
        with pytest.raises(InputError, match=f"^{name}: {place}"):
            call()
    assert not residual.any()


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_refused_sum_leaves_the_residual_as_it_was():
    delta, residual = np.full(70, _HUGE, np.float32), np.full(70, _HUGE, np.float32)
    with pytest.raises(InputError, match=r"delta \+ residual: expected finite numbers, got inf"):
        topk_encode(delta, residual, 3)
    assert (residual == _HUGE).all()


def test_a_buffer_of_another_shape_or_dtype_is_named():
    values, starts = normal(6), np.array([0, 6])
    for name, call in {
        "fp16": lambda: fp16_encode(values.astype(np.float64)),
        "int8": lambda: int8_encode(values.reshape(2, 3), starts),
        "fp16 codes": lambda: fp16_decode(values),
        "int8 codes": lambda: int8_decode(values, values[:1], starts),
        "int8 scales": lambda: int8_decode(np.zeros(6, np.int8), starts, starts),
        "segments": lambda: int8_encode(values, starts.astype(np.int32)),
        "delta": lambda: topk_encode(values.reshape(2, 3), np.zeros(6, np.float32), 1),
        "residual": lambda: topk_encode(values, values, 1),
        "top-k indices": lambda: topk_decode(starts, values[:2], 6),
        "top-k values": lambda: topk_decode(np.arange(2, dtype=np.uint32), starts, 6),
        "byte planes": lambda: shuffle_decode(values, "f4"),
    }.items():
        with pytest.raises(InputError, match=f"^{name}: expected"):
            call()


@pytest.mark.parametrize(
    "starts", [[], [0], [0, 5], [1, 6], [0, 4, 3, 6], [0, 7, 6], [0, -1, 6], [0, 6, 6, 7]]
)
def test_boundaries_that_do_not_fit_are_refused(starts):
    starts = np.array(starts, np.int64)
    scales = np.ones(max(0, starts.size - 1), np.float32)
    with pytest.raises(InputError, match="segments: expected boundaries"):
        int8_encode(normal(6), starts)
    with pytest.raises(InputError, match="segments: expected boundaries"):
        int8_decode(np.zeros(6, np.int8), scales, starts)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, _HUGE, 2.7e36])
def test_scales_that_no_encoder_writes_are_refused(scale):
    with pytest.raises(InputError, match=r"int8 scales: expected 0 to .* at 1"):
        int8_decode(np.ones(4, np.int8), np.array([1, scale], np.float32), np.array([0, 2, 4]))


def test_hostile_8_bit_codes_are_refused():
    codes, starts = np.array([1, -128, 0], np.int8), np.array([0, 3])
    with pytest.raises(InputError, match="int8 codes: expected -127 to 127, got -128 at 1"):
        int8_decode(codes, np.ones(1, np.float32), starts)
    with pytest.raises(InputError, match="int8 scales: expected 1, got 2"):
        int8_decode(codes[:1], np.ones(2, np.float32), np.array([0, 1]))


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 0], "larger than the one before"),
        ([3, 1], "larger than the one before"),
        ([1, 5], "expected below 5, got 5"),
        ([1, 2**32 - 1], "expected below 5"),
        ([1], "values: expected 1, got 2"),
    ],
)
def test_hostile_indices_are_refused(indices, message):
    with pytest.raises(InputError, match=message):
        topk_decode(np.array(indices, np.uint32), np.ones(2, np.float32), 5)


def test_settings_out_of_range_are_refused():
    values, starts = normal(6), np.array([0, 6])
    for seed in (-1, 2**64):
        with pytest.raises(InputError, match="int8: expected a seed from 0 to 2"):
            int8_encode(values, starts, seed=seed)
    with pytest.raises(InputError, match="int8: expected stochastic or nearest rounding, got 'up'"):
        int8_encode(values, starts, rounding="up")
    for k in (-1, 7):
        with pytest.raises(InputError, match="top-k: expected k from 0 to 6, got"):
            topk_encode(values, np.zeros(6, np.float32), k)
    with pytest.raises(InputError, match="byte planes: expected a multiple of 4 bytes, got 6"):
        shuffle_decode(np.zeros(6, np.uint8), np.float32)
    with pytest.raises(InputError, match="byte planes: expected a dtype of numbers, got object"):
        shuffle_decode(np.zeros(8, np.uint8), object)


def test_a_seed_may_be_numpy_s():
    x, starts = np.linspace(-1, 1, 50, dtype=np.float32), np.array([0, 50])
    codes, _ = int8_encode(x, starts, seed=2**63 + 5)
    np.testing.assert_array_equal(int8_encode(x, starts, seed=np.uint64(2**63 + 5))[0], codes)
