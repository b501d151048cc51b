"""A broker's folder: all that Mosquitto, 2.0 or 2.1, and the embedded broker need to run.

==========================  =======================================================================
``mosquitto.conf``          TLS listener, limits, where the other files are
``acl``, ``passwords``      who may do what, and who is who (``access.py``, ``accounts.py``)
``coordinator.password``    for the coordinator's federation file
``ca.pem``, ``ca.key``      the authority; devices get ``ca.pem``, ``ca.key`` may be kept elsewhere
``server.pem``/``.key``     the broker's own certificate
``protofleet-broker.service``  a unit for systemd
``mosquitto.pid``           while a broker runs
==========================  =======================================================================
"""

from __future__ import annotations

import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import kill
from pathlib import Path

from protofleet.broker._files import write_private
from protofleet.broker.access import ANY, access_list, federations_of
from protofleet.broker.accounts import Accounts, new_password
from protofleet.broker.certificates import (
    Certificate,
    hosts_of,
    is_good,
    make_authority,
    make_server,
    own_hosts,
)
from protofleet.errors import InputError
from protofleet.printable import shell_word
from protofleet.wire.topics import COORDINATOR
from protofleet.wire.transfers.chunks import MAX_PACKET_BYTES

PORT = 8883
"""Registered for MQTT over TLS."""
PACKET_BYTES = MAX_PACKET_BYTES + 4464
"""Largest packet that a broker of ours takes, 70 000 bytes: the protocol's with some room."""
_EXTRA_FOLDERS = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin:/usr/local/opt/mosquitto/sbin"
_LISTENER = re.compile(r"^listener +(\d+)(?: +(\S+))? *$", re.MULTILINE)
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)", re.MULTILINE)
_START_S = 10.0
"""How long a broker may take to start."""
_LOOPBACK = "127.0.0.1"

_CONFIG = """\
# Mosquitto 2.0 or 2.1 for Protofleet; written once by: protofleet broker init
# Start: mosquitto -c {folder}/mosquitto.conf     Read accounts again: kill -HUP
# The paths below are absolute: a folder that moved needs them changed.

# TLS alone. Browsers come through protofleet hub; without it they need a second listener of this
# kind, with: protocol websockets
listener {port}
max_connections 4096
certfile {folder}/server.pem
keyfile {folder}/server.key
tls_version tlsv1.2
ciphers ECDHE+AESGCM:ECDHE+CHACHA20

# Nobody without an account. Client ids are random for each connection, so an account's name is not
# used as one (use_username_as_clientid).
allow_anonymous false
password_file {folder}/passwords
acl_file {folder}/acl

# Of a connection: a packet holds one chunk; 64 MiB wait for a slow receiver, which is what the
# coordinator's 32 uploads have in flight; a large fleet's retained presences are short but many.
max_packet_size {packet_bytes}
max_queued_messages 25000
max_queued_bytes 67108864
max_inflight_messages 20
max_keepalive 120
persistent_client_expiration 1h

# Of all together: beyond it, messages are dropped and connections refused, and the broker lives.
memory_limit 536870912

# Nothing on disk: the protocol repeats what a restart forgets.
persistence false
# $SYS would tell how many are connected, and that this is Mosquitto.
sys_interval 0
# Small packets at once.
set_tcp_nodelay true
pid_file {folder}/mosquitto.pid
# Started as root, Mosquitto becomes this user, who owns these files.
user {user}
"""


