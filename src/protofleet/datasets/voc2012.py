"""PASCAL VOC 2012 actions: photographs in which people do one of ten things.

M. Everingham, J. Winn, "The PASCAL Visual Object Classes Challenge 2012 (VOC2012) Development
Kit", 2012. Read from the folder that the published train/validation archive unpacks to.
"""

from __future__ import annotations

from pathlib import Path

from protofleet.datasets._images import ImageFile, Wish, picture_pool
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

CLASSES = (
    "jumping",
    "phoning",
    "playinginstrument",
    "reading",
    "ridingbike",
    "ridinghorse",
    "running",
    "takingphoto",
    "usingcomputer",
    "walking",
)


def voc2012_pool(
    root: Path,
    *,
    size: int = 224,
    scale: str = "unit",
    limit: int | None = None,
    boxes: str | Path | None = None,
) -> Pool:
    """Read ``voc2012/VOCdevkit/VOC2012``: images that show exactly one of the ten actions.

    People who do something else do not count. The validation part is the test part here, since the
    challenge's own test labels are not published.

    Args:
        root: folder that holds ``voc2012/``.
        size: images are resized to ``size`` x ``size`` pixels; their proportions are not kept.
        scale: ``"unit"`` for [0, 1], ``"signed"`` for [-1, 1].
        limit: at most so many images of each class in each part, the first; None: all.
        boxes: file of faces (``faces.read_boxes``) with names such as ``2010_006215.jpg``.

    Raises:
        MissingDataError: a file is absent; the message says what to put where.
        InputError: a file is not as published, an option is wrong, or Pillow is not installed.
    """
    folder = root / "voc2012" / "VOCdevkit" / "VOC2012"
    pictures = [
        ImageFile(
            name=f"{image}.jpg",
            path=folder / "JPEGImages" / f"{image}.jpg",
            label=label,
            is_test=part == "val",
        )
        for part in ("train", "val")
        for image, label in _single_actions(folder, part)
    ]
    return picture_pool(pictures, CLASSES, Wish(size=size, scale=scale, limit=limit, boxes=boxes))


def _single_actions(folder: Path, part: str) -> list[tuple[str, int]]:
    """Images of one action and their class, sorted by name."""
    actions: dict[str, set[int]] = {}
    for label, action in enumerate(CLASSES):
        for image in _doing(folder / "ImageSets" / "Action" / f"{action}_{part}.txt"):
            actions.setdefault(image, set()).add(label)
    return sorted((image, min(found)) for image, found in actions.items() if len(found) == 1)


def _doing(path: Path) -> list[str]:
    """Images with a person that does it; a line is image, number of the person, 1 or -1."""
    if not path.is_file():
        raise MissingDataError(
            f"VOC2012: unpack the published 'VOCtrainval_11-May-2012.tar' so that '{path}' exists"
        )
    images = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if len(fields) != 3 or fields[2] not in ("1", "-1"):
            raise InputError(f"VOC2012 '{path}': expected 'image person 1|-1', got '{line}'")
        if fields[2] == "1":
            images.append(fields[0])
    return images
