"""Personalises a bundle's model on the device alone: a head, trained at once on cached features."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData
from protofleet.edge.learning.head import (
    MOST_EXAMPLES,
    DenseHead,
    check_dense,
    fit_head,
    head_of,
    last_layer,
    with_head,
)
from protofleet.edge.learning.training import EVALUATION_BATCH, LocalData, check_data
from protofleet.edge.state.journal import StoreBinding
from protofleet.edge.state.store import Store
from protofleet.errors import InputError, ProvisionError
from protofleet.federation.outcomes.gate import GateEvidence
from protofleet.runtime import Programs
from protofleet.strategies.common import network_tensors
from protofleet.strategies.tasks import TASKS
from protofleet.strategies.types import ClientState
from protofleet.tensors import Network

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalisedModel:
    """A bundle's model with another head.

    Attributes:
        network: its values.
        head: its last layer.
        evidence: how it compares with the bundle's own.
    """

    network: Network
    head: DenseHead
    evidence: GateEvidence


def personalise(bundle: Bundle, programs: Programs, data: LocalData) -> PersonalisedModel:
    """Train the head of a bundle's model on a device's labelled examples.

    Args:
        bundle: verified.
        programs: of it.
        data: the device's.

    Raises:
        InputError: the task is segmentation, the data do not fit, there are no labelled examples or
            too many, or the model has no dense layer at its end of which the bundle tells what goes
            in.
    """
    manifest, network = bundle.manifest, bundle.model().network
    check_data(data, manifest)
    if manifest.task == "segmentation":
        raise InputError(
            "bundle: its task is segmentation, of which no head is trained alone; a federation "
            "trains all layers"
        )
    own = data.own
    if not len(own.y_train):
        raise InputError("device data: expected labelled training examples, got none")
    if len(own.y_train) > MOST_EXAMPLES:
        raise InputError(
            f"device data: expected at most {MOST_EXAMPLES} training examples, got "
            f"{len(own.y_train)}: with so many a federation trains all layers"
        )

    def inputs(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return programs.into_last_layer(network, x, batch_size=EVALUATION_BATCH)

    first = own.x_train[:EVALUATION_BATCH]
    example = inputs(first)
    names = last_layer(network, manifest.head, example.shape[-1], len(manifest.outputs))
    start = head_of(network, names)
    check_dense(start, example, programs.predict(network, first))
    fitted = fit_head(
        TASKS[manifest.task],
        start,
        (inputs(own.x_train), own.y_train),
        (inputs(own.x_test), own.y_test),
    )
    return PersonalisedModel(
        network=with_head(network, names, fitted.head), head=fitted.head, evidence=fitted.evidence
    )


def store_head(store: Store, bundle: Bundle, fitted: PersonalisedModel, data: LocalData) -> None:
    """Make a head the store's, beside a copy of the bundle with which it predicts.

    What is in use follows from its evidence and the rounds'.

    Args:
        store: open.
        bundle: whose body it sits on.
        fitted: the model with the head.
        data: on which it was trained.
    """
    manifest = bundle.manifest
    store.keep_bundle(bundle)
    store.commit_head(
        StoreBinding(federation="", bundle=bundle.digest, layout_hash=manifest.layout_hash),
        ClientState(round_id=0, tensors=network_tensors(fitted.network)),
        fitted.evidence,
        examples=_digest(data.own),
    )


def head_first(
    store: Store, bundle: Bundle, programs: Programs, data: LocalData
) -> GateEvidence | None:
    """Train and keep a head beside a federation's rounds, where that is possible.

    At each start of a device whose examples or bundle are others than those of the head it has:
    labels may come later. None: it has one, or can have none.
    """
    head, examples = store.journal.head, store.journal.head_examples
    if head and head.binding.bundle == bundle.digest and examples == _digest(data.own):
        return None
    try:
        fitted = personalise(bundle, programs, data)
    except (InputError, ProvisionError) as error:
        _log.info("no head is trained at once: %s", error)
        return None
    store_head(store, bundle, fitted, data)
    return fitted.evidence


def _digest(own: DeviceData) -> str:
    """SHA-256 of the examples, in hex digits."""
    digest = hashlib.sha256()
    for part in (own.x_train, own.y_train, own.x_test, own.y_test):
        digest.update(repr((part.shape, part.dtype.str)).encode())
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
