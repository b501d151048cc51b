"""Events as a person reads them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from rich.text import Text

from protofleet.coordinator import events
from protofleet.federation.outcomes.outcome import OwnerOutcome, outcome_of
from protofleet.federation.records import Metrics, Scores, Spread


def test_every_event_has_a_sentence_and_comes_back_from_its_line():
    """Made of placeholders; a kind without a sentence raises here."""
    for kind in events.KINDS:
        event = msgspec.convert({"event": kind.__struct_config__.tag, **_placeholders(kind)}, kind)
        assert event.text, kind
        assert event.text.isprintable()
        assert events.from_line(events.to_line(event, 1.5).encode()) == event


def test_every_event_stands_in_the_pages_table():
    text = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    named = {line.split("|")[1] for line in text.splitlines() if line.startswith("| `")}
    tags = [kind.__struct_config__.tag for kind in events.KINDS]
    assert [tag for tag in tags if not any(f"`{tag}`" in first for first in named)] == []


def _placeholders(kind):
    made = {
        "claim": "difference",
        "scores": {},
        "privacy": None,
        "costs": None,
        "awaited": {},
        "trained": 1,
        "loss": 0.5,
        "rates": [0.01, 0.1],
        "ratios": [0.9, 0.5],
    }
    simple = {"int": 3, "float": 1.5, "str": "x", "bool": True}
    found = {}
    for field in msgspec.structs.fields(kind):
        name = getattr(field.type, "__name__", "")
        if field.name in made:
            found[field.encode_name] = made[field.name]
        elif field.required:
            found[field.encode_name] = simple.get(name, ["x"])
    return found


def test_a_line_of_another_version_is_no_event():
    assert events.from_line(b'{"event":"of_the_future","time_s":1.5}') is None
    assert events.from_line(b'{"event":"waiting","time_s":1.5,"round') is None


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
    assert closed.text == (
        "round 3 committed in 1.25 s: 4 updates, 1.5 MB up, 900 B down; macro-F1: "
        "personalisation 0.5000, global 0.5000, after_fit 0.5000"
    )


def test_what_devices_send_is_text_and_no_markup():
    refused = events.DeviceRefused(device_id="a", rule="bundle", reason="[bold]x[/bold]")
    assert refused.text == "refused a (bundle): [bold]x[/bold]"


def test_an_event_is_one_line_of_json_with_its_fields_in_order():
    line = events.to_line(events.DeviceOnline(device_id="a", live=2), 1.5)
    assert line == '{"event":"device_online","time_s":1.5,"device_id":"a","live":2}'


def test_a_line_has_the_first_score_of_the_task():
    metrics = {"rmse": Spread(mean=12.3456, std=1.0), "r2": Spread(mean=0.5, std=0.0)}
    finished = events.Finished(
        rounds=2, result="r", scores=Scores(task="regression", personalisation=metrics)
    )
    end = "r; to look at it: protofleet report ."
    assert finished.text == f"finished after 2 rounds; best RMSE: personalisation 12.35; {end}"
    undefined = Scores(task="multilabel", personalisation={})
    unscored = events.Finished(rounds=2, result="r", scores=undefined)
    assert unscored.text == f"finished after 2 rounds; {end}"
    owner = OwnerOutcome(id="a", examples=9, start=0.5, end=0.25, gain=-0.25)
    told = msgspec.structs.replace(finished, outcome=outcome_of("classification", [owner]).summary)
    assert told.text == (
        "finished after 2 rounds; 1 owner: balanced accuracy 50.0 % at the start, 25.0 % now; "
        f"0 better than at the start, 1 worse; {end}"
    )


def _round_of(participants, trained):
    closed = events.RoundClosed(
        round_id=3,
        seconds=1.0,
        participants=participants,
        bytes_up=10,
        bytes_down=10,
        scores=Scores(),
        trained=trained,
    )
    return closed.text


def test_a_round_in_which_nobody_trained_is_no_progress_and_says_so():
    assert "2 updates (none of a device with training examples: nothing was learnt), " in (
        _round_of(2, 0)
    )
    assert "3 updates (2 of devices with examples), " in _round_of(3, 2)
    assert "3 updates, " in _round_of(3, 3)
    assert "3 updates, " in _round_of(3, None)
    all_idle = events.Finished(rounds=2, idle=2, result="r", scores=Scores())
    assert "after 2 rounds, in none of which a device had training examples; " in all_idle.text
    one_idle = events.Finished(rounds=2, idle=1, result="r", scores=Scores())
    assert "after 2 rounds, in 1 of which no device had training examples; " in one_idle.text


_TRAP = "\x1b]0;pwned\x07[red]x[/red] :smile:\n12:00:00 finished \u202e"


def test_text_from_the_wire_neither_styles_nor_commands_the_terminal():
    """A reason of a receipt gave the operator's terminal another title."""
    event = events.TaskRefused(round_id=1, device_id="a", rule="strategy", reason=_TRAP)
    text = Text.from_markup(event.sentence, emoji=False)
    assert text.spans == []
    assert text.plain.isprintable()
    assert "[red]x[/red] :smile:" in text.plain
    line = events.to_line(event, 1.5)
    assert line.isprintable()
    assert json.loads(line)["reason"] == _TRAP


def test_what_was_withheld_is_told():
    event = events.Withheld(kind="device_refused", count=812, seconds=60.0)
    assert event.text == "and 812 more of device_refused in the last 60 s"
