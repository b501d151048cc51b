"""Options that belong together reach a command as one record."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

Command = Callable[..., None]
Option = Callable[[Command], Command]


def gathered(record: type[Any], name: str, options: Sequence[Option]) -> Option:
    """A decorator that adds options to a command.

    Args:
        record: a dataclass whose fields are called as the options' values.
        name: of the command's parameter that gets it.
        options: in the order of the help.
    """
    fields = [field.name for field in dataclasses.fields(record)]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def called(**values: Any) -> None:
            own = {field: values.pop(field) for field in fields if field in values}
            command(**{name: record(**own)}, **values)

        made: Command = called
        for option in reversed(options):
            made = option(made)
        return made

    return decorate
