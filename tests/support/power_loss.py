"""What a power cut leaves of a folder, at every point of what a program did with its files.

``record`` runs a program under strace and reads its calls. ``cuts`` plays them on two disks that
forget what was not synced: *strict*, which also forgets names that were made, moved or removed in a
folder that was not synced, as POSIX allows, and *eager*, which keeps every name at once but of a
file what it held when it was synced last, which makes a rename before its fsync an empty file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_CALLS = (
    "openat,open,creat,close,write,pwrite64,writev,pwritev,lseek,ftruncate,fallocate,fsync,fdatasync,"
    "rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,sendfile,"
    "copy_file_range,dup,dup2,dup3"
)
_MARK = "MARK "
_LINE = re.compile(r"^(?P<pid>\d+) +(?P<rest>.*)$")
_CALL = re.compile(r"^(?P<name>\w+)\((?P<args>.*)\) += (?P<result>-?\d+)(?: .*)?$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


@dataclass(frozen=True, slots=True)
class Call:
    """One that has ended: numbers and texts among its arguments, and what it returned."""

    name: str
    args: tuple[int | bytes | str, ...]
    result: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut.

    Attributes:
        place: the call before which it comes.
        disk: ``strict`` or ``eager``.
        marks: what the program had promised by then.
        folder: what is left.
    """

    place: str
    disk: str
    marks: tuple[str, ...]
    folder: Path


_PROGRAM = """
import os, runpy, sys
from pathlib import Path
def mark(text):
    os.write(2, (sys.argv[3] + text).encode())
runpy.run_path(sys.argv[1])["work"](Path(sys.argv[2]), mark)
"""


