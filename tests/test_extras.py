"""What the command line says of errors: which extra to install, what the system refuses."""

import ast
import logging
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tiny_bundle import tiny_bundle

import protofleet
from protofleet.cli._short_help import SHORT_HELP
from protofleet.cli._verbosity import add_options, start_logging, verbosity
from protofleet.cli.main import _root, main
from protofleet.extras import EXTRAS, HOLDS, USES

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


_HIDE = """
import sys

class Hidden:
    def find_spec(name, path, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Hidden)
from protofleet.cli.main import main
main({arguments!r})
"""


def _run_without(module, *arguments):
    code = _HIDE.format(module=module, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("torch", ("export", "mlp", "--strategy", "fedavg", "--out", "{}/a.pfb"), "export"),
        ("rich", ("experiment", "list"), "coordinator"),
        (
            "ray",
            ("experiment", "run", "fedhp/mnist-small", "--engine", "ray", "--out", "{}/a"),
            "ray",
        ),
        ("jinja2", ("report", "{}"), "coordinator"),
        ("paho", ("coordinator", "run", "{}/federation.toml"), "coordinator"),
        ("paho", ("hub", "{}/federation.toml"), "hub"),
        ("starlette", ("hub", "{}/federation.toml"), "hub"),
        ("matplotlib", ("bench", "device", "--bundle", "{}", "--plot", "{}/a.png"), "coordinator"),
    ],
)
def test_a_missing_package_is_one_line_that_names_its_extra(module, command, extra, tmp_path):
    done = _run_without(module, *(part.format(tmp_path) for part in command))
    expected = f"protofleet: module '{module}' is not installed: pip install 'protofleet[{extra}]'"
    assert (done.returncode, done.stderr.strip()) == (1, expected)


def test_a_module_that_no_extra_brings_keeps_its_traceback():
    done = _run_without("protofleet.bundle", "bundle", "verify", str(_PROJECT))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "protofleet.bundle" in done.stderr


@pytest.fixture(scope="module")
def distributions():
    """Which distributions bring a module; asking takes a second."""
    return packages_distributions()


@pytest.mark.parametrize(("module", "extra"), EXTRAS.items())
def test_the_extra_brings_the_module(module, extra, distributions):
    installed = distributions.get(module)
    if installed is None:
        pytest.skip(f"{module} is not installed here")
    extras = tomllib.loads(_PROJECT.read_text())["project"]["optional-dependencies"]
    brought = {canonicalize_name(Requirement(one).name) for one in extras[extra]}
    assert brought & {canonicalize_name(name) for name in installed}


def test_what_a_command_is_told_to_install_brings_the_module():
    extras = tomllib.loads(_PROJECT.read_text())["project"]["optional-dependencies"]

    def held(extra):
        yield extra
        for one in map(Requirement, extras[extra]):
            if canonicalize_name(one.name) == "protofleet":
                for inner in one.extras:
                    yield from held(inner)

    assert set(HOLDS) == set(USES.values())
    for extra, brought in HOLDS.items():
        assert set(brought) <= set(held(extra))


_BROUGHT_ALONG = {"llvmlite": "numba", "onnx_ir": "onnxscript", "sympy": "torch"}
"""Modules that come with one that an extra names."""
_OF_DEVELOPERS = {"flwr", "ot"}
"""Peers that benchmarks compare with."""


def _third_party():
    """Names of all modules that the product imports and that are neither ours nor Python's."""
    package = Path(protofleet.__file__).parent
    for folder in (package, *(path for path in package.iterdir() if path.is_dir())):
        # Every folder's own files, and its packages': packages of npm are no matter of ours.
        inner = [] if folder == package else [p for p in folder.glob("*/") if p.name != "web"]
        for path in (*folder.glob("*.py"), *(file for one in inner for file in one.rglob("*.py"))):
            for node in ast.walk(ast.parse(path.read_text())):
                named = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                named += [node.module] if isinstance(node, ast.ImportFrom) else []
                yield from (name.partition(".")[0] for name in named if name)


def test_every_module_that_may_be_absent_has_an_extra():
    project = tomllib.loads(_PROJECT.read_text())["project"]
    base = {canonicalize_name(Requirement(one).name) for one in project["dependencies"]}
    found = set(_third_party()) - sys.stdlib_module_names - {"protofleet"}
    found -= {name for name in found if canonicalize_name(name) in base}
    assert found - EXTRAS.keys() == _BROUGHT_ALONG.keys() | _OF_DEVELOPERS
    assert set(_BROUGHT_ALONG.values()) <= EXTRAS.keys()
    assert EXTRAS.keys() - found == {"wsproto"}, "uvicorn imports it, by its name"