_SERVICE = """\
[Unit]
Description=MQTT broker of a Protofleet federation
Wants=network-online.target
After=network-online.target

[Service]
User={user}
ExecStart={mosquitto} -c {folder}/mosquitto.conf
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
LimitNOFILE=8192
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folder}
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class BrokerFolder:
    """A folder that ``create`` has made.

    Attributes:
        path: absolute.
    """

    path: Path

    @classmethod
    def create(
        cls,
        path: Path,
        hosts: Sequence[str] = (),
        port: int = PORT,
        federations: Sequence[str] = (),
    ) -> BrokerFolder:
        """Write everything into ``path``, which is made, its coordinator's account included.

        Args:
            path: absent or empty.
            hosts: names and addresses by which others reach this machine, beside those that it
                knows of itself.
            port: to listen on.
            federations: names of those that it serves; none: any.

        Raises:
            InputError: something is there already, or a host or the folder cannot be used.
        """
        folder = cls(_checked(path))
        authority = make_authority(f"Protofleet broker {(*hosts, *own_hosts())[0]}")
        server = make_server(authority, (*hosts, *own_hosts()))
        access = access_list(federations or (ANY,))
        try:
            _make_private(folder.path)
            if any(path.iterdir()):
                raise InputError(
                    f"broker folder '{path}': not empty; for a new certificate of a broker that "
                    f"is there: protofleet broker init --renew {shell_word(path)}"
                )
            folder._write(authority, server, port, access)
        except OSError as error:
            raise InputError(f"broker folder '{path}': {error.strerror}") from error
        folder.accounts.add(COORDINATOR, folder.coordinator_password())
        return folder

    @classmethod
    def open(cls, path: Path) -> BrokerFolder:
        """The folder at ``path``, or ``broker`` inside it.

        Raises:
            InputError: there is none.
        """
        for folder in (path, path / "broker"):
            if (folder / "mosquitto.conf").is_file():
                return cls(folder.absolute())
        raise InputError(
            f"broker folder '{path}': no mosquitto.conf; make one with: protofleet broker init"
        )

    @property
    def accounts(self) -> Accounts:
        """Who is let in."""
        return Accounts(self.path)

    @property
    def config(self) -> Path:
        """For ``mosquitto -c``."""
        return self.path / "mosquitto.conf"

    @property
    def ca(self) -> Path:
        """The authority's certificate, which clients check the broker's by."""
        return self.path / "ca.pem"

    @property
    def password_file(self) -> Path:
        """The coordinator's password."""
        return self.path / "coordinator.password"

    @property
    def service(self) -> Path:
        """A unit for systemd, to be copied to where it looks for them."""
        return self.path / "protofleet-broker.service"

    @property
    def pid_file(self) -> Path:
        """Written by the broker."""
        return self.path / "mosquitto.pid"

    def coordinator_password(self) -> str:
        """The coordinator's password.

        Raises:
            InputError: its file cannot be read.
        """
        return self._read("coordinator.password").strip()

    def hosts(self) -> list[str]:
        """Names and addresses in the broker's certificate, the most useful first."""
        return hosts_of(self._read("server.pem").encode())

    def federations(self) -> list[str]:
        """Names of the federations that the access list serves; empty: any."""
        found = federations_of(self._read("acl"))
        return [] if ANY in found else found

    def listener(self) -> tuple[str, int]:
        """Address ('' for all) and port of the first listener in ``mosquitto.conf``.

        Raises:
            InputError: there is none.
        """
        found = _LISTENER.search(self._read("mosquitto.conf"))
        if found is None:
            raise InputError(f"{self.config}: expected a line 'listener PORT [ADDRESS]'")
        return found[2] or "", int(found[1])

    def local_url(self, user: str = "") -> str:
        """How this machine reaches the broker."""
        host, port = self.listener()
        return f"mqtts://{user}{'@' if user else ''}{host or _LOOPBACK}:{port}"

    def renew(self, hosts: Sequence[str] = ()) -> None:
        """A new certificate by the same authority, for ``hosts`` beside those that it had.

        Raises:
            InputError: the authority's key is not here, or files cannot be read or written.
        """
        authority = Certificate(self._read("ca.pem").encode(), self._read("ca.key").encode())
        server = make_server(authority, (*hosts, *self.hosts(), *own_hosts()))
        self._write_server(server)

    def issue(self, name: str, hosts: Sequence[str]) -> tuple[Path, Path]:
        """A certificate by the same authority for another server, such as the hub's.

        ``NAME.pem`` and ``NAME.key`` stay as long as they are for all ``hosts``, by this authority,
        and good for a month.

        Args:
            name: of the two files.
            hosts: names and addresses; the broker's own are added.

        Returns:
            The certificate's file and its key's.

        Raises:
            InputError: the authority's key is not here, or files cannot be read or written.
        """
        certificate, key = self.path / f"{name}.pem", self.path / f"{name}.key"
        wanted = list(dict.fromkeys((*hosts, *self.hosts(), *own_hosts())))
        ours = self._read("ca.pem").encode()
        if not (key.is_file() and certificate.is_file()) or not is_good(
            certificate.read_bytes(), ours, wanted
        ):
            made = make_server(Certificate(ours, self._read("ca.key").encode()), wanted)
            write_private(key, made.key)
            write_private(certificate, made.certificate, mode=0o644)
        return certificate, key

    def reload(self) -> str:
        """Make the running broker read accounts, access list and certificate again.

        Returns:
            The command that whoever runs the broker has to enter, because we may not; else ''.

        Raises:
            InputError: the pid file holds no number.
        """
        pid = self.running()
        try:
            if pid is not None and _catches_hangup(pid):
                kill(pid, signal.SIGHUP)
        except ProcessLookupError:
            pass  # it ended meanwhile; the next one reads the files anyway
        except PermissionError:
            return f"sudo kill -HUP {pid}"
        return ""

    def running(self) -> int | None:
        """Process id of the broker that runs on this folder, if one does on this machine.

        Raises:
            InputError: the pid file holds no number.
        """
        try:
            text = self.pid_file.read_text(encoding="ascii")
            pid = int(text or "0")  # empty while it is being written
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.pid_file}: expected a process id") from error
        # The number may belong to another process since, which the signal would end; another
        # Mosquitto would just read its own files again.
        arguments = _arguments(pid)
        ours = Path(arguments[0]).name == "mosquitto" or str(self.path) in arguments
        return pid if ours else None

    def _write(self, authority: Certificate, server: Certificate, port: int, access: str) -> None:
        owner = pwd.getpwuid(self.path.stat().st_uid).pw_name
        config = _CONFIG.format(folder=self.path, port=port, packet_bytes=PACKET_BYTES, user=owner)
        write_private(self.path / "ca.key", authority.key)
        mosquitto = find_mosquitto() or "/usr/sbin/mosquitto"
        service = _SERVICE.format(folder=self.path, user=owner, mosquitto=mosquitto)
        write_private(self.service, service, mode=0o644)
        write_private(self.ca, authority.certificate, mode=0o644)
        self._write_server(server)
        write_private(self.password_file, new_password() + "\n")
        write_private(self.accounts.access_file, access)
        write_private(self.accounts.file, "")
        # The last one: where it is, all is.
        write_private(self.config, config)

    def _write_server(self, server: Certificate) -> None:
        write_private(self.path / "server.key", server.key)
        write_private(self.path / "server.pem", server.certificate, mode=0o644)

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise InputError(f"broker folder '{self.path}': {name}: {reason}") from error


