"""AG News: 127 600 titles and descriptions of news in four classes, as token numbers.

X. Zhang, J. Zhao, Y. LeCun, "Character-level Convolutional Networks for Text Classification", NIPS
2015. Read from the published ``train.csv`` and ``test.csv``, plain or gzipped.
"""

from __future__ import annotations

import csv
import gzip
import html
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._images import first_of_each
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

_ENTITY = re.compile(r" ((?:#\d+|quot|amp|lt|gt|hellip);)")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_BLANK = re.compile(r"<br />|[;:]")
_ALONE = re.compile(r"(['.,()!?])")


def agnews_pool(  # noqa: PLR0913 - options go by keyword
    root: Path,
    *,
    parts: str = "both",
    length: int = 200,
    words: int | None = None,
    vocabulary: str = "train",
    clean: bool = True,
    limit: int | None = None,
) -> Pool:
    """Read ``agnews/{train,test}.csv`` or ``.csv.gz`` and ``agnews/classes.txt``.

    Args:
        root: folder that holds ``agnews/``.
        parts: ``"both"``; or ``"test"`` for the 7 600 texts of the test part alone, which are then
            no test part and give the vocabulary.
        length: tokens per text; longer ones are cut, shorter ones filled with 0.
        words: size of the vocabulary with the number 0, the most frequent words; None: all.
        vocabulary: ``"train"``: words of the training part; ``"all"``: of all texts, as FedALA's
            code does.
        clean: mend what ``cleaned`` mends; FedALA's code does not.
        limit: at most so many texts of each class in each part, the first; None: all. The
            vocabulary is still that of all texts.

    Returns:
        ``x (n, length)``: whole numbers as float32; see ``encode``.

    Raises:
        MissingDataError: a file is absent; the message says what to put where.
        InputError: a file is not as published or an option is wrong.
    """
    if parts not in ("both", "test") or vocabulary not in ("train", "all"):
        raise InputError(
            "AG News: expected parts 'both' or 'test' and vocabulary 'train' or 'all', got "
            f"'{parts}' and '{vocabulary}'"
        )
    folder = root / "agnews"
    read = [_read(folder, part) for part in (("train", "test") if parts == "both" else ("test",))]
    labels = np.array([label for rows in read for label, _ in rows], np.int64)
    texts = [tokens(cleaned(text) if clean else text) for rows in read for _, text in rows]
    known = texts[: len(read[0])] if vocabulary == "train" else texts
    numbers = word_numbers(known, words)
    is_test = np.arange(len(labels)) >= len(read[0])
    chosen = first_of_each(labels, is_test, limit)
    return Pool(
        x=encode([texts[row] for row in chosen], numbers, length),
        y=labels[chosen],
        classes=_classes(folder),
        is_test=is_test[chosen] if parts == "both" else None,
    )


def cleaned(text: str) -> str:
    r"""Mend the file's quirks: broken HTML entities (`` #39;``), tags, backslashes for line ends.

    A broken entity's leading blank is one of its own: ``Turner #39;s`` is ``Turner's``.
    """
    mended = html.unescape(_ENTITY.sub(r"&\1", text))
    return _TAG.sub(" ", mended.replace("\\", " "))


def tokens(text: str) -> list[str]:
    """Lower-case words; ``. , ' ( ) ! ?`` are words; colons, semicolons and quotes are dropped."""
    plain = _BLANK.sub(" ", text.lower().replace('"', ""))
    return _ALONE.sub(r" \1 ", plain).split()


def word_numbers(texts: Iterable[Sequence[str]], words: int | None) -> dict[str, int]:
    """Numbers from 1 for the most frequent words; equally frequent ones in alphabetical order.

    Args:
        texts: tokens of each text.
        words: size of the vocabulary with the number 0; None: all words.

    Raises:
        InputError: a size below 2.
    """
    if words is not None and words < 2:
        raise InputError(f"option 'words': expected at least 2, got {words}")
    counts = Counter(word for text in texts for word in text)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    kept = ordered if words is None else ordered[: words - 1]
    return {word: number for number, word in enumerate(kept, start=1)}


def encode(
    texts: Sequence[Sequence[str]], numbers: Mapping[str, int], length: int
) -> NDArray[np.float32]:
    """Token numbers ``(n, length) float32``; 0 fills up and stands for unknown words (FedALA).

    Raises:
        InputError: a length below 1.
    """
    if length < 1:
        raise InputError(f"option 'length': expected at least 1, got {length}")
    x = np.zeros((len(texts), length), np.float32)
    for row, text in zip(x, texts, strict=True):
        found = [numbers.get(word, 0) for word in text[:length]]
        row[: len(found)] = found
    return x


def _read(folder: Path, part: str) -> list[tuple[int, str]]:
    """Labels from 0 and texts: title, blank, description."""
    path = folder / f"{part}.csv"
    if not path.is_file():
        path = folder / f"{part}.csv.gz"
    if not path.is_file():
        hint = "; or set parts = 'test' to use the test part alone" if part == "train" else ""
        raise MissingDataError(
            f"AG News: put the published '{part}.csv' (or '{part}.csv.gz') in '{folder}'{hint}"
        )
    content = path.read_bytes()
    try:
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"AG News '{path}': not a readable file ({error})") from error
    rows = []
    for number, fields in enumerate(csv.reader(io.StringIO(text, newline="")), start=1):
        if len(fields) != 3 or fields[0] not in ("1", "2", "3", "4"):
            raise InputError(
                f"AG News '{path}', record {number}: expected a label 1…4, title and description, "
                f"got {len(fields)} fields"
            )
        rows.append((int(fields[0]) - 1, f"{fields[1]} {fields[2]}"))
    return rows


def _classes(folder: Path) -> tuple[str, ...]:
    path = folder / "classes.txt"
    if not path.is_file():
        raise MissingDataError(f"AG News: put the published 'classes.txt' in '{folder}'")
    names = tuple(path.read_text(encoding="utf-8").splitlines())
    if len(names) != 4:
        raise InputError(f"AG News '{path}': expected four names, got {len(names)}")
    return names
