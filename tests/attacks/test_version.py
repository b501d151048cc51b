from __future__ import annotations

import pytest
from attacks.hostile import assert_refused


@pytest.mark.parametrize("version", [0, 2, -1, 10**30])
def test_a_bundle_of_another_format_is_refused(forge, version):
    forge.manifest["format"] = version
    assert_refused("version", *forge.both(), match="reads format 1")


def test_the_version_is_looked_at_before_fields_that_it_may_have_changed(forge):
    """A newer format may name its fields otherwise; the reason given is still the version."""
    forge.manifest = {"format": 2}
    assert_refused("version", *forge.both())
