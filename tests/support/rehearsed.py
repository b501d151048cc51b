"""What tests of rehearsals in virtual time share."""

from __future__ import annotations

import msgspec

from protofleet.firmware_sim.world.hardware import PI_4_GFLOPS, PI_4_PRIMES, HostSpeed
from protofleet.rehearsal.fleet_file import DeviceGroup, RehearsalFile

HOST = HostSpeed(primes=PI_4_PRIMES, gflops=PI_4_GFLOPS)
"""As fast as a Pi 4."""


def regrouped(file: RehearsalFile, *groups: DeviceGroup, **others) -> RehearsalFile:
    """The same fleet file with other devices."""
    return msgspec.structs.replace(file, groups=groups or file.groups, **others)
