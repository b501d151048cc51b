"""Stanford 40 Actions: 9 532 photographs of people, 40 actions.

B. Yao et al., "Human Action Recognition by Learning Bases of Action Attributes and Parts", ICCV
2011. Read from the folders that the published archives unpack to.
"""

from __future__ import annotations

from pathlib import Path

from protofleet.datasets._images import ImageFile, Wish, picture_pool
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError


def stanford40_pool(
    root: Path,
    *,
    size: int = 224,
    scale: str = "unit",
    limit: int | None = None,
    boxes: str | Path | None = None,
) -> Pool:
    """Read ``stanford40/JPEGImages/`` as listed in ``stanford40/ImageSplits/``.

    The publisher's test part is larger than its train part (5 532 and 4 000); CDFL merges both.

    Args:
        root: folder that holds ``stanford40/``.
        size: images are resized to ``size`` x ``size`` pixels; their proportions are not kept.
        scale: ``"unit"`` for [0, 1], ``"signed"`` for [-1, 1].
        limit: at most so many images of each class in each part, the first; None: all.
        boxes: file of faces (``faces.read_boxes``) with names such as ``applauding_001.jpg``.

    Raises:
        MissingDataError: a file is absent; the message says what to put where.
        InputError: a file is not as published, an option is wrong, or Pillow is not installed.
    """
    folder = root / "stanford40"
    classes = tuple(line.split()[0] for line in _lines(folder / "ImageSplits/actions.txt")[1:])
    if not classes:
        raise InputError(f"Stanford40 '{folder}/ImageSplits/actions.txt': lists no action")
    pictures = [
        ImageFile(name=name, path=folder / "JPEGImages" / name, label=label, is_test=part == "test")
        for part in ("train", "test")
        for label, action in enumerate(classes)
        for name in _lines(folder / "ImageSplits" / f"{action}_{part}.txt")
    ]
    return picture_pool(pictures, classes, Wish(size=size, scale=scale, limit=limit, boxes=boxes))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise MissingDataError(
            f"Stanford40: unpack the published Stanford40_JPEGImages.zip and "
            f"Stanford40_ImageSplits.zip so that '{path}' exists"
        )
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
