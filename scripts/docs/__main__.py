"""The documentation as a site: ``docs/`` and the pages made of the code, into ``site/``.

Exit status: 0: built; 1: a link, an anchor or a page of the navigation does not exist.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from commands import commands_page
from links import relink
from python_names import names_page
from settings import settings_page

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
STAGE = BUILD / "site-source"
_BESIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "tests/README.md": "tests-readme.md",
}
"""Pages that lie outside ``docs/``, where people look for them, and their names in the site."""
_MADE = {
    "commands.md": commands_page,
    "settings.md": settings_page,
    "python-names.md": names_page,
}


def main() -> int:
    """Build, strictly: a link that leads nowhere is an error."""
    stage()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    # Under its warnings the program prints its own traceback.
    print((built.stdout + built.stderr).partition("Traceback")[0].strip())
    if built.returncode == 0:
        pages = len(list((ROOT / "site").rglob("*.html")))
        print(f"{pages} pages: {ROOT / 'site' / 'index.html'}")
    return 1 if built.returncode else 0


def stage() -> None:
    """Write everything that the site is made of into ``build/site-source``."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", STAGE, ignore=shutil.ignore_patterns("*.md", "__pycache__"))
    found = sorted((ROOT / "docs").rglob("*.md"))
    pages = {path: str(path.relative_to(ROOT / "docs")) for path in found}
    pages |= {ROOT / path: name for path, name in _BESIDE.items()}
    for path, name in pages.items():
        (STAGE / name).write_text(relink(path, pages, ROOT), encoding="utf-8")
    for name, make in _MADE.items():
        (STAGE / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
