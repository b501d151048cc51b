"""What a device does with a task, for every place it may stand at."""

from __future__ import annotations

import pytest

from protofleet.edge.decide import Decision, DevicePhase, RoundProgress, decide
from protofleet.wire.messages import Task, TransferOffer


def _task(round_id: int, transfer: str = "") -> Task:
    payload = TransferOffer(
        transfer_id=transfer or f"t{round_id}",
        kind="payload",
        round_id=round_id,
        total_bytes=1,
        sha256="",
        chunk_bytes=1,
    )
    return Task(task="train", round_id=round_id, federation="f", payload=payload)


_FINISH = Task(task="finish", round_id=9, federation="f")


def _at(phase: DevicePhase) -> RoundProgress:
    if phase is DevicePhase.IDLE:
        return RoundProgress(phase=phase, last_round_id=4, last_transfer_id="t4")
    return RoundProgress(
        phase=phase, round_id=5, transfer_id="t5", last_round_id=4, last_transfer_id="t4"
    )


@pytest.mark.parametrize(
    ("phase", "newer", "finish"),
    [
        (DevicePhase.IDLE, Decision.BEGIN, Decision.BEGIN),
        (DevicePhase.RECEIVE, Decision.REPLACE, Decision.REPLACE),
        (DevicePhase.TRAIN, Decision.REPLACE, Decision.REPLACE),
        (DevicePhase.SEND, Decision.SETTLE, Decision.SETTLE),
    ],
)
def test_a_newer_task_and_the_finish(phase, newer, finish):
    assert decide(_at(phase), _task(6)) is newer
    assert decide(_at(phase), _FINISH) is finish


@pytest.mark.parametrize("phase", [DevicePhase.RECEIVE, DevicePhase.TRAIN, DevicePhase.SEND])
def test_the_task_in_progress_is_only_answered_again(phase):
    assert decide(_at(phase), _task(5)) is Decision.REPEAT


@pytest.mark.parametrize("phase", list(DevicePhase)[:4])
def test_the_round_delivered_last_is_not_trained_again(phase):
    assert decide(_at(phase), _task(4)) is Decision.REPEAT


@pytest.mark.parametrize("phase", list(DevicePhase)[:4])
def test_an_older_round_is_refused(phase):
    assert decide(_at(phase), _task(3)) is Decision.REFUSE
    assert decide(_at(phase), _task(4, "another payload")) is Decision.REFUSE


def test_a_training_task_without_payload_is_refused():
    task = Task(task="train", round_id=9, federation="f")
    assert decide(_at(DevicePhase.IDLE), task) is Decision.REFUSE


def test_another_payload_of_the_round_in_progress_replaces_it():
    assert decide(_at(DevicePhase.RECEIVE), _task(5, "other")) is Decision.REPLACE
    assert decide(_at(DevicePhase.SEND), _task(5, "other")) is Decision.SETTLE
