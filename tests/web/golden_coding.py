"""Payloads that a coordinator sends, and what it reads of an update of the browser's.

``golden_coding.py FOLDER`` writes ``layered.pfb`` and the payloads of three rounds in every codec;
``golden_coding.py FOLDER read`` prints what it decodes of the updates that ``updates.json`` lists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import golden_bundles
import msgspec
import numpy as np
from attacks.hostile import PUBLIC

from protofleet.bundle import Bundle
from protofleet.federation import coding
from protofleet.strategies.common import network_tensors
from protofleet.strategies.types import TensorSchema, TensorSchemas
from protofleet.tensors import Model, blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec, Coding

_ROUNDS = 3
_LIMIT = 1 << 24


def _model(folder: Path) -> Model:
    return Bundle.open(folder / "layered.pfb", trusted={PUBLIC}).model()


def write(folder: Path) -> None:
    """The bundle, and payloads of which each refers to the one before."""
    golden_bundles.written(folder)
    model, cases = _model(folder), []
    for name in codecs.NAMES[1:]:
        earlier: dict[str, bytes] = {}
        reference, rng = "", np.random.default_rng(len(name))
        for number in range(_ROUNDS):
            payload = {
                key: value + rng.standard_normal(value.shape).astype(np.float32) / 10
                for key, value in network_tensors(model.network).items()
            }
            payload["protos"] = rng.standard_normal((3, 40)).astype(np.float32)
            known = blobs.decode(earlier[reference], max_bytes=_LIMIT)[0] if reference else {}
            baseline = coding.payload_baseline(model, known)
            coded = coding.encode_payload(payload, Codec.of(name), reference, baseline)
            file = f"{name}-{number}"
            (folder / file).write_bytes(coded.blob)
            (folder / f"{file}-raw").write_bytes(coded.raw)
            case = {"file": file, "raw_bytes": coded.coding.raw_bytes, "base": reference}
            cases.append({"codec": name, "reference": coded.reference, **case})
            earlier[coded.reference] = coded.raw
            reference = coded.reference
    shapes = {name: list(value.shape) for name, value in payload.items()}
    table = {"signer": PUBLIC.hex(), "shapes": shapes, "payloads": cases}
    (folder / "payloads.json").write_text(json.dumps(table, indent=1))


def read(folder: Path) -> list[dict[str, Any]]:
    """Each update's record, and its tensors as the raw blob that the coordinator keeps."""
    model = _model(folder)
    table = json.loads((folder / "payloads.json").read_text())
    forms = TensorSchemas(
        required={name: TensorSchema(tuple(shape)) for name, shape in table["shapes"].items()}
    )
    found = []
    for one in json.loads((folder / "updates.json").read_text()):
        payload, _ = blobs.decode((folder / one["payload"]).read_bytes(), max_bytes=_LIMIT)
        update = coding.decode_update(
            (folder / one["file"]).read_bytes(),
            Coding(codec=one["codec"], raw_bytes=one["raw_bytes"], reference=one["base"]),
            coding.update_baseline(model, payload),
            max_bytes=coding.largest_blob(forms),
            forms=forms,
        )
        (folder / f"{one['file']}-read").write_bytes(blobs.encode(update.update.tensors))
        found.append(msgspec.to_builtins(update.record))
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if sys.argv[2:] == ["read"]:
        sys.stdout.write(json.dumps(read(place)))
    else:
        write(place)
