from __future__ import annotations

import json

import pytest
from attacks.hostile import assert_refused

_TEXTS = {
    "no-json": b"\x80\x04not json",
    "list": b"[1]",
    "number": b"1",
    "empty": b"",
    "no-version": b"{}",
    "bool-version": b'{"format": true}',
    "text-version": b'{"format": "1"}',
    "deep": b"[" * 100_000,
    "long-number": b'{"format": ' + b"9" * 100_000 + b"}",
    "nan": b'{"format": 1, "x": NaN}',
    "infinity": b'{"format": 1, "x": 1e999}',
    "repeated-key": b'{"format": 1, "format": 1}',
    "surrogate": b'{"format": 1, "name": "\\ud800"}',
}


@pytest.mark.parametrize("text", _TEXTS.values(), ids=_TEXTS)
def test_a_manifest_that_is_not_strict_json_is_refused(forge, text):
    assert_refused("manifest", *forge.both(forge.content(text)))


@pytest.mark.parametrize(
    "field",
    [
        *("name", "created", "layout_hash", "params", "state", "programs"),
        *("preprocessing", "classes", "strategy", "provenance", "files"),
    ],
)
def test_a_missing_field_is_refused_by_name(forge, field):
    del forge.manifest[field]
    assert_refused("manifest", *forge.both(), match=field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1),
        ("sequence", -1),
        ("sequence", 2**53),
        ("sequence", 1.5),
        ("replaces_up_to", -1),
        ("replaces_up_to", 2**53),
        ("name", "two\nlines"),
        ("name", "x" * 1025),
        ("created", "yesterday"),
        ("classes", []),
        ("classes", ["a", "a", "b"]),
        ("classes", ["\x1b[2J"]),
        ("targets", ["a"]),
        ("targets", ["\x1b[2J"]),
        ("task", "regression"),
        ("task", "ranking"),
        ("task", 1),
        ("provenance", {"a": 1}),
        ("provenance", {"a": "\x1b]0;title\x07"}),
        ("files", {"params.safetensors": {"bytes": "180", "sha256": "0"}}),
    ],
)
def test_a_wrong_value_is_refused(forge, field, value):
    """Control characters among them: the manifest's texts end up on a terminal."""
    forge.manifest[field] = value
    assert_refused("manifest", *forge.both())


@pytest.mark.parametrize("targets", [[], ["a", "a", "b"], ["\x1b[2J"], ["a"] * 10_001])
def test_targets_of_a_regression_are_named_once_each(forge, targets):
    forge.manifest |= {"task": "regression", "classes": [], "targets": targets}
    assert_refused("manifest", *forge.both())


def test_a_regression_with_classes_is_refused(forge):
    forge.manifest |= {"task": "multilabel", "targets": ["a", "b", "c"]}
    assert_refused("manifest", *forge.both(), match="task multilabel has no classes")


def test_a_repeated_key_deep_inside_is_refused(forge):
    """Another reader might take the other of the two."""
    text = json.dumps(forge.manifest).replace('"bytes": ', '"bytes": 1, "bytes": ', 1)
    assert_refused("manifest", *forge.both(forge.content(text.encode())))
