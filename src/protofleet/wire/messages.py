"""Messages: typed frozen records that travel as JSON (``docs/protocol.md``).

Unknown fields are ignored; a missing field or a wrong type is an error that names it.
Units stand in the field names. Tensors never travel here but as transferred blobs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from protofleet.errors import RefusedError
from protofleet.wire.codecs import Coding
from protofleet.wire.mqtt.usage import DeviceUsage

PROTOCOL_MINOR = 1
MAX_MESSAGE_BYTES = 64 * 1024 - 512 - 64
"""One packet less what MQTT and a signature need."""

TransferId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
"""Checked before it is kept anywhere or becomes a file's name."""
MOST_SEQUENCE = 2**53 - 1
"""Of bundles (``docs/bundle.md``)."""
MOST_STALENESS = 10_000
"""Rounds by which an update may be late at most."""
MOST_EPOCH = 2**48
"""Of leases: seconds since 1970, or a little more, for ever."""
Word = Annotated[str, msgspec.Meta(max_length=64)]
"""What is kept of a peer fits memory, however many there are."""


ReceiptName = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}\Z")]
"""The first digits of a transfer id."""
RECEIPT_DIGITS = 12
MOST_RECEIPTS = 2048
MOST_REFUSED = 64
MOST_OVERTAKEN = 16
"""In an announcement: half of a packet."""
MOST_RATES = 16
MOST_CALIBRATING = 64
"""Of a calibration."""

Condition = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,32}\Z")]
"""Of a device's owner, for taking part: ``charging``, ``network``, …"""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """Base of all records; the JSON field ``type`` names the record.

    None refers to itself, so that the garbage collector need not know them.
    """


class DeviceHandshake(msgspec.Struct, frozen=True, kw_only=True):
    """A device's part of a session, in its presence.

    ``grant``: the federation key's statement about the device's key, which signs the presence.
    ``nonce``, ``share`` (X25519): hex, new at every process start, which ``start`` counts.
    ``answers``: the coordinator's nonce; empty in a last will. ``sequence`` counts the presences of
    a start.
    """

    grant: str
    nonce: str
    share: str
    answers: str
    start: int
    sequence: int


class KnownStart(msgspec.Struct, frozen=True, kw_only=True):
    """The latest process of a device that a coordinator knows: its ``start`` and ``nonce``."""

    start: int
    nonce: Word


