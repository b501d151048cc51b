"""The small models that the federations train, and their devices' data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle.keys import save_public_key
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData

DEVICES = ("anna", "berta", "carla")
_CLASSES = ("sit", "walk", "run")
_EXAMPLES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A strategy, its schedule, and the model that it trains.

    Attributes:
        strategy: its name.
        buffered: whether its schedule is; else rounds wait for everybody.
        model: name of a registered model, and its settings.
        shape: of an example.
        settings: of the strategy, where they differ from its own.
    """

    strategy: str
    model: tuple[str, Mapping[str, Any]]
    shape: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    buffered: bool = False

    @property
    def name(self) -> str:
        """As in tables and options."""
        return f"{self.strategy}-buffered" if self.buffered else self.strategy


_PERCEPTRON = ("mlp", {"inputs": 16, "classes": 3, "hidden": (160, 80)})
_ALIGNED = (
    "vit",
    {
        "classes": 3,
        "size": 16,
        "channels": 1,
        "patch": 8,
        "depth": 1,
        "width": 24,
        "heads": 1,
        "mlp_width": 48,
        "prototypes": (12,),
    },
)
METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(strategy="fedavg", model=_PERCEPTRON, shape=(16,)),
        Method(strategy="fedali", model=_ALIGNED, shape=(1, 16, 16)),
        Method(strategy="fedsub", model=_PERCEPTRON, shape=(16,), settings={"restarts": 2}),
        Method(strategy="fedavg", model=_PERCEPTRON, shape=(16,), buffered=True),
    )
}
"""An average, clusters of prototypes, clusters of subnets; an average without rounds."""


def write_files(methods: Sequence[Method], folder: Path) -> dict[str, Path]:
    """Folders with ``bundle.pfb``, ``signer.pem`` and ``<device>.npz``, by method.

    Methods that train the same model share one.
    """
    places: dict[str, Path] = {}
    for method in methods:
        places[method.name] = folder / method.model[0]
        if not places[method.name].exists():
            _write(method, places[method.name])
    return places


def _write(method: Method, folder: Path) -> None:
    import torch  # noqa: PLC0415 - slow to load, and only needed where a bundle is made

    from protofleet.export.build import BundleSpec, export_bundle  # noqa: PLC0415 - as above
    from protofleet.export.models import build_model  # noqa: PLC0415 - as above

    folder.mkdir(parents=True)
    torch.manual_seed(0)
    key = Ed25519PrivateKey.generate()
    spec = BundleSpec(
        name="chaos",
        strategy=method.strategy,
        objectives=("cross_entropy",),
        classes=_CLASSES,
        preprocessing=Preprocessing(input_shape=method.shape),
    )
    name, settings = method.model
    export_bundle(build_model(name, **settings), spec, out=folder / "bundle.pfb", key=key)
    save_public_key(key.public_key().public_bytes_raw(), folder / "signer.pem")
    for number, device in enumerate(DEVICES):
        _data(number, method.shape).save(folder / f"{device}.npz")


def _data(number: int, shape: tuple[int, ...]) -> DeviceData:
    """Separable examples, some of which every device mixes up in a way of its own."""
    rng = np.random.default_rng(number)
    centres = np.random.default_rng(100).normal(size=(len(_CLASSES), *shape))
    y = np.arange(_EXAMPLES, dtype=np.int64) % len(_CLASSES)
    x = (centres[y] + rng.normal(0, 0.7, (_EXAMPLES, *shape))).astype(np.float32)
    mixed = (y + (number if number < len(_CLASSES) else 0) * (y > 0)) % len(_CLASSES)
    return DeviceData(x_train=x, y_train=mixed, x_test=x, y_test=mixed, classes=_CLASSES)
