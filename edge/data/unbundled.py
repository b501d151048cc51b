"""What recordings are read for where there is no bundle yet: before a central training."""

from __future__ import annotations

from collections.abc import Sequence

from protofleet.bundle.manifest import FORMAT_VERSION, Manifest, Preprocessing, StrategyDecl


def manifest_for(preprocessing: Preprocessing, classes: Sequence[str]) -> Manifest:
    """A manifest that says what windows are to be like, and nothing of programs.

    Args:
        preprocessing: shape, rate, window and channels of an example.
        classes: that labels may name; empty: labels are not looked at.
    """
    return Manifest(
        format=FORMAT_VERSION,
        name="recordings",
        created="",
        layout_hash="",
        task="classification",
        classes=tuple(classes),
        preprocessing=preprocessing,
        params=(),
        state=(),
        programs={},
        strategy=StrategyDecl(name="", settings={}),
        provenance={},
        files={},
    )
