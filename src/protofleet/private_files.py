"""Who may read and change a file: folders for one user, secrets, and files that decide what runs.

Everything is made with its mode, whatever the umask; what is there already is checked.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from protofleet.errors import InputError

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40  # as many as the kernel follows


def opener(path: str, flags: int) -> int:
    """For ``open(…, opener=opener)``: a file that is made is its user's alone; no link is followed.

    Raises:
        OSError: ``path`` is a link, or cannot be opened.
    """
    return os.open(path, flags | os.O_NOFOLLOW, PRIVATE_FILE)


def make_private_file(path: Path) -> None:
    """Make an empty file for this user alone, unless there is one."""
    os.close(opener(str(path), os.O_CREAT))


def make_private_folder(folder: Path, what: str) -> None:
    """Make ``folder`` for this user alone; one that is there must be so, or empty.

    Args:
        folder: made with mode 0700, its parents as usual. An empty folder of this user gets it.
        what: names it in a message.

    Raises:
        InputError: another user owns it, or others may read what is in it.
        OSError: it cannot be made.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & _OTHERS and not any(folder.iterdir()):
        folder.chmod(PRIVATE_FOLDER)
    check_private_folder(folder, what)


def check_private_folder(folder: Path, what: str) -> None:
    """Raise InputError if another user owns ``folder``, or others may read or change what is in it.

    Args:
        folder: exists.
        what: names it in a message.
    """
    found, me = folder.stat(), os.geteuid()
    quoted = shlex.quote(str(folder))
    if found.st_uid != me:
        raise InputError(
            f"{what} '{folder}': belongs to user {_user(found.st_uid)}, this process runs as "
            f"{_user(me)}; run as that user, or: sudo chown -R {_user(me)} {quoted}"
        )
    if found.st_mode & _OTHERS:
        raise InputError(
            f"{what} '{folder}': expected a folder for its user only (mode 700), got mode "
            f"{stat.S_IMODE(found.st_mode):o}; if you trust what is in it: chmod 700 {quoted}"
        )


def refuse_links(folder: Path, what: str) -> None:
    """Raise InputError if anything in ``folder``, however deep, is a link.

    What is written there or cleared away would be elsewhere.

    Args:
        folder: exists; may be a link itself, as when it was moved to a larger disk.
        what: names it in a message.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                raise InputError(
                    f"{what} '{folder}': '{path.relative_to(folder)}' is a link to "
                    f"'{path.readlink()}', where files would be written and removed; put what is "
                    f"meant there itself, or remove the link: rm {shlex.quote(str(path))}"
                )


def check_secret_file(path: Path, what: str) -> None:
    """Raise InputError if others than this user and root may read or change ``path``.

    Args:
        path: exists; a link counts as what it leads to.
        what: names it in a message.
    """
    found = path.stat()
    if found.st_uid not in _trusted_users():
        raise InputError(
            f"{what} '{path}': belongs to user {_user(found.st_uid)}; expected one of your own: "
            f"sudo chown {_user(os.geteuid())} {shlex.quote(str(path))}"
        )
    if found.st_mode & _OTHERS:
        raise InputError(
            f"{what} '{path}': other users may read it; run: chmod 600 {shlex.quote(str(path))}"
        )


def who_else_writes(path: Path) -> str:
    """Why somebody else than this user and root may change what ``path`` leads to; '' if nobody.

    The file or folder, every link on the way and every folder above are looked at: above the home
    folder only what lies outside of it. A folder in which everyone may make files counts if it is
    sticky, as /tmp is.

    Raises:
        OSError: there is nothing, or it cannot be looked at.
    """
    return next((reason for reason in map(_reason, _way(path)) if reason), "")


def _way(path: Path, links: int = 0) -> Iterator[Path]:
    """The path, the folders above it, and those of what its links lead to."""
    if links > _MAX_LINKS:
        raise OSError(f"'{path}': too many links")
    home = _home()
    whole = Path(os.path.normpath(path.absolute()))
    for part in (whole, *whole.parents):
        yield part
        if part.is_symlink():
            yield from _way(part.parent / part.readlink(), links + 1)
        if part == home:
            return


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a user without one
        return None


def _reason(path: Path) -> str:
    found = path.lstat()
    if found.st_uid not in _trusted_users():
        return f"'{path}' belongs to user {_user(found.st_uid)}"
    if stat.S_ISLNK(found.st_mode):
        return ""
    shared = found.st_mode & _OTHERS_WRITE
    if shared == stat.S_IWGRP and _is_own_group(found.st_gid):
        return ""
    if not shared or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return ""
    return (
        f"others may change '{path}' (mode {stat.S_IMODE(found.st_mode):o}); "
        f"run: chmod go-w {shlex.quote(str(path))}"
    )


def _trusted_users() -> set[int]:
    return {0, os.geteuid()}


def _is_own_group(gid: int) -> bool:
    """Whether a group is this user's own, with nobody else in it, as many systems make them."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
