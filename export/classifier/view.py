"""A module as an objective sees it: logits, features, head, hidden layers, prototypes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from protofleet.bundle.manifest import PENULTIMATE
from protofleet.errors import ExportError
from protofleet.export.classifier.calls import CallRecorder
from protofleet.export.classifier.layers import LayerFinder
from protofleet.export.classifier.parts import LATENT, Parts, own_layers


class ClassifierView:
    """Features, head and layers of any module (``export.objectives.ModelCall``).

    Where the head is a module inside of the model, ``features`` runs the whole model: features are
    what goes into that module, flattened to (B, d), and ``head`` of them are the logits of that
    very pass. So they are the model's own by construction, whatever stands behind the head.

    Args:
        model: any module.
        parts: of it.
    """

    def __init__(self, model: nn.Module, parts: Parts) -> None:
        self.model, self.parts = model, parts
        self._passes: list[tuple[Tensor, Tensor]] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (B, C)."""
        logits: Tensor = self.model(x)
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Features (B, d).

        Raises:
            ExportError: the model's head is not known, or took no tensor.
        """
        if self.parts.head is None:
            raise ExportError(f"model: {self.parts.missing}")
        if not self.parts.head:
            own: Tensor = cast("Any", self.model).features(x)
            return own
        with self._into(self.parts.head) as taken:
            logits = self(x)
        if not taken or not isinstance(taken[-1], Tensor):
            raise ExportError(
                f"model: its head '{self.parts.head}' took no tensor as its first argument; name "
                "the module that takes the features, --head NAME"
            )
        features = taken[-1] if taken[-1].dim() == 2 else taken[-1].flatten(1)
        self._passes.append((features, logits))
        return features

    def head(self, features: Tensor) -> Tensor:
        """Logits (B, C) of features that ``features`` gave.

        Raises:
            ExportError: it did not give them.
        """
        if not self.parts.head:
            own: Tensor = cast("Any", self.model).head(features)
            return own
        for given, logits in self._passes:
            if given is features:
                return logits
        raise ExportError(
            f"objective: expected head(features(x)), got features from elsewhere: {LATENT}"
        )

    def decode(self, features: Tensor) -> Tensor:
        """Examples (B, …) of features (B, d).

        Raises:
            ExportError: the model has no decoder.
        """
        if not self.parts.decodes:
            raise ExportError(f"model: {LATENT}")
        decoded: Tensor = cast("Any", self.model).decode(features)
        return decoded

    def classify(self, rows: Tensor) -> Tensor:
        """Logits (n, C) of other features (n, d), from the head alone (``cannot_classify``)."""
        name = self.parts.head
        logits: Tensor = (self.model.get_submodule(name) if name else cast("Any", self.model).head)(
            rows
        )
        return logits

    def cannot_classify(self, x: Tensor) -> str:
        """Why ``classify`` would not give the model's logits; ``""``: it does.

        Args:
            x: examples to try it on; the model must be in evaluation mode.
        """
        features = self.features(x)
        logits = self.head(features)
        try:
            alone = self.classify(features)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            (why, *_) = (str(error).strip() or type(error).__name__).splitlines()
            return f"its head '{self.parts.head}' takes no features (B, d): {why}"
        same = alone.shape == logits.shape
        if same and (alone.is_meta or torch.allclose(alone, logits, rtol=1e-4, atol=1e-5)):
            return ""
        return (
            f"the logits are not what its head '{self.parts.head}' makes of features (B, d): name "
            "a module that ends with the logits, --head NAME"
        )

    @property
    def prototypes(self) -> Tensor | None:
        """The head's prototypes (C, d), a parameter of that name; None: it has none."""
        name = "head" if not self.parts.head else self.parts.head
        head = dict(self.model.named_modules()).get(name)
        prototypes = getattr(head, "prototypes", None)
        return prototypes if isinstance(prototypes, Tensor) else None

    def outputs(self, x: Tensor, *, layers: bool) -> dict[str, Tensor]:
        """``features`` and ``logits``, and with ``layers`` each hidden layer as ``layers.<name>``.

        Of a head of several layers what goes into the last one, too: ``penultimate``. None of them
        costs a second pass: what they share with the features is computed once.
        """
        own = own_layers(self.model)
        if own is not None:
            return self._heads(x) | {f"layers.{name}": value for name, value in own(x).items()}
        if not layers:
            return self._heads(x)
        finder = LayerFinder(self.model, {layer.name for layer in self.parts.layers})
        recorder = CallRecorder(self.model, x, visit=finder)
        outputs: dict[str, Tensor] = recorder.run(self._heads)
        hidden = (layer.name for layer in self.parts.layers if layer.hidden)
        return outputs | {f"layers.{name}": finder.activations[name] for name in hidden}

    def _heads(self, x: Tensor) -> dict[str, Tensor]:
        if not self.parts.last:
            features = self.features(x)
            return {"features": features, "logits": self.head(features)}
        with self._into(self.parts.last) as taken:
            features = self.features(x)
            logits = self.head(features)
        return {"features": features, "logits": logits, PENULTIMATE: taken[-1]}

    @contextmanager
    def _into(self, name: str) -> Iterator[list[Any]]:
        """Collects what goes into a module inside the block."""
        taken: list[Any] = []
        hook = self.model.get_submodule(name).register_forward_pre_hook(
            lambda _module, args: taken.append(args[0] if args else None)
        )
        try:
            yield taken
        finally:
            hook.remove()
