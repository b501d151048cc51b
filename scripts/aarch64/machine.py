"""A Raspberry Pi's userland in a folder: Debian's packages, wheels, and QEMU to run them.

Neither root nor chroot is needed, and the host's own apt is not touched: apt gets folders of its
own, packages are unpacked but not installed, and QEMU looks into the folder first for every file.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protofleet.errors import ProtofleetError, UnavailableError

ROOT = Path(__file__).resolve().parent.parent.parent
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MIRROR = "http://deb.debian.org/debian"  # packages are signed
_NOT_SOURCE = (".*", "build", "dist", "runs", "*.egg-info", "__pycache__", "node_modules")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An architecture.

    Attributes:
        debian: its name at Debian.
        qemu: the emulator.
        cpu: what it emulates; by default it offers SVE, which is very slow.
        elf: ``e_machine`` of its libraries.
        packages: from Debian, with what they depend on.
        extras: of protofleet, from wheels; None: Debian's packages have to suffice.
        cpus: content of the kernel's lists of processors. ONNX Runtime ends without the files; its
            1.31 for aarch64 also ends if they name a processor, its 1.21 for armhf if they do not.
    """

    debian: str
    qemu: str
    cpu: str
    elf: int
    packages: tuple[str, ...]
    extras: str | None
    cpus: str


