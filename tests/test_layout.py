"""Every product module can be found from a test: by its name, or by a line in tests/README.md."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePath

_ROOT = Path(__file__).resolve().parent.parent
_README = _ROOT / "tests" / "README.md"
_PACKAGE = _ROOT / "src" / "protofleet"
"""TypeScript, packages of npm, and helpers of their tests."""
_ROW = re.compile(r"\| `([^`]+)` \| ((?:`[^`]+`(?:, )?)+) \|")


@cache
def _paths() -> list[PurePath]:
    """The product's files, relative to the package; its links lead to the folders at the top."""
    folders = [path for path in _PACKAGE.iterdir() if path.is_dir()]
    found = [*_PACKAGE.glob("*.py"), *(path for one in folders for path in one.rglob("*.py"))]
    return sorted(PurePath(path.relative_to(_PACKAGE)) for path in found)


def _modules() -> list[PurePath]:
    return [path for path in _paths() if path.stem not in {"__init__", "__main__"}]


def _exceptions() -> dict[str, list[str]]:
    """The table: module or pattern → where it is tested."""
    rows = _ROW.findall(_README.read_text())
    return {module: re.findall(r"`([^`]+)`", places) for module, places in rows}


def _home(module: PurePath) -> Path:
    """The folder of tests of a module's folder."""
    return _ROOT / "tests" / module.parts[0] if len(module.parts) > 1 else _ROOT / "tests"


def _has_a_test_of_its_name(module: PurePath) -> bool:
    home, stem = _home(module), module.stem.lstrip("_")
    names = (f"test_{stem}.py", f"test_{module.parent.name}_{stem}.py")
    folders = [home] if home.name == "tests" else [home, *home.rglob("*/")]
    return any((folder / name).is_file() for folder in folders for name in names)


@cache
def _imported(path: Path) -> frozenset[str]:
    """Names of modules, and of what is taken from them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def _dotted(module: PurePath) -> str:
    return ".".join(("protofleet", *module.parts)).removesuffix(".py").removesuffix(".__init__")


def _guess(module: PurePath) -> list[Path]:
    """The tests that are fewest imports away from the module, those in its own folder first."""
    files = {_dotted(path): _PACKAGE / path for path in _paths()}
    tests = sorted((_ROOT / "tests").rglob("test_*.py"))
    seen: set[str] = set()
    names = {_dotted(module)}
    while names:
        found = [path for path in tests if names & _imported(path)]
        own = [path for path in found if path.is_relative_to(_home(module))]
        if found:
            return (own or found)[:2]
        seen |= names
        names = {name for name, path in files.items() if names & _imported(path)} - seen
    return []


def _line(module: PurePath) -> str:
    """A row to add."""
    places = ", ".join(f"`{path.relative_to(_ROOT)}`" for path in _guess(module))
    return f"| `{module}` | {places or '`?`'} |"


def test_every_module_has_a_test_of_its_name_or_a_line_in_the_table():
    patterns = _exceptions()
    missing = [
        _line(module)
        for module in _modules()
        if not _has_a_test_of_its_name(module)
        and not any(fnmatch(str(module), pattern) for pattern in patterns)
    ]
    assert not missing, (
        "name a test after each of these modules, or add to tests/README.md (tests are guessed "
        "from imports):\n" + "\n".join(missing)
    )


def test_every_line_of_the_table_is_needed_and_true():
    modules = _modules()
    for pattern, places in _exceptions().items():
        fitting = [module for module in modules if fnmatch(str(module), pattern)]
        assert fitting, f"tests/README.md: no module {pattern}; delete its line"
        assert not all(map(_has_a_test_of_its_name, fitting)), (
            f"tests/README.md: {pattern} has a test of its name; delete its line"
        )
        for place in places:
            assert (_ROOT / place).is_file(), f"tests/README.md: {pattern}: no {place}"