class CoordinatorHandshake(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator's part of every session, in its announcement.

    ``certificate``: the federation key's statement about the key that signs the announcement.
    ``nonce``, ``share`` (X25519): hex, new at every process start. ``sequence``: rises with every
    announcement, over restarts and runs. ``rotations``: statements by which earlier federation
    keys handed over, oldest first. ``refused``: names (``identity.grant_name``) of grants that this
    process was shown, or had a session with, and that are no longer in force; the latest alone.
    ``starts``: of grants whose devices have come with an earlier start than is known, the known
    one: a store that was restored from a backup goes on behind it. Its nonce tells the process that
    is meant that only an old presence of its own was sent again.
    """

    certificate: str
    nonce: str
    share: str
    sequence: int
    rotations: tuple[str, ...] = ()
    refused: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MOST_REFUSED)] = ()
    starts: Annotated[dict[Word, KnownStart], msgspec.Meta(max_length=MOST_OVERTAKEN)] = {}


class BundleProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a device is with a bundle that its coordinator has offered, in its presence.

    ``bundle``: its digest. ``state``: ``fetched`` (all bytes are stored), ``verified`` (its rules
    hold, a trusted key has signed it), ``tested`` (it has trained on the device's data) or
    ``failed``, with the broken ``rule`` and the ``reason``.
    """

    bundle: Word
    state: Literal["fetched", "verified", "tested", "failed"]
    rule: Word = ""
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


class CalibrationOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Learning rates that some devices are to try before the first round, in an announcement.

    ``key``: names the order; an answer to another one does not count. ``settings``: the announced
    strategy's, with any rate. ``seed``: of the federation. ``rates``: ascending. ``devices``: who
    is asked.
    """

    key: Word
    settings: dict[str, Any]
    seed: int
    rates: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=MOST_RATES)]
    devices: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MOST_CALIBRATING)]


class CalibrationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the rates, in a presence; its being there says that the device can try any.

    ``key``: of the order that it answers; empty: of none. ``ratios``: of each rate, the loss on
    held-out examples after a local round divided by the loss before; empty: the device could try
    none.
    """

    key: Word
    ratios: Annotated[tuple[float, ...], msgspec.Meta(max_length=MOST_RATES)] = ()


class Presence(Message, frozen=True, kw_only=True, tag="presence"):
    """Device → all, retained (``st/<dev>``); the last will is the same with ``offline``.

    ``class_counts``: training samples of each class, only where the announced strategy asks for
    them; their sum is ``num_examples``. ``strategies``: names of those that the device's client can
    do; empty: it does not say, and is taken to know all. ``chunk_bytes``: most data of a chunk that
    it takes, at least 256; 0: what a packet holds. ``held``: the owner's conditions that are not
    met now; a device with any is there and not to be invited. ``sequence``: the bundle's.
    ``takes_bundles``: whether it takes another one over the wire; ``progress``: with the one that
    it was offered last. ``handshake``: where the federation has keys. ``calibration``: left out by
    a device that can try no learning rates. ``doubts``: what the device finds strange about its
    own data, such as ``scale``; left out where it is nothing.
    """

    device_id: Word
    boot_id: Word
    status: Literal["online", "offline", "left"]
    minor: int = PROTOCOL_MINOR
    bundle: Word = ""
    layout_hash: Word = ""
    num_examples: int = 0
    class_counts: tuple[int, ...] = ()
    strategies: Annotated[tuple[Word, ...], msgspec.Meta(max_length=256)] = ()
    chunk_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    held: Annotated[tuple[Condition, ...], msgspec.Meta(max_length=16)] = ()
    sequence: Annotated[int, msgspec.Meta(ge=0, le=MOST_SEQUENCE)] = 0
    takes_bundles: bool = False
    progress: BundleProgress | None = None
    handshake: DeviceHandshake | None = None
    calibration: CalibrationAnswer | msgspec.UnsetType = msgspec.UNSET
    doubts: Annotated[tuple[Condition, ...], msgspec.Meta(max_length=16)] | msgspec.UnsetType = (
        msgspec.UNSET
    )


class Announcement(Message, frozen=True, kw_only=True, tag="announcement"):
    """Coordinator → all, retained (``all/ctl``): where the federation stands.

    Whenever ``boot_id`` or ``roll_call`` changes, each device presents itself anew, after a wait
    between 0 and ``spread_s``. ``hold``: why no round opens, ``paused`` or ``stopped`` by the
    operator; empty: nothing keeps them. ``epoch``: of the coordinator's lease, higher than of every
    coordinator before it; 0: it has none. ``bundles``: digests of further bundles whose devices
    take part, while another takes the place of ``bundle`` or was taken back; ``withdrawal``: their
    signer's statement that devices go back to ``bundle``. ``staleness``: by how many rounds an
    update may be late and count: a device goes on with its task so long. Announcements may be half
    of that apart. ``run_id``: of the run that the coordinator's folder holds, over its restarts and
    moves; empty: it does not say. ``receipts``: of a ``finished`` run, by the first 12 digits of
    the transfer ids: updates that were taken, and whose devices may not have heard that.
    ``handshake``: where the federation has keys. ``calibration``: left out but while devices are
    asked.
    """

    federation: Word
    boot_id: Word
    phase: Literal["waiting", "training", "finished"]
    round_id: int
    rounds: int
    strategy: Word
    bundle: Word
    layout_hash: Word
    minor: int = PROTOCOL_MINOR
    roll_call: Annotated[int, msgspec.Meta(ge=0)] = 0
    spread_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    hold: Word = ""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=MOST_EPOCH)] = 0
    bundles: Annotated[tuple[Word, ...], msgspec.Meta(max_length=8)] = ()
    withdrawal: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    staleness: Annotated[int, msgspec.Meta(ge=0, le=MOST_STALENESS)] = 0
    run_id: Word = ""
    receipts: Annotated[tuple[ReceiptName, ...], msgspec.Meta(max_length=MOST_RECEIPTS)] = ()
    handshake: CoordinatorHandshake | None = None
    calibration: CalibrationOrder | msgspec.UnsetType = msgspec.UNSET

    def has_receipt(self, transfer_id: str) -> bool:
        """Whether an update was taken, by what is said here."""
        return transfer_id[:RECEIPT_DIGITS] in self.receipts


