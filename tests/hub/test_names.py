from __future__ import annotations

import pytest

from protofleet.hub.names import Names, is_same_origin

_NAMES = Names(["Pi.local", "fleet.example.org.", "*.hub.example.org"])


@pytest.mark.parametrize(
    "host",
    [
        "pi.local",
        "PI.LOCAL:8443",
        "fleet.example.org",
        "a.hub.example.org:443",
        "192.168.1.5",
        "192.168.1.5:8443",
        "[fe80::1]:8443",
        "[::1]",
        "pi.local.",
    ],
)
def test_names_that_were_given_and_addresses_count(host):
    assert _NAMES.know(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8443",
        "evil.example",
        "pi.local.evil.example",
        "hub.example.org",
        "a.b.hub.example.org",
        "192.168.1.5.evil.example",
        "pi.local@evil.example",
        "[::1",
        "evil.example#pi.local",
    ],
)
def test_other_names_do_not(host):
    """A name of somebody else's may point to the hub's address."""
    assert not _NAMES.know(host)


def test_a_page_is_the_hub_s_own_by_name_and_port():
    assert is_same_origin("https://pi.local:8443", "PI.local:8443")
    assert not is_same_origin("https://pi.local:8444", "pi.local:8443")
    assert not is_same_origin("null", "pi.local:8443")
    assert not is_same_origin("http://[", "pi.local:8443")
    assert not is_same_origin("https://pi.local:8443.evil.example", "pi.local:8443")
