"""PPMI: 4 800 photographs of people who play, or merely hold, one of 12 musical instruments.

B. Yao, L. Fei-Fei, "Grouplet: A Structured Image Representation for Recognizing Human and Object
Interactions", CVPR 2010. Read from the folders of the published ``norm_ppmi_12class.zip``.
"""

from __future__ import annotations

from pathlib import Path

from protofleet.datasets._images import ImageFile, Wish, image_files, picture_pool
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

_KINDS = {
    "both": ("play_instrument", "with_instrument"),
    "play": ("play_instrument",),
    "with": ("with_instrument",),
}
_INSTRUMENTS = 12


def ppmi_pool(  # noqa: PLR0913 - options go by keyword
    root: Path,
    *,
    kind: str = "both",
    size: int = 224,
    scale: str = "unit",
    limit: int | None = None,
    boxes: str | Path | None = None,
) -> Pool:
    """Read ``ppmi/norm_image/{play,with}_instrument/<instrument>/{train,test}/``.

    The 12 classes are the instruments. CDFL's 4 800 images are both kinds, 200 of each instrument
    and kind.

    Args:
        root: folder that holds ``ppmi/``.
        kind: ``"both"``, ``"play"`` (people playing) or ``"with"`` (people holding).
        size: images are resized to ``size`` x ``size`` pixels; their proportions are not kept.
        scale: ``"unit"`` for [0, 1], ``"signed"`` for [-1, 1].
        limit: at most so many images of each class in each part, the first; None: all.
        boxes: file of faces (``faces.read_boxes``) with names below ``norm_image``, such as
            ``play_instrument/flute/train/1.jpg``.

    Raises:
        MissingDataError: a folder is absent; the message says what to put where.
        InputError: a folder is not as published, an option is wrong, or Pillow is not installed.
    """
    if kind not in _KINDS:
        raise InputError(f"option 'kind': expected one of {', '.join(_KINDS)}, got '{kind}'")
    top = _top(root / "ppmi")
    first = _folder(top / _KINDS[kind][0])
    classes = tuple(sorted(path.name for path in first.iterdir() if path.is_dir()))
    if len(classes) != _INSTRUMENTS:
        raise InputError(f"PPMI '{first}': expected 12 folders, one per instrument, got {classes}")
    pictures = [
        ImageFile(
            name=path.relative_to(top).as_posix(), path=path, label=label, is_test=part == "test"
        )
        for part in ("train", "test")
        for label, instrument in enumerate(classes)
        for folder in _KINDS[kind]
        for path in image_files(_folder(top / folder / instrument / part))
    ]
    return picture_pool(pictures, classes, Wish(size=size, scale=scale, limit=limit, boxes=boxes))


def _top(place: Path) -> Path:
    """Depending on the tool, the archive unpacks with or without a folder of its own name."""
    own = place / "norm_ppmi_12class" / "norm_image"
    return own if own.is_dir() else place / "norm_image"


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise MissingDataError(
            f"PPMI: unpack the published 'norm_ppmi_12class.zip' so that '{path}' exists"
        )
    return path
