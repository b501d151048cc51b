"""Examines what a federation needs, and says what to do about what is wrong: docs/doctor.md."""

from protofleet.doctor.checkup import Diagnosis, examine
from protofleet.doctor.observations import Level
from protofleet.doctor.subjects import (
    BrokerSubject,
    BundleSubject,
    FederationSubject,
    Machine,
    StoreSubject,
    Subject,
    guess,
    with_machine,
    with_what_it_names,
)

__all__ = [
    "BrokerSubject",
    "BundleSubject",
    "Diagnosis",
    "FederationSubject",
    "Level",
    "Machine",
    "StoreSubject",
    "Subject",
    "examine",
    "guess",
    "with_machine",
    "with_what_it_names",
]