def record(test: str, folder: Path, scratch: Path) -> list[Call]:
    """The calls of ``work(folder, mark)`` of a test's file, whose ``mark(text)`` is a promise."""
    tool = shutil.which("strace")
    if tool is None:
        pytest.skip("strace is not installed")
    log = scratch / "calls"
    options = ["-f", "--seccomp-bpf", "-qq", "-xx", "-s", "99999999", "-e", f"trace={_CALLS}"]
    program = [sys.executable, "-B", "-c", _PROGRAM, test, folder, _MARK]
    done = subprocess.run(
        [tool, *options, "-o", log, *program],
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    if done.returncode and b"ptrace" in done.stderr:
        pytest.skip("no process can be traced here")
    assert done.returncode == 0, done.stderr.decode()
    return list(_calls(log.read_text().splitlines()))


def _calls(lines: Sequence[str]) -> Iterator[Call]:
    begun: dict[str, str] = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        pid, rest = found["pid"], found["rest"]
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>")
            continue
        if rest.startswith("<..."):
            rest = begun.pop(pid, "") + rest.partition("resumed>")[2]
        call = _CALL.match(rest)
        if call is not None:
            yield Call(call["name"], _arguments(call["args"]), int(call["result"]))


def _arguments(text: str) -> tuple[int | bytes | str, ...]:
    """Strings as bytes, numbers as such, and flags as text."""
    found: list[int | bytes | str] = []
    texts: list[bytes] = []

    def keep(match: re.Match[str]) -> str:
        assert match[2] is None, "a text of strace is cut off"
        texts.append(bytes.fromhex(match[1].replace("\\x", "")))
        return f"@{len(texts) - 1}@"

    for part in re.split(r" *, *", _STRING.sub(keep, text).strip()):
        held = re.search(r"@(\d+)@", part)
        if held is not None:
            found.append(texts[int(held[1])])
        elif re.fullmatch(r"-?\d+", part):
            found.append(int(part))
        else:
            found.append(part)
    return tuple(found)


@dataclass(slots=True)
class _File:
    """Its bytes, and those that a sync has made durable."""

    now: bytearray = field(default_factory=bytearray)
    kept: bytes = b""


@dataclass(slots=True)
class _Open:
    """A descriptor: of a file, or of a folder."""

    path: str
    file: _File | None
    at: int = 0
    appends: bool = False


class _Disk:
    """The folder as the program sees it, and as the two disks would have it."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.names: dict[str, _File | None] = {self.root: None}
        self.durable: dict[str, _File | None] = {self.root: None}
        self.open: dict[int, _Open] = {}
        self.foreign: dict[int, str] = {}
        self.marks: list[str] = []

    def play(self, call: Call) -> bool:
        """Do what the program did; whether that is one of the points worth a cut."""
        act = getattr(self, f"_{call.name}", None)
        if call.result < 0 or act is None:
            return False
        return bool(act(call.args, call.result))

    def _paths(self, args) -> list[str | None]:
        """Those among the arguments, whole; None: outside of the folder."""
        found = []
        for place, one in enumerate(args):
            if isinstance(one, bytes):
                name, beside = one.decode(), args[place - 1] if place else None
                if not name.startswith("/") and isinstance(beside, int):
                    of = self.open[beside].path if beside in self.open else self.foreign[beside]
                    name = f"{of}/{name}"
                ours = name == self.root or name.startswith(self.root + "/")
                found.append(name if ours else None)
        return found

    def _openat(self, args, result):
        flags, (name,) = str(args[2]), self._paths(args)
        self.open.pop(result, None)
        self.foreign.pop(result, None)
        if name is None:
            self.foreign[result] = args[1].decode()
            return False
        if name in self.names and self.names[name] is None:
            self.open[result] = _Open(name, None)
            return False
        file = self.names.get(name)
        made = file is None
        if file is None:
            file = self.names[name] = _File()
        if "O_TRUNC" in flags:
            file.now.clear()
        self.open[result] = _Open(name, file, appends="O_APPEND" in flags)
        return made

    def _close(self, args, _result):
        self.open.pop(args[0], None)
        self.foreign.pop(args[0], None)
        return False

    def _dup(self, args, result):
        if args[0] in self.open:
            self.open[result] = self.open[args[0]]
        return False

    def _lseek(self, args, result):
        if args[0] in self.open:
            self.open[args[0]].at = result
        return False

    def _put(self, number, at, data):
        one = self.open.get(number)
        if one is None or one.file is None:
            return None
        if at is None:
            at = len(one.file.now) if one.appends else one.at
            one.at = at + len(data)
        content = one.file.now
        if len(content) < at:
            content.extend(bytes(at - len(content)))
        content[at : at + len(data)] = data
        return True

    def _write(self, args, result):
        if args[0] == 2 and args[1].startswith(_MARK.encode()):
            self.marks.append(args[1].decode().removeprefix(_MARK))
            return False
        return self._put(args[0], None, args[1][:result])

    def _pwrite64(self, args, result):
        return self._put(args[0], args[3], args[1][:result])

    def _writev(self, args, _result):
        data = b"".join(one for one in args if isinstance(one, bytes))
        return self._put(args[0], None, data)

    def _sendfile(self, args, result):
        return self._copied(args[0], args[1], result)

    def _copy_file_range(self, args, result):
        return self._copied(args[2], args[0], result)

    def _copied(self, target, source, count):
        if target not in self.open:
            return False
        assert source in self.foreign, "copied from within the folder"
        at = self.open[target].at
        data = Path(self.foreign[source]).read_bytes()[at : at + count]
        return self._put(target, None, data)

    def _ftruncate(self, args, _result):
        one = self.open.get(args[0])
        if one is None or one.file is None:
            return False
        size, content = args[1], one.file.now
        del content[size:]
        content.extend(bytes(size - len(content)))
        return True

    def _fsync(self, args, _result):
        one = self.open.get(args[0])
        if one is None:
            return False
        if one.file is not None:
            one.file.kept = bytes(one.file.now)
            return True
        inside = {name for name in {*self.names, *self.durable} if _parent(name) == one.path}
        for name in inside:
            if name in self.names:
                self.durable[name] = self.names[name]
            else:
                self.durable.pop(name)
        return True

    _fdatasync = _fsync

    def _rename(self, args, _result):
        source, target = self._paths(args)
        if source is None and target is None:
            return False
        assert source is not None, f"a rename into the folder: {args}"
        assert target is not None, f"a rename out of the folder: {args}"
        moved = {
            name: target + name.removeprefix(source)
            for name in self.names
            if name == source or name.startswith(source + "/")
        }
        for old, new in moved.items():
            self.names[new] = self.names.pop(old)
        return True

    _renameat = _renameat2 = _rename

    def _unlink(self, args, _result):
        (name,) = self._paths(args)
        return name is not None and self.names.pop(name, False) is not False

    _unlinkat = _rmdir = _unlink

    def _mkdir(self, args, _result):
        (name,) = self._paths(args)
        if name is not None:
            self.names[name] = None
        return name is not None

    _mkdirat = _mkdir

    def left(self, *, eager: bool) -> dict[str, bytes | None]:
        """By name within the folder what a cut would leave; None: a folder."""
        names = self.names if eager else self.durable
        found: dict[str, bytes | None] = {}
        for name in sorted(names):
            inner, file = name.removeprefix(self.root).removeprefix("/"), names[name]
            # Where a folder's name is lost all that is inside is lost with it.
            if inner and (_parent(inner) in found or not _parent(inner)):
                found[inner] = None if file is None else file.kept
        return found


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def cuts(calls: Sequence[Call], root: Path, scratch: Path) -> Iterator[Cut]:
    """What each disk has left at every point where that changes, or something was promised.

    The folder is there until the next one.
    """
    disk, before = _Disk(root), {}
    for number, call in enumerate(calls):
        if not disk.play(call):
            continue
        for name in ("strict", "eager"):
            left, marks = disk.left(eager=name == "eager"), tuple(disk.marks)
            if before.get(name) == (left, marks):
                continue
            before[name] = left, marks
            folder = scratch / name
            _lay(left, folder)
            yield Cut(f"behind call {number}, {call.name}", name, marks, folder)


def _lay(left: Mapping[str, bytes | None], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(mode=0o700)
    for name, content in left.items():
        if content is None:
            (folder / name).mkdir(mode=0o700)
        else:
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600)
