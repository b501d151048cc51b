import gzip

import numpy as np
import pytest

from protofleet.datasets import catalogue
from protofleet.datasets.agnews import agnews_pool, cleaned, encode, tokens, word_numbers
from protofleet.errors import InputError, MissingDataError


@pytest.mark.data
def test_published_test_part_is_read(data_root):
    """7 600 texts, 1 900 of each of four classes; the vocabulary is theirs."""
    pool = catalogue.load("agnews", data_root, {"parts": "test"})
    assert pool.x.shape == (7600, 200)
    assert np.bincount(pool.y).tolist() == [1900] * 4
    assert pool.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert pool.y[:4].tolist() == [2, 3, 3, 3]
    assert pool.is_test is None
    assert np.array_equal(pool.x, np.rint(pool.x))
    words = len(np.unique(pool.x))
    assert pool.x.max() == words - 1


@pytest.mark.data
def test_a_small_vocabulary_keeps_the_most_frequent_words(data_root):
    """All other words become 0."""
    whole = agnews_pool(data_root, parts="test")
    small = agnews_pool(data_root, parts="test", words=1000, length=50, limit=300)
    assert np.bincount(small.y).tolist() == [300] * 4
    assert small.x.max() == 999
    rows = np.concatenate([np.flatnonzero(whole.y == label)[:300] for label in range(4)])
    expected = whole.x[np.sort(rows), :50]
    assert np.array_equal(small.x, np.where(expected < 1000, expected, 0))


@pytest.mark.data
def test_cleaning_leaves_no_quirk_of_the_published_file(data_root):
    path = data_root / "agnews" / "test.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    for quirk in (" #39;", " #36;", "\\", "&lt;"):
        assert quirk in text
        assert quirk not in cleaned(text)


def test_quirks_are_mended():
    text = r"A second\team pays  #36;10 million for Turner #39;s &lt;b&gt;ship&lt;/b&gt; \$5"
    assert cleaned(text) == "A second team pays $10 million for Turner's  ship   $5"


def test_tokens_are_lower_case_words_and_marks():
    text = 'Fears for T N "pension" (again): it\'s over; really?<br />Yes, now!'
    words = "fears for t n pension ( again ) it ' s over really ? yes , now !"
    assert " ".join(tokens(text)) == words


def test_numbers_follow_frequency_then_the_alphabet():
    numbers = word_numbers([["b", "a", "c"], ["c", "d"]], None)
    assert numbers == {"c": 1, "a": 2, "b": 3, "d": 4}
    assert word_numbers([["b", "a", "c"], ["c", "d"]], 3) == {"c": 1, "a": 2}


def test_texts_are_cut_or_filled_with_zero():
    x = encode([["a", "x", "b"], ["b"], []], {"a": 1, "b": 2}, 2)
    assert x.tolist() == [[1, 0], [2, 0], [0, 0]]
    assert x.dtype == np.float32


_TRAIN = '"3","Fears","for ""T N"""\n"1","a","b\nc"\n'
_TEST = '"2","other","words a"\n'


def _write(root, *, train=_TRAIN, test=_TEST, classes="World\nSports\nBusiness\nSci/Tech\n"):
    (root / "agnews").mkdir()
    if train is not None:
        (root / "agnews" / "train.csv").write_text(train)
    (root / "agnews" / "test.csv.gz").write_bytes(gzip.compress(test.encode()))
    (root / "agnews" / "classes.txt").write_text(classes)


def test_both_parts_plain_or_gzipped_with_the_train_parts_words(tmp_path):
    """Words that only the test part has are unknown, unless the vocabulary is that of all."""
    _write(tmp_path)
    pool = agnews_pool(tmp_path, length=4)
    assert pool.y.tolist() == [2, 0, 1]
    assert pool.is_test.tolist() == [False, False, True]
    known = {word: n for n, word in enumerate(["a", "b", "c", "fears", "for", "n", "t"], start=1)}
    assert (
        pool.x.tolist()
        == encode(
            [["fears", "for", "t", "n"], ["a", "b", "c"], ["other", "words", "a"]], known, 4
        ).tolist()
    )
    assert pool.x[2].tolist() == [0, 0, 1, 0]
    assert (agnews_pool(tmp_path, length=4, vocabulary="all").x[2, :3] > 0).all()


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"test": '"5","a","b"\n'}, {}, r"test\.csv\.gz', record 1: expected a label 1…4"),
        ({"train": '"1","a","b"\n"1","a"\n'}, {}, "record 2: .* got 2 fields"),
        ({"classes": "World\n"}, {}, "expected four names, got 1"),
        ({}, {"parts": "train"}, "expected parts 'both' or 'test'"),
        ({}, {"vocabulary": "x"}, "vocabulary 'train' or 'all'"),
        ({}, {"length": 0}, "option 'length'"),
        ({}, {"words": 1}, "option 'words'"),
        ({}, {"limit": 0}, "option 'limit'"),
    ],
)
def test_wrong_files_and_options_are_refused(tmp_path, files, options, message):
    _write(tmp_path, **files)
    with pytest.raises(InputError, match=message):
        agnews_pool(tmp_path, **options)


def test_a_broken_gzip_file_is_refused(tmp_path):
    _write(tmp_path)
    (tmp_path / "agnews" / "test.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="not a readable file"):
        agnews_pool(tmp_path)


def test_without_the_train_part_the_message_names_the_way_out(tmp_path):
    _write(tmp_path, train=None)
    with pytest.raises(MissingDataError, match=r"'train\.csv' .*; or set parts = 'test'"):
        agnews_pool(tmp_path)
    assert len(agnews_pool(tmp_path, parts="test").y) == 1
