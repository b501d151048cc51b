"""Hostile files for the browser's readers: ``hostile_files.py FOLDER`` writes them.

It runs the tests of ``tests/attacks`` (and those of chunks and codecs) and keeps what they hand to
the readers of this package, each with the rule that refused it, and in which words. ``cases.json``
lists them.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from altered_bundles import altered, refusal
from attacks import hostile
from tiny_bundle import tiny_bundle

from protofleet.bundle import onnx_files
from protofleet.errors import RefusedError
from protofleet.tensors import blobs, strict_json
from protofleet.wire import codecs
from protofleet.wire.transfers import chunks

_TESTS = Path(__file__).resolve().parents[1]
_OF_FILES = [
    *("blob_bool", "blob_dtype", "blob_header", "blob_name", "blob_offsets", "blob_shape"),
    *("blob_size", "codec_claims", "container", "file_count", "finite", "large_header", "layout"),
    *("manifest", "missing_file", "onnx", "path", "port", "preprocessing", "sha256"),
    *("signature", "size", "surplus_file", "truncated", "unsigned", "untrusted", "version"),
]
_HEADERS = "attacks/test_large_header.py"
_LEFT_OUT = [
    # Python's own stack decides between two rules.
    "attacks/test_large_header.py::test_nesting_as_deep_as_the_interpreter_goes_is_refused_by_name",
    # They take long and are refused nothing.
    "wire/test_codecs.py::test_what_is_read_is_within_the_codecs_bounds",
    "wire/test_codecs.py::test_in_the_long_run_nothing_of_an_update_is_lost",
    "wire/test_codecs.py::test_what_coding_loses_of_an_increment_comes_with_the_next",
]
_ALTERED = 500
_OF_A_PATH = re.compile(r"^'[^']*\.pfb': ")
"""Which bundle it is; a browser knows of one."""
_PASSED_OVER = 1 << 28
"""Files from this size on are sparse: only their size is written down."""


class Recorder:
    """Keeps files that readers refuse, by which rule and in which words."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = itertools.count()
        self.cases: list[dict[str, Any]] = []
        self._inside = False

    def bundle(self, refusal: RefusedError | None, path: Path, **more: Any) -> None:
        """A single-file bundle; None: it is a good one."""
        size = path.stat().st_size
        file = None if size >= _PASSED_OVER else self._file(path.read_bytes())
        self._add("bundle", refusal, file=file, size=size, **more)

    def assert_refused(self, original: Callable[..., None]) -> Callable[..., None]:
        """``hostile.assert_refused`` that also keeps its single files."""

        @functools.wraps(original)
        def wrapped(rule: str, *paths: Path, match: str | None = None) -> None:
            with self._outermost():
                original(rule, *paths, match=match)
                for path in paths:
                    if path.is_file():
                        self.bundle(refusal(path), path, max_fields=onnx_files.MAX_FIELDS)

        return wrapped

    def reader(
        self, original: Callable[..., Any], kind: str, about: Callable[..., dict[str, Any]]
    ) -> Callable[..., Any]:
        """A reader of bytes that also keeps what it refuses, unless another reader called it."""

        @functools.wraps(original)
        def wrapped(data: bytes, *args: Any, **options: Any) -> Any:
            inside = self._inside
            with self._outermost():
                try:
                    return original(data, *args, **options)
                except RefusedError as error:
                    if not inside:
                        more = about(*args, **options)
                        self._add(kind, error, file=self._file(data), size=len(data), **more)
                    raise

        return wrapped

    def of_codec(
        self, baseline: Any, coding: codecs.Coding, *, max_bytes: int, check: Any = None
    ) -> dict[str, Any]:
        """What a coded blob is read with."""
        known = {n: v for n, v in baseline.items() if v.dtype == np.float32}
        forms = getattr(check, "__self__", None)
        return {
            "codec": coding.codec,
            "raw_bytes": coding.raw_bytes,
            "max_bytes": max_bytes,
            "baseline": self._file(blobs.encode(known)),
            "required": None
            if forms is None
            else {name: list(form.shape) for name, form in forms.required.items()},
        }

    def _outermost(self) -> _Flag:
        return _Flag(self)

    def _file(self, data: bytes) -> str:
        name = f"{next(self._names)}.bin"
        (self._folder / name).write_bytes(data)
        return name

    def _add(self, kind: str, refusal: RefusedError | None, **more: Any) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "a good one").removesuffix(" (call)")
        rule, says = (refusal.rule, _OF_A_PATH.sub("", str(refusal))) if refusal else (None, "")
        self.cases.append({"kind": kind, "test": test, "rule": rule, "says": says, **more})


class _Flag:
    """Whether a reader is at work already; what it calls in turn is not kept."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._before = recorder, recorder._inside

    def __enter__(self) -> None:
        self._recorder._inside = True

    def __exit__(self, *_: object) -> None:
        self._recorder._inside = self._before


def record(folder: Path) -> Recorder:
    """Run the tests with every reader watched; their modules are imported only after this began."""
    folder.mkdir(parents=True)
    recorder = Recorder(folder)
    blobs_about = lambda *_, max_bytes: {"max_bytes": max_bytes}  # noqa: E731
    hostile.assert_refused = recorder.assert_refused(hostile.assert_refused)
    blobs.decode = recorder.reader(blobs.decode, "blob", blobs_about)
    codecs.decode = recorder.reader(codecs.decode, "codec", recorder.of_codec)
    chunks.parse = recorder.reader(chunks.parse, "chunk", dict)
    strict_json.loads = recorder.reader(strict_json.loads, "json", lambda **_: {})
    paths = [str(_TESTS / "attacks" / f"test_{name}.py") for name in _OF_FILES]
    paths += [str(_TESTS / "wire" / f"test_{name}.py") for name in ("chunks", "codecs")]
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--hypothesis-seed=0",
        "--rootdir",
        str(_TESTS.parent),
    ]
    options += [f"--deselect=tests/{one}" for one in _LEFT_OUT]
    status = pytest.main([*options, *paths])
    if status != 0:
        raise SystemExit(status)
    good = folder / "good.pfb"
    recorder.bundle(None, tiny_bundle(good, hostile.KEY))
    for path in altered(folder / "altered", _ALTERED):
        recorder.bundle(refusal(path), path)
    return recorder


def main(folder: Path) -> None:
    """Write everything below ``folder``, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    recorder = record(folder)
    table = {"signer": hostile.PUBLIC.hex(), "cases": recorder.cases}
    (folder / "cases.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
