"""Every decoder of bytes from outside refuses what it cannot read, and takes bounded memory."""

from __future__ import annotations

import random

import pytest
from fuzz.mutations import long_inputs, mutate
from fuzz.targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_LONG_BYTES = 60_000
_each = pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)


@_each
def test_what_the_product_writes_is_taken(target):
    """Else mutations of it would show nothing."""
    assert target.examples
    for data in target.examples:
        target.decode(data)


@_each
def test_committed_inputs_are_taken_or_refused(target):
    """The fuzzer's corpus, and what once ended a decoder otherwise than by a refusal."""
    for data in target.kept():
        _check(target, data)


@_each
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), noise=st.binary(max_size=60))
def test_altered_inputs_and_noise_are_taken_or_refused(target, seed, noise):
    known = target.examples + target.kept()
    draw = random.Random(seed)
    for data in (noise, mutate(draw.choice(known), known, draw)):
        _check(target, data)


@_each
def test_long_inputs_take_memory_in_proportion(target):
    for data in long_inputs(target.examples[0], _LONG_BYTES):
        _check(target, data)


def _check(target, data):
    peak = target.peak_bytes(data)
    assert peak <= target.allowed_bytes(data), f"{peak} bytes for {len(data)}: {data[:80]!r}"
