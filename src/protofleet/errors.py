"""Every error that Protofleet raises on purpose, named by what the caller does next.

A message says what was expected, what came and which thing it concerns, on one line:
``tensor 'head.w': expected (64, 6) float32, got (64, 5) float32``.
"""

from __future__ import annotations

from protofleet.printable import printable


class ProtofleetError(Exception):
    """Root of all deliberate errors; the command line prints its message and exits with a status.

    Attributes:
        exit_status: that status; 1 unless a command has told two kinds of error apart.
    """

    exit_status = 1


class InputError(ProtofleetError):
    """The user's input (file, option, configuration, array) is wrong: correct it."""


class MissingDataError(InputError):
    """A data file is absent; the message names what to put where."""


class RefusedError(ProtofleetError):
    """Bytes from outside broke a rule and were discarded; nothing else was changed.

    What is not printable in its message is escaped, because those who break rules write reasons.

    Attributes:
        rule: short machine-readable name of the broken rule, e.g. ``"sha256"``.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(printable(message))
        self.rule = rule


class ProvisionError(ProtofleetError):
    """Device and federation do not fit together (bundle, layout, identity): provision again."""


class UnavailableError(ProtofleetError):
    """Something outside did not answer (broker, coordinator, device): try again later."""


class StorageError(UnavailableError):
    """A disk takes no writes (full, read-only, failing): put it right; what it has is safe."""


class ExportError(ProtofleetError):
    """A model could not be turned into faithful programs; no bundle was written."""
