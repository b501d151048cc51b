"""When a run ends before its last round: by every case of its rules, and as it is told."""

from __future__ import annotations

import msgspec
import pytest

from protofleet.federation.schedules.early_stopping import (
    NEVER,
    EarlyEnd,
    EarlyStopping,
    StopSettings,
)

_FEW = StopSettings(patience=3)


def _ended(settings, told, task="classification"):
    """After which of the rounds the run ends; 0: after none."""
    stopping = EarlyStopping(settings, task)
    for number, (score, loss) in enumerate(told, 1):
        if (found := stopping.add(number, score, loss, planned=100)) is not None:
            assert (found.after, found.planned, found.stop) == (number, 100, settings)
            return number
    return 0


@pytest.mark.parametrize(
    ("told", "ended"),
    [
        ([(1.0, 0.5)] * 9, 4),  # the first round always brings something
        ([(0.5 + 0.01 * n, 0.5) for n in range(9)], 0),
        ([(0.5, 2.0 - 0.05 * n) for n in range(9)], 0),
        ([(0.5 + 0.004 * (n % 2), 2.0 - 0.001 * n) for n in range(9)], 4),
        ([(0.5, 1.0), (0.4, 2.0), (0.6, 2.0), (0.6, 2.0), (0.5, 1.0), (0.6, 1.0)], 6),
        ([(None, 0.5)] * 9, 4),
        ([(0.5, None)] * 9, 4),
        ([(0.9, 0.2), (None, None), (None, None), (None, None), (0.9, 0.2)], 0),
        ([(None, float("nan"))] * 9, 3),
        ([(0.2, 0.0)] * 9, 4),
    ],
)
def test_a_run_ends_when_neither_score_nor_loss_improves_by_a_step(told, ended):
    assert _ended(_FEW, told) == ended
    assert _ended(NEVER, told) == 0


def test_small_steps_that_add_up_count():
    """What is compared is the best at the last step, not the round before."""
    creeping = [(0.5 + 0.002 * n, 2.0) for n in range(30)]
    assert _ended(StopSettings(patience=3), creeping) == 0


def test_an_error_improves_downwards():
    falling = [(10.0 * 0.9**n, 1.0) for n in range(9)]
    assert _ended(_FEW, falling, "regression") == 0
    assert _ended(_FEW, falling[::-1], "regression") == 4
    assert _ended(StopSettings(patience=0, target=8.0), falling, "regression") == 4


def test_a_target_ends_it_at_once():
    reached = StopSettings(patience=0, target=0.9)
    assert _ended(reached, [(0.5, 1.0), (0.89, 0.5), (0.9, 0.4)]) == 3
    assert _ended(reached, [(None, 0.1)] * 9) == 0
    stopping = EarlyStopping(reached, "classification")
    text = stopping.add(7, 0.912, 0.3, planned=300).text
    assert text == (
        "ended after round 7 of 300: the target of 90.0 % is reached (accuracy 91.2 %); "
        "another target in [stop] goes on"
    )


def test_what_is_told_of_exhausted_patience_and_how_long_it_holds():
    stopping, found = EarlyStopping(_FEW, "classification"), None
    for number in range(1, 9):
        found = found or stopping.add(number, 0.5 if number < 3 else 0.7, None, planned=20)
    assert found.text.startswith(
        "ended after round 6 of 20: 3 rounds have brought nothing since round 3 (accuracy 70.0 %)"
    )
    assert msgspec.json.decode(msgspec.json.encode(found), type=EarlyEnd) == found
    assert [found.limit(planned, _FEW) for planned in (4, 20, 21)] == [4, 6, 21]
    assert found.limit(20, NEVER) == 20
    assert msgspec.structs.replace(found, lifted=True).limit(20, _FEW) == 20


@pytest.mark.parametrize(
    ("task", "before", "now", "drifted"),
    [
        ("classification", (0.9, 1.0), (0.5, 1.05), False),
        ("classification", (0.9, 1.0), (0.9, 1.2), True),
        ("classification", (0.9, None), (0.86, None), False),
        ("classification", (0.9, None), (0.8, None), True),
        ("regression", (5.0, None), (5.1, None), False),
        ("regression", (5.0, None), (6.0, None), True),
        ("classification", (0.9, 1.0), (None, None), False),
    ],
)
def test_what_a_look_at_a_run_at_rest_finds(task, before, now, drifted):
    stopping = EarlyStopping(StopSettings(patience=1, rest_s=60.0), task)
    stopping.add(1, *before, planned=9)
    resting = stopping.add(2, *before, planned=9)
    assert resting.drifted(*now) == drifted
    assert resting.limit(9, resting.stop) == 9
    assert resting.text.startswith("rests after round 2 of 9: 1 round has brought nothing since")


@pytest.mark.parametrize(
    "wrong", [{"patience": -1}, {"target": 0.0}, {"target": float("nan")}, {"rest_s": -1.0}]
)
def test_settings_that_mean_nothing(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}`: expected"):
        StopSettings(**wrong)
