"""``python -m protofleet.firmware_sim.virtual_device SPEC.json``: one virtual device's process.

Everything after its sensor and its limits is the real edge code.
"""

from __future__ import annotations

import logging
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Manifest
from protofleet.datasets import DeviceData, load_device_data, load_pooled
from protofleet.edge.data.local_data import doubts
from protofleet.edge.join import JoinOptions, join
from protofleet.edge.learning.training import LocalData
from protofleet.errors import InputError, ProtofleetError
from protofleet.firmware_sim.fleet import DeviceSpec
from protofleet.firmware_sim.motion import Motion, load_motion, synthesise
from protofleet.firmware_sim.recordings import record_device_data

_FAILED = 1


def main(path: Path) -> int:
    """Run the device that the file describes; returns the process's exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    spec = msgspec.json.decode(path.read_bytes(), type=DeviceSpec, dec_hook=_to_path)
    if spec.profile.memory_mb:
        limit = spec.profile.memory_mb * 2**20
        # RLIMIT_DATA fails an allocation cleanly; RLIMIT_AS would also count mapped files.
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    trusted = {bytes.fromhex(key) for key in spec.trust}
    try:
        data = _local_data(spec, Bundle.open(spec.bundle, trusted=trusted).manifest)
        return join(
            JoinOptions(
                broker=spec.broker,
                federation=spec.federation,
                bundle=spec.bundle,
                store=spec.store,
                device_id=spec.device.id,
                threads=spec.profile.threads,
                backend=spec.profile.backend,
                trusted=trusted,
                keep_bundle=False,
                settings=spec.profile.join,
            ),
            data,
            _report,
        )
    except ProtofleetError as error:
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - the message is the whole story
        return _FAILED
    except MemoryError:
        logging.getLogger(__name__).error(  # noqa: TRY400 - where it ran out tells nothing
            "out of memory: expected to do with profile.memory_mb = %d; give it more",
            spec.profile.memory_mb,
        )
        return _FAILED


def _local_data(spec: DeviceSpec, manifest: Manifest) -> LocalData:
    pooled, tokens = spec.device.pooled, manifest.preprocessing.tokens is not None
    data = LocalData(
        own=_own_data(spec, manifest),
        pooled=None if pooled is None else load_pooled(pooled, tokens=tokens),
        later=tuple((n, load_device_data(path, tokens=tokens)) for n, path in spec.device.later),
    )
    for doubt in doubts(data, manifest.preprocessing):
        logging.getLogger(__name__).warning("%s", doubt)
    return data


def _own_data(spec: DeviceSpec, manifest: Manifest) -> DeviceData:
    if spec.device.data is not None:
        tokens = manifest.preprocessing.tokens is not None
        return load_device_data(spec.device.data, tokens=tokens)
    if manifest.task != "classification":
        raise InputError(
            f"device '{spec.device.id}': recorded motion is labelled with activities, the bundle's "
            f"task is {manifest.task}; give the device data of its own (device.data)"
        )
    motion = _motion(spec)
    if motion.labels.max() >= len(manifest.classes):
        raise InputError(
            f"device '{spec.device.id}': its motion has {motion.labels.max() + 1} activities, "
            f"the bundle has {len(manifest.classes)} classes"
        )
    return record_device_data(
        motion, spec.profile.imu, manifest.preprocessing, manifest.classes, spec.seed
    )


def _motion(spec: DeviceSpec) -> Motion:
    if spec.device.motion is not None:
        return load_motion(spec.device.motion)
    return synthesise(spec.device.synthesise_s, np.random.default_rng(spec.seed))


def _report(event: str, figures: dict[str, Any]) -> None:
    line = {"event": event, "time_s": time.time(), **figures}
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def _to_path(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(f"expected {kind.__name__}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