class LeaseRecord(Message, frozen=True, kw_only=True, tag="lease"):
    """Coordinator → coordinators (``all/lease``): who serves the federation, and for how long.

    ``step``: ``claim`` asks who does, ``held`` says that the sender does, ``released`` that it does
    not any more; the last two are retained. ``epoch``: of the sender's lease, higher than of every
    lease before it; 0 in a claim. ``valid_s``: how long others wait for an answer of a holder that
    is silent. ``nonce``: 32 hex digits, new in each record. ``answers``: nonce of the claim that it
    answers. ``certificate``: as in ``CoordinatorHandshake``, where the federation has keys.
    ``time_s``: the sender's clock, Unix seconds, for whoever compares clocks; 0: it does not say.
    """

    federation: Word
    boot_id: Word
    step: Literal["claim", "held", "released"]
    epoch: Annotated[int, msgspec.Meta(ge=0, le=MOST_EPOCH)]
    valid_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
    nonce: Word
    answers: Word = ""
    certificate: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    time_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)] = 0.0


class TransferOffer(Message, frozen=True, kw_only=True, tag="manifest"):
    """Announces a blob that a transfer will carry; its ``type`` is ``manifest``.

    ``transfer_id``: hash of blob, device and round.

    With a codec other than ``raw``: ``raw_bytes`` is the blob's size before compression, and
    ``reference`` (``base`` on the wire) the SHA-256 of the raw blob that a payload refers to
    (empty: the bundle's initial values), or of the payload that an update was made from.

    Where the federation has keys: ``key`` (64 hex digits) seals the chunks, and ``signature`` (128
    hex digits) is the device's, for an update.
    """

    transfer_id: TransferId
    kind: Literal["payload", "update", "bundle"]
    round_id: int
    total_bytes: int
    sha256: Word
    chunk_bytes: int
    codec: Word = "raw"
    minor: int = PROTOCOL_MINOR
    raw_bytes: int = 0
    reference: Word = msgspec.field(default="", name="base")
    key: Word = ""
    signature: Annotated[str, msgspec.Meta(max_length=128)] = ""

    @property
    def coding(self) -> Coding:
        """How the blob is coded."""
        return Coding(codec=self.codec, raw_bytes=self.raw_bytes, reference=self.reference)


class FleetGain(msgspec.Struct, frozen=True, kw_only=True):
    """What personal models do for the owners of a fleet, in a task.

    ``owners``: how many have told. ``mean``: their gain, as a share of the examples or of the error
    that there was. ``sd``: how far that of another owner lies from it.
    """

    owners: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    mean: Annotated[float, msgspec.Meta(ge=-1, le=1)]
    sd: Annotated[float, msgspec.Meta(ge=0, le=10)]


class Task(Message, frozen=True, kw_only=True, tag="task"):
    """Coordinator → device (``dn/<dev>/t``): take part in a round, or finish.

    ``deadline_s`` counts from reception, because clocks of devices differ. ``final``: this is the
    fit after the last round. ``update_codec`` and ``update_keep`` (the share that ``topk`` sends):
    how the update is to be encoded. ``scores`` and ``counts``: whether its record is to hold
    scores, losses and costs, and numbers of examples. ``work``: the share of the local training
    that is asked for, above 0 up to 1. ``epoch``: as in the announcement. ``shared``: the version
    under which chunks of the payload also travel to all (``all/c/<version>``); empty: they do not.
    ``fleet``: left out where too few owners have told. ``baseline``: ``local`` where the device is
    to train alone as well; left out elsewhere.
    """

    task: Literal["train", "finish"]
    round_id: int
    federation: Word
    strategy: Word = ""
    settings: dict[str, Any] = {}
    seed: int = 0
    deadline_s: float = 0.0
    payload: TransferOffer | None = None
    final: bool = False
    update_codec: Word = "raw"
    update_keep: float = 0.1
    scores: bool = True
    counts: bool = True
    work: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    epoch: Annotated[int, msgspec.Meta(ge=0, le=MOST_EPOCH)] = 0
    shared: Word = ""
    fleet: FleetGain | msgspec.UnsetType = msgspec.UNSET
    baseline: Literal["local"] | msgspec.UnsetType = msgspec.UNSET


