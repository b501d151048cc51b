from __future__ import annotations

import socket
import ssl
import threading
import warnings

import pytest

from protofleet.broker.certificates import make_authority, make_server
from protofleet.broker.probe import BrokerPlace, BrokerProbe, Credential, speaks_old_tls
from protofleet.wire.mqtt.broker_access import BrokerAccess


@pytest.fixture
def old_server(tmp_path):
    """Accepts one connection with TLS 1.0 or 1.1; its port, or a skip where OpenSSL has neither."""
    made = make_server(make_authority("test"), ["127.0.0.1"])
    (tmp_path / "both.pem").write_bytes(made.certificate + made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
    except (ssl.SSLError, ValueError):
        pytest.skip("OpenSSL has no TLS below 1.2")
    context.load_cert_chain(tmp_path / "both.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server, context), daemon=True).start()
        yield server.getsockname()[1]


def _serve(server, context):
    connection, _ = server.accept()
    with context.wrap_socket(connection, server_side=True) as secured:
        secured.recv(1)


def test_a_server_of_old_tls_is_noticed(old_server):
    assert speaks_old_tls("127.0.0.1", old_server) == "TLSv1.1"


def test_new_tls_alone_is_no_old_tls(secured_broker):
    assert speaks_old_tls("127.0.0.1", secured_broker.folder.listener()[1]) in ("", None)


def test_the_newest_version_that_is_answered_is_found(secured_broker):
    version = "3.1.1" if "amqtt" in secured_broker.broker.name else "5"
    url = secured_broker.broker.url.partition("?")[0]  # which would say it
    access = BrokerAccess(url=url, ca_file=secured_broker.folder.ca)
    assert BrokerPlace.find(access.address(), access.tls()).version == version


def test_a_socket_that_says_nothing_is_no_broker():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with BrokerProbe(BrokerPlace(host="127.0.0.1", port=port, tls=None), Credential()) as probe:
            assert (probe.answered, probe.refused) == (False, "no answer")
    with BrokerProbe(BrokerPlace(host="127.0.0.1", port=port, tls=None), Credential()) as probe:
        assert probe.refused == "Connection refused"
