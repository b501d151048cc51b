from __future__ import annotations

import os
import stat

import pytest

from protofleet.durable import replace_whole, write_whole
from protofleet.errors import InputError
from protofleet.private_files import (
    check_private_folder,
    check_secret_file,
    make_private_folder,
    opener,
    refuse_links,
    who_else_writes,
)

_ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
_NOBODY = 65534


def _mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    """Under each of these modes come out the same."""
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_folders_and_files_are_made_for_their_user_alone(tmp_path):
    folder = tmp_path / "above" / "store"
    make_private_folder(folder, "device store")
    write_whole(folder / "a", b"x")
    replace_whole(folder / "b", b"x")
    assert (_mode(folder), _mode(folder / "a"), _mode(folder / "b")) == (0o700, 0o600, 0o600)


def test_what_is_shared_has_the_mode_of_any_file(tmp_path):
    replace_whole(tmp_path / "page.html", b"x", shared=True)
    assert _mode(tmp_path / "page.html") == 0o666 & ~_umask()


def _umask():
    found = os.umask(0)
    os.umask(found)
    return found


def test_an_empty_open_folder_is_closed_a_full_one_is_refused(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    make_private_folder(folder, "run folder")
    assert _mode(folder) == 0o700
    (folder / "ledger").touch()
    for mode in (0o750, 0o701):
        folder.chmod(mode)
        with pytest.raises(InputError, match=rf"mode {mode:o}; .*: chmod 700 .*run$"):
            make_private_folder(folder, "run folder")
    folder.chmod(0o700)
    make_private_folder(folder, "run folder")


@_ROOT_ONLY
def test_what_belongs_to_another_user_is_refused(tmp_path):
    os.chown(tmp_path, _NOBODY, _NOBODY)
    with pytest.raises(InputError, match=r"belongs to user nobody, .* sudo chown -R root"):
        check_private_folder(tmp_path, "device store")
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    os.chown(secret, _NOBODY, _NOBODY)
    with pytest.raises(InputError, match="expected one of your own: sudo chown root"):
        check_secret_file(secret, "password_file")
    assert "belongs to user nobody" in who_else_writes(secret)


def test_a_secret_that_others_may_read_is_refused(tmp_path):
    secret = tmp_path / "key.pem"
    secret.touch(mode=0o600)
    check_secret_file(secret, "key_file")
    link = tmp_path / "link"
    link.symlink_to(secret)
    for mode in (0o640, 0o604):
        secret.chmod(mode)
        with pytest.raises(InputError, match="other users may read it; run: chmod 600"):
            check_secret_file(link, "key_file")


def test_folders_above_and_targets_of_links_count_too(tmp_path):
    file = tmp_path / "open" / "inner" / "a.o"
    file.parent.mkdir(parents=True)
    file.touch(mode=0o644)
    link = tmp_path / "cache"
    link.symlink_to(file.parent)
    assert who_else_writes(link / "a.o") == ""
    (tmp_path / "open").chmod(0o777)
    assert "chmod go-w" in who_else_writes(file)
    assert str(tmp_path / "open") in who_else_writes(link / "a.o")
    (tmp_path / "open").chmod(0o1777)  # sticky: nobody else renames what is ours
    assert who_else_writes(link / "a.o") == ""
    file.chmod(0o666)
    assert "a.o' (mode 666)" in who_else_writes(file)


def test_links_that_lead_in_circles_end(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="too many links"):
        who_else_writes(tmp_path / "a")


def test_a_link_in_a_folder_that_is_written_to_is_refused_however_deep(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (folder / "payloads").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("mine")
    refuse_links(folder, "run folder")
    for name in ("references", "events.jsonl", "payloads/a"):
        (folder / name).symlink_to(elsewhere)
        with pytest.raises(InputError, match=rf"run folder '.*': '{name}' is a link .* rm /"):
            refuse_links(folder, "run folder")
        (folder / name).unlink()
    (tmp_path / "moved").symlink_to(folder)
    refuse_links(tmp_path / "moved", "run folder")


def test_no_private_file_is_opened_through_a_link(tmp_path):
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "counters.bin").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="symbolic links"):
        opener(str(tmp_path / "counters.bin"), os.O_CREAT | os.O_RDWR)
    assert (tmp_path / "kept").read_text() == "mine"