class BundleOffer(Message, frozen=True, kw_only=True, tag="bundle"):
    """Coordinator → device (``dn/<dev>/b``): a bundle to fetch, check and rehearse.

    ``bundle``: its digest. ``sequence``: its number, as in its manifest. ``payload``: the transfer
    of its single-file form, of kind ``bundle`` and round 0. ``epoch``: as in the announcement.
    ``shared``: as in a task.
    """

    federation: Word
    bundle: Word
    sequence: Annotated[int, msgspec.Meta(ge=0, le=MOST_SEQUENCE)]
    payload: TransferOffer | None = None
    epoch: Annotated[int, msgspec.Meta(ge=0, le=MOST_EPOCH)] = 0
    shared: Word = ""


class Need(Message, frozen=True, kw_only=True, omit_defaults=True, tag="need"):
    """Receiver → sender: the half-open chunk ranges still missing, and how many may be sent.

    ``listening``: the device has subscribed to the shared chunks that its task names.
    """

    transfer_id: TransferId
    missing: tuple[tuple[int, int], ...]
    credit: int
    listening: bool = False


class Receipt(Message, frozen=True, kw_only=True, omit_defaults=True, tag="receipt"):
    """Receiver → sender: the blob is complete and right (``done``), or why it never will be.

    ``rule``: the broken rule's name, for programs; left out where none is named. ``reason``: for
    people; may be left out, and is always written.
    """

    transfer_id: TransferId
    status: Literal["done", "reject"]
    reason: str = msgspec.field(default_factory=str)  # a plain default would leave it out, too
    rule: str = ""


HeartbeatPhase = Literal["idle", "receive", "train", "send", "leave"]
"""Where a device is in its round."""


MOST_LOG_CHARS = 8192
"""Of a device's log in a heartbeat."""


class Heartbeat(Message, DeviceUsage, frozen=True, omit_defaults=True, tag="heartbeat"):
    """Device → coordinator (``up/<dev>/s``): liveness and what the device has used so far.

    ``log``: last lines of the device's log, where its owner lets them go and ``round_id`` has just
    failed on it; left out where there are none.
    """

    # Not by keyword alone: so they stand before the fields of DeviceUsage in the JSON.
    device_id: Word
    boot_id: Word
    round_id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    phase: HeartbeatPhase
    log: Annotated[str, msgspec.Meta(max_length=MOST_LOG_CHARS)] = ""


AnyMessage = (
    Presence | Announcement | TransferOffer | Task | BundleOffer | Need | Receipt | Heartbeat
)
M = TypeVar("M", bound=Message)

_encoder = msgspec.json.Encoder(order="deterministic")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode(message: Message) -> bytes:
    """JSON bytes, fields in declaration order.

    Raises:
        RefusedError: the message is larger than one packet may be.
    """
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise RefusedError("message-size", f"message: {len(data)} bytes > {MAX_MESSAGE_BYTES}")
    return data


def decode(data: bytes, kind: type[M] | Any = AnyMessage) -> M:
    """The record in ``data``, checked against ``kind`` (a record type or a union of them).

    Raises:
        RefusedError: too large, not JSON, another record, or a field missing or of a wrong type.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise RefusedError("message-size", f"message: {len(data)} bytes > {MAX_MESSAGE_BYTES}")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(data)  # type: ignore[no-any-return]  # msgspec's stub
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("message-schema", f"message: {error}") from error
