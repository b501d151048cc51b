"""What every event of a coordinator is."""

from __future__ import annotations

import logging
from typing import ClassVar

import msgspec
from rich.text import Text


class CoordinatorEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events.

    Attributes:
        level: as the levels of ``logging``: an error stops a run, a warning is to be looked at.
        routine: it only says that all goes on as it should: no result, no trouble, no waiting.
    """

    level: ClassVar[int] = logging.INFO
    routine: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """As lines of JSON have it in ``event``."""
        return str(type(self).__struct_config__.tag)

    @property
    def sentence(self) -> str:
        """What it says to a person, in a line of rich markup; texts from outside are escaped."""
        return self._says()

    @property
    def text(self) -> str:
        """The sentence without markup, safe to show."""
        return Text.from_markup(self.sentence, emoji=False).plain

    def _says(self) -> str:
        """The sentence; each kind has its own."""
        raise NotImplementedError(f"event '{self.name}' has no sentence")


class RefusalEvent(CoordinatorEvent, frozen=True, kw_only=True):
    """Base of what was refused to a device, or by one: the broken ``rule`` and the ``reason``."""

    level: ClassVar[int] = logging.WARNING

    device_id: str
    rule: str
    reason: str
