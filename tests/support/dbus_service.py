"""A service on a real D-Bus that answers for properties, without a library."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_CALL, _RETURN = 1, 2
_PATH, _INTERFACE, _MEMBER, _REPLY, _DESTINATION, _SENDER, _SIGNATURE = 1, 2, 3, 5, 6, 7, 8
_TYPES = {_PATH: "o", _REPLY: "u", _SIGNATURE: "g"}
_NUMBERS = {"b": ("<I", 4), "u": ("<I", 4), "d": ("<d", 8)}

Properties = Mapping[tuple[str, str], tuple[str, Any]]
"""(interface, property) → (type, value): of type ``b``, ``u`` or ``d``."""


@contextmanager
def bus() -> Iterator[str]:
    """The address of a ``dbus-daemon`` of its own."""
    command = ["dbus-daemon", "--session", "--nofork", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            yield daemon.stdout.readline().strip()
        finally:
            daemon.kill()


@contextmanager
def service(address: str, names: tuple[str, ...], properties: Properties) -> Iterator[None]:
    """Answers ``Get`` of these properties on any path, under all these names."""
    path = dict(part.split("=", 1) for part in address.removeprefix("unix:").split(","))["path"]
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        link.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
        assert link.recv(200).startswith(b"OK")
        link.sendall(b"BEGIN\r\n")
        stream = link.makefile("rb")
        asked = [("RequestName", _text(name) + _u32(0, name)) for name in names]
        for serial, (member, body) in enumerate([("Hello", b""), *asked], 1):
            link.sendall(_call(serial, member, body))
            while _read(stream)[1].get(_REPLY) != serial:
                pass
        threading.Thread(target=_serve, args=(link, stream, properties), daemon=True).start()
        yield
        link.shutdown(socket.SHUT_RDWR)


def _serve(link: socket.socket, stream: Any, properties: Properties) -> None:
    serial = 100
    while (message := _read(stream)) is not None:
        kind, fields, number, body = message
        if kind != _CALL or fields.get(_MEMBER) != "Get":
            continue
        length = struct.unpack_from("<I", body)[0]
        interface = body[4 : 4 + length].decode()
        start = -(-(4 + length + 1) // 4) * 4
        name = body[start + 4 : -1].decode()
        signature, value = properties[interface, name]
        form, size = _NUMBERS[signature]
        variant = bytes([1]) + signature.encode() + b"\0"
        variant += bytes(-len(variant) % size) + struct.pack(form, value)
        serial += 1
        answer = {_REPLY: number, _DESTINATION: fields[_SENDER], _SIGNATURE: "v"}
        link.sendall(_message(_RETURN, serial, answer, variant))


def _call(serial: int, member: str, body: bytes) -> bytes:
    bus_name = "org.freedesktop.DBus"
    fields = {
        _PATH: "/org/freedesktop/DBus",
        _INTERFACE: bus_name,
        _MEMBER: member,
        _DESTINATION: bus_name,
    }
    return _message(_CALL, serial, fields | ({_SIGNATURE: "su"} if body else {}), body)


def _message(kind: int, serial: int, fields: Mapping[int, Any], body: bytes) -> bytes:
    array = b""
    for code, value in fields.items():
        array += bytes(-len(array) % 8)
        signature = _TYPES.get(code, "s")
        array += bytes([code, 1]) + signature.encode() + b"\0"
        if signature == "u":
            array += struct.pack("<I", value)
        elif signature == "g":
            array += bytes([len(value)]) + value.encode() + b"\0"
        else:
            array += _text(value)
    head = struct.pack("<cBBBIII", b"l", kind, 0, 1, len(body), serial, len(array)) + array
    return head + bytes(-len(head) % 8) + body


def _read(stream: Any) -> tuple[int, dict[int, Any], int, bytes] | None:
    head = stream.read(16)
    if len(head) < 16:
        return None
    _, kind, _, _, size, serial, length = struct.unpack("<cBBBIII", head)
    array = stream.read(-(-length // 8) * 8)[:length]
    fields, at = {}, 0
    while at < length:
        at += -at % 8
        code, signature = array[at], chr(array[at + 2])
        at += 4
        if signature == "g":
            fields[code] = array[at + 1 : at + 1 + array[at]].decode()
            at += array[at] + 2
        elif signature in "so":
            end = at + 4 + struct.unpack_from("<I", array, at)[0]
            fields[code] = array[at + 4 : end].decode()
            at = end + 1
        else:
            fields[code] = struct.unpack_from("<I", array, at)[0]
            at += 4
    return kind, fields, serial, stream.read(size)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<I", len(data)) + data + b"\0"


def _u32(number: int, behind: str) -> bytes:
    """Aligned behind a string that began the body."""
    return bytes(-(4 + len(behind) + 1) % 4) + struct.pack("<I", number)
