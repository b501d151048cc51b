"""The help has every command in one section."""

from collections import Counter

import click
import pytest

from protofleet.cli.bundle import _SECTIONS as BUNDLE
from protofleet.cli.bundle import bundle
from protofleet.cli.device import _SECTIONS as DEVICE
from protofleet.cli.device import device
from protofleet.cli.main import _SECTIONS as ROOT
from protofleet.cli.main import _root


@pytest.mark.parametrize(("group", "sections"), [(_root, ROOT), (device, DEVICE), (bundle, BUNDLE)])
def test_each_command_stands_in_one_section(group, sections):
    context = click.Context(group)
    placed = Counter(name for names in sections.values() for name in names)
    assert placed == Counter(group.list_commands(context))
    text = group.get_help(context)
    assert [title for title in sections if f"\n{title}:\n" not in text] == []
