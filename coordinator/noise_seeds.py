"""Seeds of the noise of rounds that are not committed yet, so that a restart draws it again."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from protofleet.durable import erase, sync_folder, write_whole
from protofleet.errors import ProtofleetError
from protofleet.federation.noise import SEED_BYTES, new_seed


class NoiseSeeds:
    """A file for each round, in a folder that is made with the first.

    Who has a seed can take the noise off again: only its owner may read it, and it goes with the
    commit of its round.

    Args:
        folder: of a run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of_round(self, round_id: int) -> bytes:
        """The seed of a round, drawn and durable when it is asked for first.

        Raises:
            ProtofleetError: its file is no longer what was written.
        """
        path = self.folder / f"{round_id:06d}"
        if not path.exists():
            self.folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, new_seed(round_id))
            sync_folder(path.parent)
        seed = path.read_bytes()
        if len(seed) != SEED_BYTES:
            raise ProtofleetError(f"{path}: damaged; expected {SEED_BYTES} bytes, got {len(seed)}")
        return seed

    def keep_only(self, names: Collection[str]) -> None:
        """Erase the seeds of all rounds but those of these names, six digits each."""
        for file in self.folder.iterdir() if self.folder.exists() else ():
            if file.name not in names:
                erase(file)
