"""Every decoder of bytes from outside: what the tests and ``make fuzz`` run."""

from __future__ import annotations

from fuzz.enrolment_targets import TARGETS as ENROLMENT
from fuzz.file_targets import TARGETS as FILES
from fuzz.target import Target
from fuzz.transfer_targets import TARGETS as TRANSFERS
from fuzz.wire_targets import TARGETS as WIRE

_LISTS = (WIRE, ENROLMENT, TRANSFERS, FILES)
TARGETS: dict[str, Target] = {target.name: target for targets in _LISTS for target in targets}
