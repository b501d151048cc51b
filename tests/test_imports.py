"""The table of allowed imports in docs/architecture.md, and what a device must never load."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import protofleet

_PACKAGE = Path(protofleet.__file__).parent
_ALLOWED = {
    "tensors": set(),
    "bundle": {"tensors"},
    "kernels": set(),
    "wire": {"tensors", "kernels"},
    "broker": {"wire"},
    "strategies": {"tensors", "kernels"},
    "datasets": set(),
    "runtime": {"tensors", "bundle", "kernels", "strategies"},
    "federation": {"tensors", "bundle", "wire", "kernels", "strategies", "runtime", "datasets"},
    "edge": {
        "tensors",
        "bundle",
        "wire",
        "kernels",
        "strategies",
        "runtime",
        "datasets",
        "federation",
    },
    "coordinator": {
        "tensors",
        "bundle",
        "wire",
        "strategies",
        "runtime",
        "datasets",
        "federation",
        "broker",
    },
    "hub": {
        "tensors",
        "bundle",
        "wire",
        "broker",
        "strategies",
        "federation",
        "coordinator",
        "report",
    },
    "export": {"tensors", "bundle", "kernels", "runtime", "strategies"},
    "firmware_sim": {"tensors", "bundle", "edge", "wire", "datasets", "broker"},
}
_ALLOWED["experiments"] = {*_ALLOWED, "report"}
_ALLOWED["rehearsal"] = {*_ALLOWED, "report"}
_EVERYONES = {
    "errors",
    "durable",
    "printable",
    "private_files",
    "settings",
    "signatures",
    "threads",
    "units",
}
_TORCH_SIDE = {"torch", "onnx", "onnxscript", "onnx_ir"}


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("folder", sorted(_ALLOWED))
def test_folder_imports_only_what_the_table_allows(folder):
    paths = sorted((_PACKAGE / folder).rglob("*.py"))
    assert paths
    for path in paths:
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "protofleet" and len(parts) > 1:
                assert parts[1] in _ALLOWED[folder] | _EVERYONES | {folder}, f"{path.name}: {name}"
            assert folder == "export" or parts[0] not in _TORCH_SIDE, f"{path.name}: {name}"


_SQL = re.compile(r"\.execute(many|script)?\(|sqlite3\.connect\(")
_DATABASES = {"backup", "database", "members", "sightings"}
"""Of ``coordinator/``: copies of any database, its opening, and those of members and devices."""


def test_sql_is_known_to_the_ledger_and_to_the_other_databases_alone():
    """A query from elsewhere is a function of ``coordinator/ledger/queries.py``."""
    found = {
        path.relative_to(_PACKAGE)
        for folder in _PACKAGE.iterdir()
        for path in ([folder] if folder.suffix == ".py" else folder.rglob("*.py"))
        if _SQL.search(path.read_text())
    }
    ledger = Path("coordinator", "ledger")
    others = {path for path in found if ledger not in path.parents}
    assert {path.stem for path in others if path.parts[0] == "coordinator"} == _DATABASES
    assert {path for path in others if path.parts[0] != "coordinator"} == set()


def test_importing_the_edge_loads_nothing_heavy():
    code = (
        "import sys, protofleet.edge\n"
        "print([m for m in sys.modules if m.split('.')[0] in "
        "('torch', 'onnx', 'scipy', 'sklearn', 'matplotlib', 'rich', 'numba')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_experiments_load_torch_only_to_make_a_bundle():
    """Reading results, and training with bundles that are there, does without it."""
    modules = sorted(
        f"protofleet.experiments.{path.stem}"
        for path in (_PACKAGE / "experiments").glob("*.py")
        if path.stem != "__init__"
    )
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print(sorted({_TORCH_SIDE!r} & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
