"""Good bundles and what Python reads from them: ``golden_bundles.py FOLDER`` writes both.

``cases.json`` has the bundles, points in time and whether a manifest may have them, and blobs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from attacks.hostile import KEY, PUBLIC
from tiny_bundle import initial_params, tiny_bundle

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.manifest import (
    LayerDecl,
    Port,
    Preprocessing,
    TensorDecl,
)
from protofleet.tensors import Layout, blobs

_TIMES = (
    *("2026-01-31", "20260131", "2026-W05-6", "2026-W05", "2026W056", "2026-W53-1", "2020-W53"),
    *("2024-02-29", "2026-02-29", "2100-02-29", "2000-02-29", "0000-01-01", "0001-01-01"),
    *("2026-13-01", "2026-00-10", "2026-04-31", "2026-01-00", "2026-W00-1", "2026-W54-1"),
    *("2026-W05-0", "2026-W05-8", "2026-031", "2026-01", "2026", "", "yesterday", "26-01-31"),
)
_CLOCKS = (
    *("T12:00:00Z", " 12:00", "T12", "T1200", "T120000", "x12:00:00", "T24:00", "T23:59:60"),
    *("T12:60", "T12:00:00.5", "T12:00:00,123456789", "T12:00:00.", "T12:00+01:00", "T12:00-0130"),
    *("T12:00+01", "T12:00+24:00", "T12:00:00+23:59:59", "T", "T1", "T12:0"),
    *("T12:00:00ZZ", "T12:00:00+01:00Z", "T12:00:00-24", "T12:00:00+00:60", "T1200:00", "T12:0000"),
)


def written(folder: Path) -> dict[str, Any]:
    """All cases; files lie in ``folder``."""
    folder.mkdir(parents=True)
    tiny_bundle(folder / "tiny.pfb", KEY)
    _layered(folder / "layered.pfb", Bundle.open(folder / "tiny.pfb", trusted={PUBLIC}))
    return {
        "signer": PUBLIC.hex(),
        "bundles": [_read(folder / f"{name}.pfb") for name in ("tiny", "layered")],
        "times": {text: _is_time(text) for text in _times()},
        "blobs": list(_blobs(folder)),
    }


def _read(path: Path) -> dict[str, Any]:
    bundle = Bundle.open(path, trusted={PUBLIC})
    model = bundle.model()
    return {
        "file": path.name,
        "digest": bundle.digest,
        "manifest": msgspec.to_builtins(bundle.manifest),
        "params": model.params.buffer.tolist(),
        "state": model.buffers.buffer.tolist(),
        "features": model.features,
    }


def _layered(path: Path, tiny: Bundle) -> None:
    """With everything that a manifest may say beside what the tiny one does."""
    manifest = tiny.manifest
    features = manifest.programs["features"]
    hidden = Port(name="h", role="output", key="layers.v", dtype="float32", shape=("batch", 2))
    noise = Port(
        name="u",
        role="noise",
        key="u",
        dtype="float32",
        shape=("batch*8", 3),
        distribution="normal",
    )
    more = (TensorDecl(name="v.weight", shape=(2, 4)), TensorDecl(name="z.weight", shape=(3, 2, 5)))
    drawn = np.random.default_rng(3)
    params = {**initial_params()} | {
        decl.name: drawn.standard_normal(decl.shape).astype(np.float32) for decl in more
    }
    state = {"beta": np.float32(0.25).reshape(()), "mean": np.arange(4, dtype=np.float32)}
    declared = (*manifest.params, *more)
    programs = {
        **manifest.programs,
        "features": msgspec.structs.replace(
            features, outputs=(*features.outputs, hidden), inputs=(*features.inputs, noise)
        ),
        "7": manifest.programs["infer"],
    }
    changed = msgspec.structs.replace(
        manifest,
        name="größer \U0001f600",
        created="2026-02-28T23:59:59.5+01:00",
        params=declared,
        state=tuple(TensorDecl(name=name, shape=value.shape) for name, value in state.items()),
        layout_hash=_layout_hash(declared),
        programs=programs,
        preprocessing=Preprocessing(
            input_shape=(2, 4),
            rate_hz=50.0,
            window=2,
            hop=1,
            channels=("a", "b", "c", "d"),
            mean=(0.5, -1.0, 2.0, 3.5),
            std=(1.0, 2.0, 0.5, 1e-3),
        ),
        head=("w", "b"),
        layers=(LayerDecl(name="v"), LayerDecl(name="z", before="v")),
        sequence=2**53 - 1,
        replaces_up_to=7,
        provenance={"10": "ten", "2": "two", "__proto__": "x"},
    )
    files = {name: tiny.read(name) for name in manifest.files if name.endswith(".onnx")}
    files |= {"params.safetensors": blobs.encode(params), "state.safetensors": blobs.encode(state)}
    write_bundle(path, changed, files, KEY)


def _layout_hash(params: tuple[TensorDecl, ...]) -> str:
    return Layout.of({decl.name: decl.shape for decl in params}).hash


def _times() -> Iterator[str]:
    yield from _TIMES
    for day in ("2026-01-31", "20260131", "2026-W05-6"):
        yield from (day + clock for clock in _CLOCKS)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _blobs(folder: Path) -> Iterator[dict[str, Any]]:
    """A blob with every dtype, and one whose arrays are unaligned."""
    dtypes = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")
    tensors = {f"t{dtype}": np.arange(3).astype(dtype) for dtype in reversed(dtypes)}
    tensors |= {name: np.ones((2, 0, 3), np.float32) for name in ("\uff5e", "\U0001f600", 'é"\\')}
    about = {"\U0001f600": "a\n\x7f\x1f\u2028", "\uff5e": "", "a": '"\\/'}
    (folder / "all.bin").write_bytes(blobs.encode(tensors, about))
    header = json.dumps(
        {
            "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        }
    ).encode()
    data = len(header).to_bytes(8, "little") + header + b"\x07" + np.float32([1.5, -2]).tobytes()
    (folder / "unaligned.bin").write_bytes(data)
    yield {"file": "all.bin", "metadata": about, "names": sorted(tensors)}
    yield {"file": "unaligned.bin", "metadata": {}, "names": ["a", "b"]}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    table = written(place)
    (place / "cases.json").write_text(json.dumps(table, indent=1) + "\n")
