"""What a device's command does before NumPy is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from protofleet.cli._verbosity import start_logging
from protofleet.errors import InputError, ProvisionError, RefusedError
from protofleet.threads import thread_variables

NEEDS_PERSON = 2
"""Exit status of a device that no later start mends; click's own for an option that is wrong."""


@contextmanager
def restarted_by_a_service() -> Iterator[None]:
    """What needs a person ends the command with ``NEEDS_PERSON``, as a service's unit asks for."""
    try:
        yield
    except (InputError, ProvisionError, RefusedError) as error:
        error.exit_status = NEEDS_PERSON
        raise


def start_process(threads: int, *, quiet: bool = False) -> None:
    """Bound all thread pools, and start the log.

    Args:
        threads: for programs.
        quiet: only warnings unless more is asked for.
    """
    for variable, value in thread_variables(threads).items():
        os.environ.setdefault(variable, value)
    start_logging(quiet=quiet)