_PYTHON = ("python3", "libstdc++6", "libgomp1", "ca-certificates")
KINDS = {
    "aarch64": Kind(
        debian="arm64",
        qemu="qemu-aarch64-static",
        cpu="cortex-a72",
        elf=183,
        packages=_PYTHON,
        extras="edge,litert",
        cpus="",
    ),
    "armv7l": Kind(
        debian="armhf",
        qemu="qemu-arm-static",
        cpu="cortex-a7",
        elf=40,
        packages=(
            *_PYTHON,
            "libpython3-dev",
            "python3-click",
            "python3-cryptography",
            "python3-numpy",
            "python3-onnxruntime",
            "python3-paho-mqtt",
            "python3-platformdirs",
            "python3-safetensors",
            "python3-threadpoolctl",
        ),
        extras=None,
        cpus="0\n",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """An unpacked userland.

    Attributes:
        kind: its architecture.
        folder: what belongs to it; ``root`` is the userland, ``site`` the Python packages.
        python: the interpreter.
        made: what making it took, and how large it is.
    """

    kind: Kind
    folder: Path
    python: Path
    made: Mapping[str, float]

    def command(self, *arguments: str) -> list[str]:
        """What runs this machine's Python on the host."""
        qemu = _required(self.kind.qemu, "qemu-user-static")
        return [qemu, "-L", str(self.folder / "root"), str(self.python), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """What ``command`` needs."""
        return {
            "QEMU_CPU": self.kind.cpu,
            "PYTHONPATH": str(self.folder / "site"),
            "PYTHONNOUSERSITE": "1",
            "PROTOFLEET_KERNEL_CACHE": str(self.folder / "kernels"),
        }


def open_machine(name: str, release: str, folder: Path) -> Machine:
    """The machine in ``folder``, made if absent; protofleet itself always as in the checkout.

    Raises:
        UnavailableError: the host lacks a program.
        ProtofleetError: a step failed.
    """
    kind = KINDS[name]
    record = folder / "made.json"
    if not record.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        record.write_text(json.dumps(_make(kind, release, folder)))
    _install_protofleet(kind, folder)
    made = json.loads(record.read_text())
    return Machine(kind=kind, folder=folder, python=_python(folder), made=made)


def _make(kind: Kind, release: str, folder: Path) -> dict[str, float]:
    for program, package in (
        ("apt-get", "apt"),
        ("dpkg-deb", "dpkg"),
        (kind.qemu, "qemu-user-static"),
    ):
        _required(program, package)
    started = time.monotonic()
    say(f"Debian {release} for {kind.debian}: {', '.join(kind.packages)} and what they need")
    _unpack(kind, release, folder)
    unpacked = time.monotonic()
    if kind.extras is not None:
        _install_wheels(kind, folder)
    else:
        _build_msgspec(folder)
    return {
        "system_s": unpacked - started,
        "system_mb": _size_mb(folder / "root"),
        "packages_s": time.monotonic() - unpacked,
        "packages_mb": _size_mb(folder / "site"),
    }


def _unpack(kind: Kind, release: str, folder: Path) -> None:
    if not _KEYRING.exists():
        raise UnavailableError(f"{_KEYRING}: missing; sudo apt install debian-archive-keyring")
    apt, root = folder / "apt", folder / "root"
    for made in (apt / "lists/partial", apt / "cache/archives/partial", root / "usr/lib"):
        made.mkdir(parents=True)
    (apt / "status").touch()  # as if nothing were installed
    (apt / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_MIRROR} {release} main\n")
    values = {
        "Dir::State": apt,
        "Dir::State::status": apt / "status",
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "APT::Architecture": kind.debian,
        "APT::Architectures": kind.debian,
        "Debug::NoLocking": 1,
    }
    options = [part for key, value in values.items() for part in ("-o", f"{key}={value}")]
    _step("apt-get", "-q", *options, "update")
    say("downloading and unpacking")
    only = ("-q", "-y", "--no-install-recommends", "--download-only")
    _step("apt-get", *only, *options, "install", *kind.packages)
    (root / "lib").symlink_to("usr/lib")
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        _step("dpkg-deb", "-x", str(package), str(root))
    _finish(kind, root)


def _finish(kind: Kind, root: Path) -> None:
    """What a kernel, and packages' own scripts, would have made."""
    cpus = root / "sys/devices/system/cpu"
    cpus.mkdir(parents=True)
    for name in ("possible", "present"):
        (cpus / name).write_text(kind.cpus)
    for library in ("blas/libblas.so.3", "lapack/liblapack.so.3"):
        for found in root.glob(f"usr/lib/*/{library}"):
            (found.parent.parent / found.name).symlink_to(found.relative_to(found.parent.parent))


def _install_wheels(kind: Kind, folder: Path) -> None:
    with_extras = f"{_wheel(folder)}[{kind.extras}]"
    say(f"wheels for {kind.debian} of protofleet[{kind.extras}], none built here")
    constraints = ("-c", str(ROOT / "constraints.txt"))
    _pip_install(folder, *_for(folder), *constraints, with_extras)
    foreign = _foreign_libraries(kind, folder / "site")
    if foreign:
        raise ProtofleetError(f"not a library for {kind.debian}: {', '.join(foreign)}")


def _for(folder: Path) -> list[str]:
    """Options of pip for the machine's Python; a wheel may name any of these ages of glibc."""
    version = _python_version(folder)
    tags = ["manylinux2014_aarch64"]
    tags += [f"manylinux_2_{minor}_aarch64" for minor in (17, 26, 27, 28)]
    platforms = [part for tag in tags for part in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation=cp", "--python-version", version, *platforms]


def _install_protofleet(kind: Kind, folder: Path) -> None:
    version = ["--python-version", _python_version(folder), "--only-binary=:all:"]
    _pip_install(folder, "--no-deps", "--upgrade", *version, str(_wheel(folder)))
    say(f"protofleet of this checkout on {kind.debian}")


def _wheel(folder: Path) -> Path:
    """Protofleet as a wheel; built in a copy, because setuptools leaves files where it builds."""
    for old in folder.glob("protofleet-*.whl"):
        old.unlink()
    shutil.rmtree(folder / "source", ignore_errors=True)
    ignored = shutil.ignore_patterns(*_NOT_SOURCE)
    shutil.copytree(ROOT, folder / "source", ignore=ignored, symlinks=True)
    _step(*_PIP, "wheel", "-q", "--no-deps", "-w", str(folder), str(folder / "source"))
    (wheel,) = folder.glob("protofleet-*.whl")
    return wheel


def _build_msgspec(folder: Path) -> None:
    """The one requirement that Debian does not have and whose wheels leave 32 bits out."""
    compiler = _required("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf")
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    wanted = next(line for line in pinned if line.startswith("msgspec=="))
    say(f"compiling {wanted}")
    download = ("download", "-q", "--no-deps", "--no-binary=:all:", "-d", str(folder))
    _step(*_PIP, *download, wanted)
    (archive,) = folder.glob("msgspec-*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz") / "src/msgspec"
    target = folder / "site/msgspec"
    shutil.copytree(source, target)
    headers = folder / "root/usr/include"
    include = ("-isystem", str(headers / f"python{_python_version(folder)}"))
    library = target / "_core.so"
    compile_ = (compiler, "-O2", "-shared", "-fPIC", *include, "-idirafter", str(headers))
    _step(*compile_, "-o", str(library), str(source / "_core.c"))


_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def _pip_install(folder: Path, *arguments: str) -> None:
    # Compiled by the host's Python, the files would be of no use to the machine's.
    _step(*_PIP, "install", "-q", "--no-compile", "--target", str(folder / "site"), *arguments)


def _python_version(folder: Path) -> str:
    return _python(folder).name.removeprefix("python")


def _python(folder: Path) -> Path:
    (found,) = folder.glob("root/usr/bin/python3.*[0-9]")
    return found


def _foreign_libraries(kind: Kind, site: Path) -> list[str]:
    return [
        path.name
        for path in site.rglob("*.so*")
        if struct.unpack_from("<H", path.read_bytes()[:20], 18)[0] != kind.elf
    ]


def _size_mb(folder: Path) -> float:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


def _required(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise UnavailableError(f"{program}: not found; sudo apt install {package}")
    return found


def _step(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode:
        shown = " ".join([Path(command[0]).name, *command[1:3]])
        raise ProtofleetError(f"'{shown} …' failed:\n{(done.stderr or done.stdout)[-2000:]}")


def say(line: str) -> None:
    """A line of progress, on stderr."""
    print(f"-- {line}", file=sys.stderr, flush=True)


def output(machine: Machine, code: str) -> str:
    """What Python code prints on the machine."""
    done = subprocess.run(
        machine.command("-c", code),
        env={**os.environ, **machine.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ProtofleetError(f"Python on the machine: {done.stderr[-2000:]}")
    return done.stdout
