"""What both languages must have in common, as Python has it: ``golden_shared.py FILE``."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from protofleet.strategies import DESCRIPTIONS
from protofleet.wire import messages
from protofleet.wire.codecs import NAMES
from protofleet.wire.topics import COORDINATOR, INVITED, PREFIX, Channel

_CONSTANTS = {
    "wire/messages": "MAX_MESSAGE_BYTES RECEIPT_DIGITS PROTOCOL_MINOR MOST_RATES MOST_CALIBRATING "
    "MOST_RECEIPTS",
    "wire/transfers/chunks": "HEADER_BYTES MAX_PACKET_BYTES RESERVED_BYTES MAX_PAYLOAD_BYTES "
    "MAX_DATA_BYTES MIN_DATA_BYTES MAX_CHUNKS",
    "wire/transfers/sender": "REPEAT_S REPEAT_MAX_S",
    "wire/transfers/inbound": "SILENCE_S FIRST_SILENCE_S SILENCE_MAX_S SILENT_ASKS_MAX "
    "START_WINDOW MIN_WINDOW",
    "wire/trust/session": "NONCE_BYTES OVERHEAD_BYTES",
    "wire/trust/identity": "SIGNATURE_BYTES",
    "wire/trust/enrolment": "SCHEME",
    "tensors/blobs": "MAX_TENSORS MAX_NAME_CHARS MAX_HEADER_BYTES MAX_DIMENSIONS",
    "bundle/bundle": "MAX_MANIFEST_BYTES",
    "bundle/manifest": "FORMAT_VERSION",
    "bundle/onnx_files": "MAX_FIELDS MAX_DEPTH",
    "bundle/files": "MANIFEST SIGNATURE MAX_BUNDLE_BYTES",
    "strategies/bounds": "MOST MOST_PASSES MOST_LR MOST_BATCH",
    "strategies/scores": "LARGEST_ERROR",
    "strategies/types": "TASK_LOSS",
    "strategies/common": "PARAMS BUFFERS CHANGE",
    "federation/outcomes/calibration": "WORST",
    "edge/learning/training": "EVALUATION_BATCH",
}
"""By module: constants that the browser's module has under the same names."""
RECORDS = (
    messages.Presence,
    messages.Announcement,
    messages.TransferOffer,
    messages.Task,
    messages.Need,
    messages.Receipt,
    messages.Heartbeat,
)


def facts() -> dict[str, Any]:
    """Constants, topics, codecs, strategies and the fields of every record."""
    return {
        "constants": {
            place: {name: _constant(place, name) for name in names.split()}
            for place, names in _CONSTANTS.items()
        },
        "topics": {
            "prefix": PREFIX,
            "coordinator": COORDINATOR,
            "invited": INVITED,
            "channels": {one.name: one.value for one in Channel},
        },
        "codecs": list(NAMES),
        "strategies": {
            name: {"tasks": list(one.tasks), "partial_work": one.partial_work}
            for name, one in DESCRIPTIONS.items()
        },
        "records": {one.__struct_config__.tag: _fields(one) for one in RECORDS},
    }


def _constant(place: str, name: str) -> Any:
    return getattr(import_module(f"protofleet.{place.replace('/', '.')}"), name)


def _fields(record: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Of each field its default, where it has one, and the words that it may be."""
    hints = get_type_hints(record)
    found = {}
    for field in msgspec.structs.fields(record):
        about: dict[str, Any] = {"required": field.required}
        if isinstance(field.default, bool | int | float | str | None):
            about["default"] = field.default
        words = [one for one in get_args(hints[field.name]) if isinstance(one, str)]
        if words:
            about["words"] = words
        found[field.encode_name] = about
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(facts(), indent=1) + "\n")
