from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from certificates import Authority

from protofleet.errors import InputError
from protofleet.wire.mqtt.broker_access import BrokerAccess, BrokerAddress, broker_as_table

_PASSWORD = "p:q"  # noqa: S105 - what the URL says


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://h", BrokerAddress(host="h", port=1883, tls=False, user=None, password=None)),
        ("mqtts://h", BrokerAddress(host="h", port=8883, tls=True, user=None, password=None)),
        (
            "mqtts://a%40b:p%3Aq@h:1/?version=3.1.1",
            BrokerAddress(
                host="h", port=1, tls=True, user="a@b", password=_PASSWORD, version="3.1.1"
            ),
        ),
    ],
)
def test_a_url_says_where_and_who(url, address):
    assert BrokerAccess(url=url).address() == address


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://x", "mqtt://", "mqtt://h:99999", "mqtt://h/path", "mqtt://h?v=3"],
)
def test_what_is_no_broker_url_is_refused(url):
    with pytest.raises(InputError, match="broker URL"):
        BrokerAccess(url=url)


def test_a_password_is_neither_in_a_message_nor_in_text():
    with pytest.raises(InputError) as refused:
        BrokerAccess(url="http://user:secret@host")
    assert "secret" not in str(refused.value)
    access = BrokerAccess(url="mqtts://user:secret@host:1")
    assert (str(access), f"{access!r}") == ("mqtts://host:1", "BrokerAccess(mqtts://host:1)")
    with pytest.raises(InputError) as refused:
        BrokerAccess(url="mqtt://user:secret@host", ca_file=Path("ca.pem"))
    assert str(refused.value) == "broker mqtt://host: ca_file needs mqtts://"


def test_a_password_file_and_a_user_stand_beside_the_url(tmp_path):
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("se cret\n")
    for access in (
        BrokerAccess(url="mqtt://anna@h", password_file=file),
        BrokerAccess(url="mqtt://h", user="anna", password_file=file),
    ):
        assert (access.address().user, access.address().password) == ("anna", "se cret")
    with pytest.raises(InputError, match="password_file"):
        BrokerAccess(url="mqtt://h", user="anna", password_file=tmp_path / "absent").address()


