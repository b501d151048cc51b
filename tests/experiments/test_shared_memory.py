"""Memory that processes share, and that nobody has to clean up."""

from __future__ import annotations

import os

import pytest

from protofleet.experiments.shared_memory import SharedMemory


@pytest.fixture
def pair():
    """The same two files, as two processes see them."""
    first = SharedMemory.create(2)
    second = SharedMemory([os.dup(one) for one in first.descriptors], 1)
    yield first, second
    first.close()
    second.close()


def test_what_one_process_writes_another_reads(pair):
    first, second = pair
    spans = [first.write([b"ab", memoryview(b"cde")]), second.write([b"x" * 5000])]
    assert [bytes(second.read(spans[0])), bytes(first.read(spans[1]))] == [b"abcde", b"x" * 5000]
    with pytest.raises(TypeError, match="read-only"):
        first.read(spans[0])[0] = 1


def test_content_that_fits_takes_the_place_of_the_old_one_whoever_added_it(pair):
    first, second = pair
    old = first.write([b"a" * 4000])
    new = second.write([b"b" * 4100], old)
    assert new[:2] == old[:2]
    assert bytes(first.read(new)) == b"b" * 4100


def test_content_that_is_too_long_goes_behind_all_that_its_writer_has_added(pair):
    first, second = pair
    old, other = first.write([b"a" * 100]), first.write([b"c" * 100])
    new = second.write([b"b" * 9000], old)
    assert new.file != old.file
    assert [bytes(first.read(one)) for one in (old, other)] == [b"a" * 100, b"c" * 100]


def test_empty_content_is_read_back(pair):
    assert bytes(pair[1].read(pair[0].write([]))) == b""


def test_cleared_memory_takes_none(pair):
    first, _ = pair
    first.write([b"a" * 1_000_000])
    taken = os.fstat(first.descriptors[0]).st_blocks
    first.clear()
    assert os.fstat(first.descriptors[0]).st_blocks == 0 < taken


def test_the_files_have_no_name(pair):
    """So nothing is left of them when their processes are gone."""
    assert all(os.fstat(one).st_nlink == 0 for one in pair[0].descriptors)
