"""Signed bundles whose manifests were altered at random: most are refused, some are good."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_bundles
from attacks.hostile import KEY, PUBLIC

from protofleet.bundle import Bundle
from protofleet.bundle.files import MANIFEST, SIGNATURE, archive
from protofleet.errors import RefusedError

_VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 2, 4, 1.0, 0.5, 1e39, 1e-50, 2**24, 2**28, 2**53, 2**60, 10**400),
    *("", "x", "batch", "batch*2", "w", "beta", "é", "a b", "\x1b", "x" * 1025, "2026-02-30"),
    *([], {}, [1], ["batch", 3], [4, 3], ["a"], [0], [[]], {"a": 1}),
    *("float32", "int64", "param", "noise", "normal", "int8", "regression", "multilabel"),
    *("logits", "features", "layers.v", "x", "y"),
]
_KEYS = ("new", "w", "7", "", "\u202e", "x" * 300)


def altered(folder: Path, count: int) -> Iterator[Path]:
    """Bundles, written below ``folder``."""
    golden_bundles.written(folder)
    good = Bundle.open(folder / "layered.pfb", trusted={PUBLIC})
    manifest = json.loads(good.source.read(MANIFEST, 1 << 22))
    files = {name: good.read(name) for name in manifest["files"]}
    places = [place for place in _places(manifest) if place]
    rng = random.Random(0)
    for number in range(count):
        changed = copy.deepcopy(manifest)
        for _ in range(rng.choice([1, 1, 1, 2])):
            _alter(changed, rng.choice(places), rng)
        text = json.dumps(changed, ensure_ascii=bool(number % 2)).encode()
        content = {MANIFEST: text, SIGNATURE: PUBLIC + KEY.sign(text), **files}
        path = folder / f"altered-{number}.pfb"
        path.write_bytes(b"".join(archive(content)))
        yield path


def refusal(path: Path) -> RefusedError | None:
    """Why a bundle is refused; None where it is not."""
    try:
        Bundle.open(path, trusted={PUBLIC})
    except RefusedError as error:
        return error
    return None


def _places(node: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value."""
    yield before
    plain = enumerate(node) if isinstance(node, list) else ()
    inner = node.items() if isinstance(node, dict) else plain
    for key, value in inner:
        yield from _places(value, (*before, key))


def _alter(manifest: Any, place: tuple[Any, ...], rng: random.Random) -> None:
    node, last = manifest, place[-1]
    try:
        for key in place[:-1]:
            node = node[key]
        value = node[last]
    except (KeyError, IndexError, TypeError):
        return  # an earlier change has taken it away
    kind = rng.randrange(5)
    if kind == 0:
        del node[last]
    elif kind == 1 and isinstance(node, list):
        node.insert(last, copy.deepcopy(value))
    elif kind == 2 and isinstance(node, dict):
        node[rng.choice(_KEYS)] = value
    elif kind == 3 and type(value) in {int, float}:
        node[last] = value + rng.choice([1, -1, 0.5, 0.0])
    else:
        node[last] = rng.choice(_VALUES)
