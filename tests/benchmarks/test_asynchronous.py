"""What is told of runs that differ in their schedules; the runs themselves are in tests/e2e."""

from __future__ import annotations

from protofleet.benchmarks.asynchronous import rows, show
from protofleet.experiments.store import MethodResult
from protofleet.federation.records import RoundRecord, Scores, Spread


def _result(label, seconds, scores, *, staleness=0.0):
    rounds = tuple(
        RoundRecord(
            round_id=number,
            seconds=seconds,
            participants=3,
            bytes_up=0,
            bytes_down=0,
            scores=Scores(global_={"macro_f1": Spread(mean=score, std=0.0)}),
            staleness=staleness,
        )
        for number, score in enumerate(scores, 1)
    )
    return MethodResult(
        experiment="e",
        label=label,
        strategy="fedavg",
        seed=1,
        identity="",
        engine="mqtt",
        finished=True,
        rounds=rounds,
    )


def test_the_wall_time_to_the_same_score():
    """98 % of the first method's best score, wherever it is first reached."""
    results = [
        _result("Synchronous", 10.0, [0.5, 0.79, 0.8]),
        _result("Buffered", 2.0, [0.4, 0.6, 0.79, 0.75], staleness=1.0),
        _result("Neither", 1.0, [0.1, 0.2]),
    ]
    found = list(rows(results, "Synchronous", "macro_f1"))
    assert [(one.seconds, one.rounds) for one in found] == [(20.0, 2), (6.0, 3), (None, None)]
    assert [one.target for one in found] == [0.784] * 3
    assert (found[1].updates, found[1].staleness, found[1].best) == (9, 1.0, 0.79)
    told = []
    show(found, told.append)
    assert told[-1] == "seed 1: Buffered 3.33 times as fast"
    assert "not reached" in told[2]
