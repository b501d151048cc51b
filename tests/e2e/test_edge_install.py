"""The wheel in an empty environment with the ``[edge]`` extra: a whole device without torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_bundle import tiny_bundle

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=15), pytest.mark.timeout(900)]

_ROOT = Path(__file__).resolve().parent.parent.parent
_NEVER_ON_A_DEVICE = ("torch", "onnx", "onnxscript", "scipy", "sklearn", "matplotlib", "rich")


def _pip(python, *arguments):
    command = [python, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def edge_python(tmp_path_factory):
    """An interpreter whose environment holds nothing but the wheel and its edge extra."""
    folder = tmp_path_factory.mktemp("edge")
    # A copy, because setuptools leaves its build folder in the tree it builds from.
    built = ("build", "dist", "runs", "*.egg-info", "__pycache__", "node_modules")
    ignored = shutil.ignore_patterns(".*", *built)
    shutil.copytree(_ROOT, folder / "source", ignore=ignored, symlinks=True)
    _pip(sys.executable, "wheel", "--no-deps", "-w", str(folder), str(folder / "source"))
    (wheel,) = folder.glob("protofleet-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    python = str(folder / "env" / "bin" / "python")
    _pip(python, "install", "-c", str(_ROOT / "constraints.txt"), f"{wheel}[edge]")
    return python


def test_edge_install_has_no_torch_on_disk(edge_python):
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([edge_python, "-c", code], capture_output=True, text=True, check=True)
    packages = {path.name for path in Path(found.stdout.strip()).iterdir()}
    assert "protofleet" in packages
    assert not packages & set(_NEVER_ON_A_DEVICE)


def test_the_wheel_has_every_module_and_every_experiment(edge_python, tmp_path):
    """setuptools finds packages by itself; what it overlooks is in no wheel."""
    code = (
        "import os, protofleet\n"
        "for place, _, names in os.walk(protofleet.__path__[0]):\n"
        "    for name in names:\n"
        "        print(os.path.relpath(os.path.join(place, name), protofleet.__path__[0]))"
    )
    command = [edge_python, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    package = _ROOT / "src" / "protofleet"
    expected = {
        str((Path(place) / name).relative_to(package))
        for place, _, names in os.walk(package, followlinks=True)
        for name in names
        if name.endswith((".py", ".toml", ".jinja2"))
    }
    assert len(expected) > 700
    assert expected <= set(found.stdout.splitlines())


def test_the_wheel_has_the_page_for_browsers(edge_python, tmp_path):
    """Its users need no Node."""
    page = _ROOT / "src" / "protofleet" / "hub" / "page"
    if not page.is_dir():
        assert "PROTOFLEET_CI" not in os.environ, "make web comes before the tests"
        pytest.skip("needs the page: make web")
    code = (
        "from importlib.resources import files\n"
        "page = files('protofleet.hub') / 'page'\n"
        "print(*sorted(p.relative_to(page) for p in page.rglob('*') if p.is_file()), sep='\\n')"
    )
    command = [edge_python, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    expected = sorted(str(path.relative_to(page)) for path in page.rglob("*") if path.is_file())
    assert found.stdout.split() == expected
    assert "index.html" in expected


def test_the_wheel_has_docs_and_the_unit_of_a_service(edge_python, tmp_path):
    def docs(*name):
        command = [edge_python, "-m", "protofleet", "docs", *name]
        found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        return found.stdout

    unit = "protofleet-device.service"
    assert docs(unit) == (_ROOT / "docs" / unit).read_text()
    pages = {str(page.relative_to(_ROOT / "docs")) for page in (_ROOT / "docs").rglob("*.md")}
    assert pages | {unit} <= {line.split()[0] for line in docs().splitlines()}


def test_device_from_the_wheel_takes_part(edge_python, make_federation, tmp_path, key):
    """One device runs from the wheel, one from this checkout: both finish the federation."""
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=2)
    coordinator = federation.start_coordinator()
    own = federation.start_device("device0")
    installed = federation.start_device("device1", edge_python)
    assert coordinator.finish() == 0, coordinator.log
    assert own.finish() == 0, own.log
    assert installed.finish() == 0, installed.log