@pytest.mark.parametrize(
    ("url", "beside", "message"),
    [
        ("mqtt://h", {"cert_file": Path("c.pem")}, "cert_file needs mqtts"),
        ("mqtts://h", {"key_file": Path("k.pem")}, "key_file needs cert_file"),
        ("mqtt://a@h", {"user": "b"}, "expected one user"),
        ("mqtt://a:b@h", {"password_file": Path("p")}, "not both"),
        ("mqtt://h", {"password_file": Path("p")}, "needs a user"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(url, beside, message):
    with pytest.raises(InputError, match=message):
        BrokerAccess(url=url, **beside)
    with pytest.raises(InputError, match=message):
        msgspec.structs.replace(BrokerAccess(url=url), **beside)


def test_a_file_may_say_just_the_url():
    table = {"broker": {"url": "mqtt://h"}, "rounds": 3}
    assert broker_as_table({"broker": "mqtt://h", "rounds": 3}) == table
    assert broker_as_table(table) == table
    assert broker_as_table({}) == {}


def test_what_is_written_is_what_was_read_with_paths_that_hold_anywhere(tmp_path):
    access = BrokerAccess(url="mqtts://h", ca_file=Path("ca.pem")).under(tmp_path)
    table = {"url": "mqtts://h", "ca_file": str(tmp_path / "ca.pem")}
    assert access.to_table() == table
    assert msgspec.convert(table, BrokerAccess, dec_hook=lambda kind, value: kind(value)) == access


def test_tls_is_made_from_the_files_and_only_for_mqtts(tmp_path):
    authority = Authority(tmp_path)
    ours = authority.certify("pi-7")
    access = BrokerAccess(
        url="mqtts://h", ca_file=authority.file, cert_file=ours.file, key_file=ours.key
    )
    assert len(access.tls().get_ca_certs()) == 1
    assert BrokerAccess(url="mqtt://h").tls() is None
    with pytest.raises(InputError, match="certificate files for mqtts://h"):
        BrokerAccess(url="mqtts://u:p@h", ca_file=tmp_path / "absent.pem").tls()


@pytest.mark.parametrize(
    "url",
    ["mqtt://u:qz/jw@h", "mqtt://u:qz#jw@h", "mqtt://u:qz?jw@h", "mqtts://u:qzjw@h:x"],
)
def test_a_url_that_cannot_be_read_shows_no_part_of_its_password(url):
    with pytest.raises(InputError, match="broker URL") as refused:
        BrokerAccess(url=url)
    assert refused.value.__cause__ is None
    told = str(refused.value)
    assert "qz" not in told
    assert "jw" not in told


def test_the_password_may_stand_in_the_environment(monkeypatch):
    monkeypatch.setenv("PROTOFLEET_BROKER_PASSWORD", "hidden")
    urls = ("mqtts://anna@h", "mqtts://anna:own@h", "mqtts://h")
    found = [BrokerAccess(url=url).address().password for url in urls]
    assert found == ["hidden", "own", None]
    assert "hidden" not in repr(BrokerAccess(url="mqtts://anna@h").address())


def test_a_url_gives_its_password_away_and_keeps_the_rest():
    access = BrokerAccess(url="mqtts://a%40b:p%3Aq@h:1/?version=5", ca_file=Path("ca.pem"))
    bare, password = access.split_password()
    assert (bare.url, bare.ca_file, password) == (
        "mqtts://a%40b@h:1/?version=5",
        Path("ca.pem"),
        _PASSWORD,
    )
    assert bare.split_password() == (bare, None)


@pytest.mark.parametrize("url", ["mqtt://h", "mqtt://10.0.0.1:1", "mqtt://127.0.0.1.example"])
def test_another_machine_without_tls_needs_a_word(url, caplog):
    with pytest.raises(InputError, match=r"everyone on the way reads .* mqtts:// .*--insecure"):
        BrokerAccess(url=url).check_protected()
    BrokerAccess(url=url, insecure=True).check_protected()
    assert "everyone on the way reads passwords" in caplog.text


@pytest.mark.parametrize(
    "url", ["mqtts://h", "mqtt://127.0.0.1", "mqtt://localhost:1", "mqtt://[::1]:7"]
)
def test_tls_or_this_machine_needs_none(url, caplog):
    BrokerAccess(url=url).check_protected()
    assert not caplog.records


def test_a_file_may_say_insecure_beside_the_broker():
    table = {"broker": {"url": "mqtt://h", "insecure": True}}
    assert broker_as_table({"broker": "mqtt://h", "insecure": True}) == table
    assert broker_as_table({"broker": {"url": "mqtt://h"}, "insecure": True}) == table


def test_secrets_that_others_may_read_are_refused(tmp_path):
    ours = Authority(tmp_path).certify("pi-7")
    ours.key.chmod(0o644)
    with pytest.raises(InputError, match=r"key_file .*: chmod 600"):
        BrokerAccess(url="mqtts://h", cert_file=ours.file, key_file=ours.key).tls()
    password = tmp_path / "password"
    password.touch(mode=0o644)
    with pytest.raises(InputError, match=r"password_file .*: chmod 600"):
        BrokerAccess(url="mqtt://h", user="anna", password_file=password).address()


@pytest.mark.parametrize("url", ["mqtt://10.0.0.7", "mqtts://broker.example"])
def test_without_keys_another_machine_is_refused_even_behind_tls(url):
    """TLS ends at the broker, which keys do not trust."""
    with pytest.raises(InputError, match=r"protofleet device invite.*--insecure"):
        BrokerAccess(url=url).check_keyless()
    BrokerAccess(url=url, insecure=True).check_keyless()
    BrokerAccess(url="mqtt://127.0.0.1").check_keyless()
