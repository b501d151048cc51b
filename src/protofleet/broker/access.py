"""The access list: which account may publish and receive what, as a file that Mosquitto reads.

=================  =======================================  ===================================
account            publishes                                receives
=================  =======================================  ===================================
``coordinator``    ``dn/#``, ``all/#``, ``st/+`` (clears)   ``up/#``, ``st/+``, ``en/+/q``
``coordinator``    ``en/+/a``                               ``all/#``
a device           ``up/<name>/m`` and so on, ``st/<name>``  ``dn/<name>/#``, ``all/#``
``invite.<id>``    ``en/<name>/q``                          ``en/<name>/a``
=================  =======================================  ===================================

Topics stand behind ``<prefix>/<federation>/``; ``<name>`` is the account's own, whatever client id
the connection claims. Two rules of Mosquitto shape the file: a ``topic`` line behind a ``user``
line belongs to that user alone, and ``pattern`` lines hold for every account, so an invitation
would be a device, too. That is why an invitation has a section that denies it what a device may.

No broker bounds how many retained messages an account leaves, so what a device publishes on is
written out: with the federation named, one device can keep a handful of messages, not gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from protofleet.errors import InputError
from protofleet.wire.topics import COORDINATOR, PREFIX, Channel, check_id

ANY = "+"
"""In place of a federation's name: all of them."""
_NAME = re.compile(r"(?:invite\.)?[A-Za-z0-9._-]{1,64}")
_FEDERATION = re.compile(rf"(?m)^topic read {PREFIX}/([^/\s]+)/up/#$")
_WILD = frozenset("+#")
_ACCESSES = ("read", "write", "readwrite", "deny")

_COORDINATORS = (
    ("read", "up/#"),
    ("readwrite", "st/+"),
    ("write", "dn/#"),
    ("write", "all/#"),
    ("read", "en/+/q"),
    ("write", "en/+/a"),
)
_DEVICES = (
    *(
        ("write", channel.value.replace("up/", "up/%u/"))
        for channel in Channel
        if channel.value.startswith("up/")
    ),
    ("write", "st/%u"),
    ("read", "dn/%u/#"),
    ("read", "all/#"),
)
_DENIED_TO_INVITED = ("up/#", "st/#", "dn/#", "all/#")

_HEAD = f"""\
# Who may publish (write) and receive (read) what; Mosquitto and the embedded broker read it.
# Written by: protofleet broker init. Sections of invitations come and go at the end.
# Lines of one user stand behind its name; patterns hold for all accounts, %u being the account.

user {COORDINATOR}
"""


def check_account(name: str) -> str:
    """``name`` itself, if an account may be called so.

    Raises:
        InputError: not 1 to 64 characters of ``A-Z a-z 0-9 . _ -`` behind an optional ``invite.``.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"account: expected 1 to 64 characters of A-Z a-z 0-9 . _ -, got {name[:80]!r}"
        )
    return name


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: an access (``read``, ``write``, ``readwrite``, ``deny``) and a topic filter."""

    access: str
    filter: str

    def grants(self, wanted: Literal["read", "write"]) -> bool:
        """Whether it allows ``wanted`` where its filter fits."""
        return self.access in (wanted, "readwrite")


class AccessList:
    """What an access list's text allows; of Mosquitto's grammar what ``access_list`` writes.

    Args:
        text: the file's content.

    Raises:
        InputError: a line of another kind; the message names it.
    """

    def __init__(self, text: str) -> None:
        self._users: dict[str, list[Rule]] = {}
        self._patterns: list[Rule] = []
        rules = self._users.setdefault("", [])
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0] == "user" and len(words) == 2:
                rules = self._users.setdefault(words[1], [])
            elif words[0] in ("topic", "pattern") and len(words) == 3 and words[1] in _ACCESSES:
                (rules if words[0] == "topic" else self._patterns).append(Rule(*words[1:]))
            else:
                raise InputError(f"access list: line {number}: not understood: {line[:80]!r}")

    def may(self, user: str, wanted: Literal["read", "write"], topic: str) -> bool:
        """Whether ``user`` may publish (``write``) or receive (``read``) a message on ``topic``."""
        return not set(topic) & _WILD and self._allows(user, wanted, topic)

    def may_subscribe(self, user: str, wanted: str) -> bool:
        """Whether all that the filter ``wanted`` can deliver may be received by ``user``."""
        return self._allows(user, "read", wanted)

    def _allows(self, user: str, wanted: Literal["read", "write"], topics: str) -> bool:
        rules = [rule for rule in self._rules(user) if _covers(rule.filter, topics)]
        denied = any(rule.access == "deny" for rule in rules)
        return not denied and any(rule.grants(wanted) for rule in rules)

    def _rules(self, user: str) -> Iterator[Rule]:
        yield from self._users.get(user, ())
        if set(user) & _WILD or "/" in user:
            return  # as %u it would stand for other accounts
        for rule in self._patterns:
            levels = [user if level == "%u" else level for level in rule.filter.split("/")]
            yield Rule(rule.access, "/".join(levels))


def access_list(federations: Sequence[str] = (ANY,), invited: Iterable[str] = ()) -> str:
    """The access list's text.

    Args:
        federations: names of those whose topics it allows.
        invited: accounts of open invitations, each of which gets a section.

    Raises:
        InputError: a name that no federation can have.
    """
    bases = [f"{PREFIX}/{_checked_federation(name)}" for name in federations]
    lines = [f"topic {may} {base}/{tail}" for base in bases for may, tail in _COORDINATORS]
    lines.append("")
    lines += [f"pattern {may} {base}/{tail}" for base in bases for may, tail in _DEVICES]
    text = _HEAD + "\n".join([*lines, ""])
    for name in invited:
        text = with_invitation(text, name)
    return text


def federations_of(text: str) -> list[str]:
    """The federations that an access list allows; ``ANY`` may be one."""
    return _FEDERATION.findall(text)


def with_invitation(text: str, name: str) -> str:
    """``text`` with a section by which the account ``name`` may enrol and do nothing else."""
    section = [f"user {name}"]
    for federation in federations_of(text):
        base = f"{PREFIX}/{federation}"
        section += [f"topic deny {base}/{tail}" for tail in _DENIED_TO_INVITED]
        section += [f"topic write {base}/en/{name}/q", f"topic read {base}/en/{name}/a"]
    return f"{without_account(text, name).rstrip()}\n\n" + "\n".join([*section, ""])


def without_account(text: str, name: str) -> str:
    """``text`` without the section of the account ``name``, which ends with its topic lines."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        words = line.split()
        if words == ["user", name]:
            inside = True
            while kept and not kept[-1].strip():
                kept.pop()
        else:
            inside = inside and words[:1] == ["topic"]
        if not inside:
            kept.append(line)
    return "\n".join(kept).rstrip() + "\n"


def _checked_federation(name: str) -> str:
    return name if name == ANY else check_id(name, "federation")


def _covers(wide: str, narrow: str) -> bool:
    """Whether all topics of the filter or topic ``narrow`` are among those of the filter ``wide``.

    Wildcards of ``wide`` stand behind a level that is written out, so topics that begin with ``$``
    need no rule of their own.
    """
    outer, inner = wide.split("/"), narrow.split("/")
    for place, level in enumerate(outer):
        if level == "#":
            return True
        if place >= len(inner) or inner[place] == "#" or level not in ("+", inner[place]):
            return False
    return len(outer) == len(inner)
