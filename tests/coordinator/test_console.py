"""Events as a person reads them."""

from __future__ import annotations

from rich.text import Text

from protofleet.coordinator import events
from protofleet.coordinator.console import to_text
from protofleet.federation.records import Metrics, Scores, Spread


def _plain(event):
    return Text.from_markup(to_text(event)).plain


def test_a_closed_round_is_one_line_with_its_scores():
    metrics = Metrics(macro_f1=Spread(mean=0.5, std=0.1), accuracy=Spread(mean=0.75, std=0.0))
    closed = events.RoundClosed(
        round_id=3,
        seconds=1.25,
        participants=4,
        bytes_up=1_500_000,
        bytes_down=900,
        scores=Scores(personalisation=metrics, more={"after_fit": metrics}, global_=metrics),
    )
    assert _plain(closed) == (
        "round 3 committed in 1.25 s: 4 updates, 1.5 MB up, 900 B down; macro-F1: "
        "personalisation 0.5000, global 0.5000, after_fit 0.5000"
    )


def test_what_devices_send_is_text_and_no_markup():
    refused = events.DeviceRefused(device_id="a", rule="bundle", reason="[bold]x[/bold]")
    assert _plain(refused) == "refused a (bundle): [bold]x[/bold]"


def test_an_event_is_one_line_of_json_with_its_fields_in_order():
    line = events.to_line(events.DeviceOnline(device_id="a", live=2), 1.5)
    assert line == '{"event":"device_online","time_s":1.5,"device_id":"a","live":2}'


def test_a_line_has_the_first_score_of_the_task():
    metrics = {"rmse": Spread(mean=12.3456, std=1.0), "r2": Spread(mean=0.5, std=0.0)}
    finished = events.Finished(
        rounds=2, result="r", scores=Scores(task="regression", personalisation=metrics)
    )
    end = "r; to look at it: protofleet report ."
    assert _plain(finished) == f"finished after 2 rounds; best RMSE: personalisation 12.35; {end}"
    undefined = Scores(task="multilabel", personalisation={})
    unscored = events.Finished(rounds=2, result="r", scores=undefined)
    assert _plain(unscored) == f"finished after 2 rounds; {end}"
