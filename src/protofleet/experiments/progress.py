"""Where a run of the engine without a broker stands, and the file that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protofleet.durable import write_whole_parts
from protofleet.errors import InputError, MissingDataError, RefusedError
from protofleet.experiments._worker import StoredClient
from protofleet.federation.outcomes.outcome import OwnerOutcome
from protofleet.federation.records import RoundRecord
from protofleet.strategies.types import ServerState
from protofleet.tensors import blobs

_FILE = "checkpoint.safetensors"


@dataclass(frozen=True, slots=True)
class ClientProgress:
    """The last complete round of a client.

    Attributes:
        round_id: of that.
        reference: of its payload, if the next one refers to it.
        owner: what the run has done for its owner so far; None: not told.
    """

    round_id: int
    reference: str
    owner: OwnerOutcome | None = None


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Where a run stands; what clients keep is with the workers.

    Attributes:
        server: the server's state.
        clients: how far those are that have trained.
        references: raw blobs of the payloads that clients have, by their reference.
        rounds: those that are done.
    """

    server: ServerState
    clients: Mapping[str, ClientProgress]
    references: Mapping[str, bytes]
    rounds: tuple[RoundRecord, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the file says.

    Attributes:
        identity: of the run (``Job.identity``).
        server: its state.
        clients: how far they are.
        kept: what they keep.
        references: as in ``RunProgress``.
    """

    identity: str
    server: ServerState
    clients: Mapping[str, ClientProgress]
    kept: dict[str, StoredClient]
    references: Mapping[str, bytes]


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has left one in its folder."""
    return (folder / _FILE).is_file()


def save_checkpoint(
    folder: Path, run: RunProgress, stored: Mapping[str, StoredClient], identity: str
) -> None:
    """Write where a run stands and what its clients keep, whole or not at all."""
    contents = {"server": blobs.encoded_parts(run.server.tensors)}
    clients = {}
    for name, one in stored.items():
        told = run.clients[name]
        clients[name] = one.round_id, told.reference, told.owner
        contents[f"client/{name}"] = one.packed_parts()
    for reference, raw in run.references.items():
        contents[f"payload/{reference}"] = [raw]
    about = {"round_id": run.server.round_id, "clients": clients, "identity": identity}
    metadata = {"checkpoint": msgspec.json.encode(about).decode()}
    write_whole_parts(folder / _FILE, blobs.nested_parts(contents, metadata))


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read what ``save_checkpoint`` wrote.

    Raises:
        MissingDataError: there is none.
        InputError: it is damaged.
    """
    file = folder / _FILE
    try:
        data = file.read_bytes()
        tensors, metadata = blobs.decode(data, max_bytes=len(data))
        about = msgspec.json.decode(metadata["checkpoint"])
        server, _ = blobs.decode(tensors["server"].tobytes(), max_bytes=len(data))
        clients, kept, references = {}, {}, {}
        for name, (round_id, reference, *owner) in about["clients"].items():
            packed = tensors[f"client/{name}"].tobytes()
            kept[name] = StoredClient.unpacked(round_id, packed)
            told = msgspec.convert(owner[0] if owner else None, OwnerOutcome | None)
            clients[name] = ClientProgress(round_id, reference, told)
            if reference and reference not in references:
                references[reference] = tensors[f"payload/{reference}"].tobytes()
        state = ServerState(round_id=about["round_id"], tensors=server)
        return Checkpoint(about["identity"], state, clients, kept, references)
    except FileNotFoundError as error:
        raise MissingDataError(f"checkpoint '{file}': no such file") from error
    except (KeyError, ValueError, RefusedError) as error:
        raise InputError(f"checkpoint '{file}': {error}; remove it to run again") from error


def remove_checkpoint(folder: Path) -> None:
    """Remove it, if there is one."""
    (folder / _FILE).unlink(missing_ok=True)
