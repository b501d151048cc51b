"""The pages of the site that are made of the code (``scripts/docs``)."""

from __future__ import annotations

import re
import sys

import click
import pytest
from doc_blocks import ROOT

from protofleet.cli.main import _root


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    """A script's folder is where its modules are looked for."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "scripts")):
            del sys.modules[name]


def test_every_key_of_every_file_is_explained():
    from settings import settings_page  # noqa: PLC0415 - from the script's folder

    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.*) \| (.*) \|$", settings_page(), re.MULTILINE)
    assert ["deadline_s", "number", "`600.0`"] in [list(row[:3]) for row in rows]
    assert [name for name, *_, meaning in rows if not meaning] == []
    (key_file,) = {meaning for name, *_, meaning in rows if name == "key_file"}
    assert key_file == "for `mqtts`: our own certificate and its key, where the broker asks."


def test_every_command_has_its_place():
    from commands import commands_page  # noqa: PLC0415 - as above

    page = commands_page()
    context = click.Context(_root, info_name="protofleet")
    for name in _root.list_commands(context):
        assert f"\n## protofleet {name}\n" in page
    assert "\n#### protofleet broker account add\n" in page


def test_links_lead_to_pages_of_the_site_or_become_text(tmp_path):
    from links import relink  # noqa: PLC0415 - as above

    (tmp_path / "docs").mkdir()
    for name in ("docs/b.md", "program.py", "CHANGES.md"):
        (tmp_path / name).touch()
    page = tmp_path / "docs" / "a.md"
    (tmp_path / "docs" / "results").mkdir()
    inner = tmp_path / "docs" / "results" / "c.md"
    inner.write_text("[b](../b.md#x) [changes](../../CHANGES.md)")
    page.write_text(
        "[c](results/c.md) [b](b.md#x) [changes](../CHANGES.md) [code](../program.py) "
        "[gone](../gone.md)\n"
        "```text\n[b](../CHANGES.md)\n```\n"
    )
    pages = {tmp_path / "docs" / "b.md": "b.md", tmp_path / "CHANGES.md": "changes.md"}
    pages |= {page: "a.md", inner: "results/c.md"}
    assert relink(inner, pages, tmp_path) == "[b](../b.md#x) [changes](../changes.md)"
    assert relink(page, pages, tmp_path) == (
        "[c](results/c.md) [b](b.md#x) [changes](changes.md) code [gone](../gone.md)\n"
        "```text\n[b](../CHANGES.md)\n```\n"
    )
