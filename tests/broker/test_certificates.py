from __future__ import annotations

import shutil
import subprocess

import pytest

from protofleet.broker.certificates import (
    Certificate,
    hosts_of,
    make_authority,
    make_server,
    own_hosts,
    valid_until,
)
from protofleet.errors import InputError


def test_a_server_is_certified_for_names_and_addresses(tmp_path):
    authority = make_authority("test")
    server = make_server(authority, ["broker.example", "192.0.2.7", "::1", "broker.example"])
    assert hosts_of(server.certificate) == ["broker.example", "192.0.2.7", "::1"]
    assert valid_until(server.certificate) < valid_until(authority.certificate)
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to look at the chain with other eyes")
    (tmp_path / "ca").write_bytes(authority.certificate)
    (tmp_path / "server").write_bytes(server.certificate)
    strict = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca"]
    for host in (["-verify_hostname", "broker.example"], ["-verify_ip", "192.0.2.7"]):
        subprocess.run([*strict, *host, "server"], cwd=tmp_path, check=True)


def test_this_machine_is_reached_by_its_own_names():
    assert {"localhost", "127.0.0.1", "::1"} <= set(own_hosts())


@pytest.mark.parametrize(
    ("hosts", "told"), [([], "at least one name"), (["a..b"], "expected a name or an IP address")]
)
def test_hosts_that_no_certificate_can_name_are_refused(hosts, told):
    with pytest.raises(InputError, match=told):
        make_server(make_authority("test"), hosts)


def test_an_authority_that_cannot_be_read_is_named():
    authority = make_authority("test")
    with pytest.raises(InputError, match=r"ca\.pem, ca\.key"):
        make_server(Certificate(authority.certificate, b"no key"), ["a"])
