"""``protofleet experiment claims``: trains what is missing, tells the verdicts, writes the page."""

import json

import pytest
from paired_runs import EXPERIMENT, a_run, store_runs, write_files

from protofleet.cli import main


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROTOFLEET_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def claims(*args):
    """The exit status."""
    with pytest.raises(SystemExit) as caught:
        main(["experiment", "claims", "--claims", "papers", *map(str, args)])
    return caught.value.code or 0


@pytest.mark.slow(seconds=15)
def test_a_tiny_claim_is_trained_tested_and_written(place, capsys):
    """Then nothing is left to train, and the page is the same from what is stored."""
    write_files(place)
    (place / "one.toml").write_text(EXPERIMENT.replace("[1, 2, 3]", "[1, 2]"))
    outputs = ("--markdown", "claims.md", "--json", "claims.json", "--pictures", "images")
    assert claims("--workers", "1", *outputs) == 0
    printed = capsys.readouterr().out
    assert "A - B, personalisation, last round > 0 (2/2 seeds): " in printed
    (result,) = json.loads((place / "claims.json").read_bytes())
    assert result["outcomes"][0]["verdict"] in {"reproduced", "refuted", "not decided"}
    assert [pair[0] for pair in result["outcomes"][0]["pairs"]] == [1, 2]
    page = (place / "results" / "claims-fedx.md").read_text()
    assert "](../images/claims-fedx-better.png)" in page
    assert (place / "images" / "claims-fedx-better.png").read_bytes().startswith(b"\x89PNG")
    assert claims("--workers", "1", *outputs) == 0
    assert "dividing the data" not in capsys.readouterr().out
    assert (place / "results" / "claims-fedx.md").read_text() == page


def test_the_status_trains_nothing(place, capsys):
    experiment = write_files(place)
    runs = [a_run(label, seed, [0.5] * 3) for label in "AB" for seed in (1, 2)]
    store_runs(place / "runs" / "one", experiment, *runs)
    assert claims("--status", "--json", "c.json", "--markdown", "c.md") == 0
    printed = capsys.readouterr().out
    assert "one lacks seeds 3 (every method)" in printed
    assert "so far not decided" in printed
    assert not (place / "runs" / "one" / "data").exists()
    assert json.loads((place / "c.json").read_bytes())[0]["seeds_done"] == 2
    assert "| 2 of 3 | so far not decided |\n" in (place / "c.md").read_text()
    assert "| 2/3 | so far not decided |" in (place / "results" / "c-fedx.md").read_text()


def test_an_earlier_file_counts_where_it_has_more_of_the_same_experiment(place, capsys):
    experiment = write_files(place)
    runs = [a_run(label, seed, [0.5] * 3) for label in "AB" for seed in (1, 2)]
    store_runs(place / "runs" / "one", experiment, *runs)
    assert claims("--status", "--json", "two.json", "--pictures", "images") == 0
    picture = (place / "images" / "claims-fedx-better.png").read_bytes()
    empty = ("--status", "--out", "empty", "--markdown", "claims.md", "--pictures", "images")
    assert claims(*empty, "--earlier", "two.json", "--json", "again.json") == 0
    assert (place / "again.json").read_bytes() == (place / "two.json").read_bytes()
    assert "claims-fedx-better.png)" in (place / "results" / "claims-fedx.md").read_text()
    assert (place / "images" / "claims-fedx-better.png").read_bytes() == picture
    (place / "one.toml").write_text(EXPERIMENT.replace("rounds = 3", "rounds = 4"))
    capsys.readouterr()
    assert claims(*empty, "--earlier", "two.json") == 0
    assert "not measured" in capsys.readouterr().out
    assert claims("--status", "--earlier", "claims.md") == 1
    assert "expected what 'protofleet experiment claims --json' writes" in capsys.readouterr().err


def test_without_its_data_a_claim_is_left_out_and_told(place, capsys):
    write_files(place)
    (place / "one.toml").write_text(EXPERIMENT.replace('"digits"', '"hhar"'))
    assert claims("--data-root", place / "nowhere") == 0
    printed = capsys.readouterr().out
    assert "one: left out: " in printed
    assert "Phones_accelerometer.csv" in printed.replace("\n", "")
    assert "not measured" in printed


def test_an_unknown_claim_and_a_folder_without_claims_are_one_line(place, capsys):
    write_files(place)
    assert claims("fedx-beter", "--status") == 1
    assert "claim 'fedx-beter': not known; did you mean fedx-better?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["experiment", "claims", "--status", "--claims", str(place)])
    assert "claims '" in capsys.readouterr().err


def test_a_name_like_no_other_is_refused_with_all_of_them(place, capsys):
    write_files(place)
    assert claims("nothing", "--status") == 1
    assert "claim 'nothing': not known; known are fedx-better" in capsys.readouterr().err


def test_examples_in_the_help_keep_their_lines(capsys):
    for command in ("claims", "table"):
        with pytest.raises(SystemExit):
            main(["experiment", command, "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith(f"    protofleet experiment {command} ") for line in lines)


def test_finished_runs_of_more_rounds_are_not_replaced(place, capsys):
    experiment = write_files(place)
    store_runs(place / "runs" / "one", experiment, a_run("A", 1, [0.5] * 4))
    assert claims() == 1
    assert "which would be lost; choose another --out" in capsys.readouterr().err
