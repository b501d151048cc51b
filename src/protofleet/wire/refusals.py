"""What a broker refuses while the connection lasts, and what to tell people of it."""

from __future__ import annotations

from dataclasses import dataclass

from protofleet.wire.transfers.chunks import HEADER_BYTES, MAGIC, MIN_DATA_BYTES, TAG_BYTES

FAILURE = 0x80
"""Reason codes from here on say that something was not done."""
NOT_AUTHORIZED = 0x87
PACKET_TOO_LARGE = 0x95
PASSING = frozenset({0x80, 0x83, 0x91, 0x97})
"""Unspecified, implementation specific, packet id in use, quota exceeded: later it may be taken."""

_REMEDIES = {
    PACKET_TOO_LARGE: "its limit on packets must grow (Mosquitto: max_packet_size, "
    "message_size_limit)",
    0x97: "its quota for this account must grow; until then it is asked more slowly",
}
# Paho knows a name only where MQTT has the code, and brokers answer with others, too.
_NAMES = {
    0x80: "unspecified error",
    0x83: "implementation specific error",
    0x87: "not authorized",
    0x8F: "topic filter invalid",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x95: "packet too large",
    0x97: "quota exceeded",
    0x99: "payload format invalid",
}
_LOOK = "the broker's log says why"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The broker has refused a publish or a filter of ours, and the connection goes on.

    Attributes:
        code: MQTT reason code.
        what: the topic or filter.
        payload: of the publish; None: it was a subscription.
    """

    code: int
    what: str
    payload: bytes | None = None

    @property
    def chunk_data_bytes(self) -> int:
        """Least data of the chunk that was refused for its size; 0 if it was none."""
        payload = self.payload
        if self.code != PACKET_TOO_LARGE or payload is None or not payload.startswith(MAGIC):
            return 0
        return max(MIN_DATA_BYTES, len(payload) - HEADER_BYTES - TAG_BYTES)

    @property
    def reason(self) -> str:
        """Cause and remedy, for people."""
        remedy = _REMEDIES.get(self.code, _LOOK)
        told = f"{_NAMES.get(self.code, 'refused')}, 0x{self.code:02X}"
        if self.payload is None:
            return f"it refuses to deliver '{self.what}' ({told}); {remedy}"
        size = f"{len(self.payload):,} bytes on '{self.what}'"
        if self.chunk_data_bytes:
            return f"it takes no {size} ({told}); chunks get smaller until they pass; {remedy}"
        return f"it takes no {size} ({told}); {remedy}"


@dataclass(frozen=True, slots=True)
class Hindered:
    """The link is up, but something does not pass; said once for each cause.

    Attributes:
        reason: cause and remedy, for people; '' where both were said before.
        narrower: whether chunks have to be smaller from now on (``Link.chunk_bytes``).
    """

    reason: str
    narrower: bool = False


def silence(device_id: str, data_bytes: int, seconds: float, smaller: int) -> Hindered:
    """What to say when chunks of ``data_bytes`` do not arrive, though small messages do."""
    return Hindered(
        f"no chunk of {data_bytes:,} bytes of '{device_id}' arrives, {seconds:.0f} s after it was "
        "asked for, while small messages do: a broker, bridge or proxy on the way may drop large "
        f"packets without a word; chunks of {smaller:,} bytes are tried, and then smaller "
        "ones; its limit on packets must grow, and protofleet doctor --broker measures what passes"
    )