_USES = {
    "amqtt": "import protofleet.firmware_sim._amqtt",
    "dp_accounting": "from protofleet.federation.accounting import sampled_epsilon as of; "
    "of(1, 1, 1, 1)",
    "jinja2": "import protofleet.report._page",
    "matplotlib": "import protofleet.report._figures",
    "numba": "import protofleet.kernels.native.build",
    "onnxruntime": "import protofleet; protofleet.open_bundle(sys.argv[1], backend='onnx')",
    "paho": "import protofleet.wire.mqtt.link",
    "rich": "import protofleet.demo.commands",
    "scipy": "import protofleet.datasets.hhar",
    "segno": "import protofleet.cli._qr as qr; qr.show_qr('x')",
    "sklearn": "import protofleet; protofleet.load_dataset('digits')",
    "starlette": "import protofleet.hub.app",
    "tomli_w": "from protofleet.settings import to_toml; to_toml({})",
    "torch": "import protofleet; protofleet.export_model",
    "uvicorn": "import protofleet.hub.run",
}
"""What needs a module; the others stand deep in ``export``, behind seconds of PyTorch."""
_TRY = """
import os, sys
class Hidden:
    def find_spec(self, name, path, target=None):
        if name == hidden:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)
sys.meta_path.insert(0, Hidden())
for hidden, use in {uses!r}.items():
    if os.fork():
        os.wait()
        continue
    try:
        exec(use)
        print(hidden, "nothing was missed")
    except Exception as error:
        from protofleet.extras import missing_module
        lack = missing_module(error) if isinstance(error, ImportError) else None
        print(hidden, lack.remedy if lack else error, sep=": ", flush=True)
    os._exit(0)
"""


@pytest.mark.slow(seconds=8)
def test_without_its_module_everything_says_what_to_install(tmp_path):
    bundle = tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate())
    command = [sys.executable, "-c", _TRY.format(uses=_USES), str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert told.keys() == _USES.keys()
    for name, text in told.items():
        assert f"pip install 'protofleet[{EXTRAS[name]}]'" in text, f"{name}: {text}"


def test_the_demonstration_names_all_that_it_lacks_and_one_extra(tmp_path):
    done = _run_without("torch", "demo", "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (
        1,
        "protofleet: demo: not installed: torch; pip install 'protofleet[demo]'\n",
    )
    assert not (tmp_path / "run").exists()


def test_a_public_name_says_what_to_install():
    code = _HIDE.replace("from protofleet.cli.main import main\nmain({arguments!r})", "")
    code = code.format(module="torch") + "import protofleet\nprotofleet.pretrain"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: protofleet.pretrain: module 'torch' is not installed: "
        "pip install 'protofleet[export]'"
    )


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_every_command_tells_where_an_error_came_from_if_asked(capsys, tmp_path, option):
    for arguments, shown in (([], False), ([option], True)):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(tmp_path), *arguments])
        err = capsys.readouterr().err
        assert ended.value.code == 1
        assert ("Traceback" in err) is shown
        assert err.splitlines()[-1].startswith("protofleet: ")


def test_quiet_leaves_the_logs_warnings():
    found = []

    @click.command()
    def command():
        start_logging()
        found.append((verbosity(), logging.getLogger("protofleet").level))

    before = logging.getLogger("protofleet").level
    for arguments in ([], ["-q"], ["-v"]):
        CliRunner().invoke(add_options(command), arguments, catch_exceptions=False)
    logging.getLogger("protofleet").setLevel(before)
    assert found == [(0, logging.INFO), (-1, logging.WARNING), (1, logging.DEBUG)]


def test_what_the_system_refuses_is_a_line_too(capsys, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--out", str(tmp_path / "file" / "run")])
    assert ended.value.code == 1
    assert "Not a directory" in capsys.readouterr().err.splitlines()[-1]


def test_help_lists_every_command_by_its_own_first_line_and_imports_none():
    context = click.Context(_root)
    own = {name: _root.get_command(context, name) for name in _root.list_commands(context)}
    assert {name: one.get_short_help_str(200) for name, one in own.items()} == SHORT_HELP
    code = (
        "import sys\nfrom protofleet.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m in ('numpy', 'email') or m in sys.argv])"
    )
    modules = [f"protofleet.cli.{name}" for name in SHORT_HELP]
    command = [sys.executable, "-c", code, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert all(any(line.split()[:1] == [name] for line in shown) for name in SHORT_HELP)


def test_a_misspelt_command_is_answered_with_the_one_meant(capsys):
    with pytest.raises(SystemExit):
        main(["devcie"])
    assert "Did you mean 'device'?" in capsys.readouterr().err