def find_mosquitto() -> str | None:
    """Mosquitto's path; Debian installs it outside an ordinary user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=_EXTRA_FOLDERS)


def _checked(path: Path) -> Path:
    """``path`` absolute; Mosquitto's configuration cannot name every path."""
    absolute = path.absolute()
    if any(letter.isspace() for letter in str(absolute)):
        raise InputError(f"broker folder '{absolute}': expected a path without spaces")
    return absolute


def _make_private(folder: Path) -> None:
    """Make ``folder`` and what is missing above it, such as the federation's, for us alone."""
    for missing in [part for part in reversed(folder.parents) if not part.exists()]:
        missing.mkdir(mode=0o700)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)


def _catches_hangup(pid: int) -> bool:
    """Whether the signal makes a process read its files, once it has started; else it ends it.

    Mosquitto writes its pid file first and catches signals last.
    """
    status, deadline = Path(f"/proc/{pid}/status"), time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            found = _CAUGHT.search(status.read_text(encoding="ascii", errors="replace"))
        except OSError:
            return not Path("/proc/self/status").exists()  # macOS does not say
        if found is None or int(found[1], 16) >> (signal.SIGHUP - 1) & 1:
            return True
        time.sleep(0.02)
    return False


def _arguments(pid: int) -> list[str]:
    """What a process was started with; one empty text if there is none."""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            found = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
            return found.split("\0")
        return [""]
    shown = subprocess.run(
        ["/bin/ps", "-ww", "-o", "args=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.split() or [""]
