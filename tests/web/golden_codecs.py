"""What Python's codecs write and read, for the browser's: ``golden_codecs.py FOLDER`` writes it.

``cases.json`` lists updates and payloads, three in a row each: what was encoded, against what, what
it became before compression, what was sent, what the sender kept, and the raw blob that its
receiver decodes it to.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.tensors import Tensors, blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec

_CODECS = [Codec.of(name, keep=keep) for name in codecs.NAMES for keep in (0.1, 0.37)]
_ROUNDS = 3
_HALF, _TINY = 2.0**-25, 2.0**-140


def written(folder: Path) -> list[dict[str, Any]]:
    """All cases; files lie in ``folder``."""
    folder.mkdir(parents=True)
    found = []
    for index, codec in enumerate(_CODECS):
        for kind in ("update", "payload"):
            found += _rounds(folder, f"{kind}-{index}", codec, is_update=kind == "update")
    return found


def _rounds(folder: Path, name: str, codec: Codec, *, is_update: bool) -> list[dict[str, Any]]:
    rng = np.random.default_rng(len(name) + codec.compressed)
    baseline: Tensors = _drawn(rng)
    residual: Tensors | None = {} if is_update else None
    cases = []
    for number in range(_ROUNDS):
        tensors = _moved(baseline, rng)
        about = {"update": '{"é": "\U0001f600\\"\\n"}'} if is_update else {}
        reference = "" if number == 0 or is_update else "ab" * 32
        encoded = codecs.encode(
            tensors, baseline, codec, residual=residual, metadata=about, reference=reference
        )
        raw = zlib.decompress(encoded.blob) if encoded.codec.endswith("+zlib") else encoded.blob
        coding = encoded.coding(reference)
        decoded = codecs.to_raw(encoded.blob, baseline, coding, max_bytes=1 << 40)
        case = {
            "codec": encoded.codec,
            "keep": getattr(codec.tensors, "keep", 0.1),
            "metadata": about,
        }
        case |= {"reference": reference, "raw_bytes": encoded.raw_bytes, "update": is_update}
        contents = {
            "tensors": blobs.encode(tensors),
            "baseline": blobs.encode(baseline),
            "earlier": blobs.encode(residual or {}),
            "raw": raw,
            "blob": encoded.blob,
            "residual": blobs.encode(encoded.residual),
            "decoded": decoded,
        }
        for what, data in contents.items():
            case[what] = f"{name}-{number}-{what}"
            (folder / case[what]).write_bytes(data)
        cases.append(case)
        if is_update:
            residual = encoded.residual
        else:
            baseline = blobs.decode(decoded, max_bytes=1 << 40)[0]
    return cases


def _drawn(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    def normal(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    sizes = (1, 31, 32, 33, 255, 256, 257, 513)
    return {
        **{f"params/n{size}": normal(size) for size in sizes},
        "params/zeros": np.zeros(300, np.float32),
        "params/\uff5e\U0001f600": normal(7, 3, 4),
        "params/\U0001f600": normal(40, 1),
        'params/a"b\\c': normal(99),
        "params/wide": normal(600) * np.float32(10.0) ** rng.integers(-30, 30, 600),
        "params/ties": (rng.integers(-9, 9, 300) / 2).astype(np.float32),
        "params/tiny": normal(300, scale=_TINY),
        "params/half": normal(300, scale=_HALF),
        "params/large": normal(300, scale=1e37),
        "params/scalar": np.float32(3).reshape(()),
        "state/mean": normal(64),
        "change/grad": normal(300),
        "protos": normal(6, 20),
        "nothing": np.zeros((0, 50), np.float32),
        "labels": np.arange(99),
        "words": np.arange(40, dtype=np.uint16),
        "halves": np.arange(40).astype(np.float16),
        "doubles": rng.standard_normal(33),
        "mask": rng.random(70) > 0.5,
    }


def _moved(tensors: Tensors, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """The next round's: some as before, some with new shapes, one that is not finite."""
    moved = {name: value.copy() for name, value in tensors.items()}
    for name, value in moved.items():
        if value.dtype == np.float32 and not name.endswith(("zeros", "n33")):
            moved[name] = value + (rng.standard_normal(value.shape) * 0.01).astype(np.float32)
    moved["params/ties"] = tensors["params/ties"] + np.float32(0.5)
    moved["protos"] = rng.standard_normal((5, 20)).astype(np.float32)
    moved["params/endless"] = np.full(40, np.inf, np.float32)
    return dict(sorted(moved.items(), key=lambda entry: entry[0][::-1]))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    cases = written(place)
    (place / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
