"""Writes what a federation of digits needs whose devices run different runtimes.

    python mixed_files.py FOLDER STRATEGY DEVICE...

``FOLDER`` gets ``bundle.pfb`` (the model of ``protofleet demo``, pretrained, with ONNX and TFLite
programs), ``signer.pem``, ``DEVICE.npz`` for Python devices, and the same examples as
``DEVICE.json`` for browsers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from protofleet.bundle import Bundle
from protofleet.bundle.keys import save_public_key
from protofleet.datasets.device_data import DeviceData, load_device_data
from protofleet.demo.commands import Step, export_arguments, pretrain_arguments, run_steps
from protofleet.demo.methods import network_of
from protofleet.demo.recipes import prepare_digits
from protofleet.demo.settings import DemoSettings

_SEED = 3


def main(folder: Path, strategy: str, names: list[str]) -> None:
    """Write them."""
    settings = DemoSettings(
        data="digits",
        data_root=None,
        strategy=strategy,
        devices=len(names),
        rounds=1,
        seed=_SEED,
        broker=None,
        sensors="playback",
    )
    prepared = prepare_digits(settings, folder)
    network, console = network_of(strategy), Console()
    for arguments in (
        pretrain_arguments(prepared, network, folder, _SEED),
        export_arguments(prepared, network, folder, [strategy]),
    ):
        run_steps([Step(arguments=arguments)], console)
    bundle = Bundle.open(folder / "bundle.pfb", any_signer=True)
    save_public_key(bytes.fromhex(bundle.signer), folder / "signer.pem")
    for name, device in zip(names, prepared.devices, strict=True):
        assert device.data is not None
        data = load_device_data(device.data)
        data.save(folder / f"{name}.npz")
        (folder / f"{name}.json").write_text(json.dumps(_parts(data)))


def _parts(data: DeviceData) -> list[dict[str, object]]:
    both = {"train": (data.x_train, data.y_train), "test": (data.x_test, data.y_test)}
    return [
        {"x": x.reshape(len(x), -1).tolist(), "shape": x.shape[1:], "y": y.tolist(), "part": part}
        for part, (x, y) in both.items()
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
