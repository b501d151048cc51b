"""Finished runs travel in one file, whole and unchanged, and replace nothing."""

import gzip
import json

import msgspec
import pytest

from protofleet.cli.main import main
from protofleet.errors import InputError
from protofleet.experiments.archive import archived_runs, read_archive, unpack, write_archive
from protofleet.experiments.claim_results import diverged_seeds
from protofleet.experiments.store import load_results, run_folder, save_result
from tests.support.paired_runs import a_run, store_runs, write_files


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_files(tmp_path)


@pytest.fixture
def archive(tmp_path, experiment):
    """Three finished runs; one that is not, and one of other settings, stay behind."""
    store_runs(
        tmp_path / "runs" / "one",
        experiment,
        a_run("A", 1, [0.5, 0.6, 0.7]),
        a_run("A", 2, [0.5, 0.6, 0.8]),
        a_run("A", 3, [0.5], finished=False),
        a_run("B", 1, [0.4, 0.5, 0.6]),
        a_run("B", 2, [0.4, 0.5, 0.6], key="of other settings"),
    )
    path = tmp_path / "runs.jsonl.gz"
    write_archive(path, archived_runs({"one": experiment}, tmp_path / "runs"))
    return path


def call(*words):
    with pytest.raises(SystemExit) as ended:
        main(["experiment", *map(str, words)])
    return ended.value.code or 0


def test_finished_runs_arrive_as_they_were_and_the_same_bytes_come_again(
    tmp_path, experiment, archive
):
    assert unpack(archive, tmp_path / "there") == (3, 0)
    here, there = (load_results(tmp_path / name / "one", experiment) for name in ("runs", "there"))
    assert [(run.label, run.seed) for run in there] == [("A", 1), ("A", 2), ("B", 1)]
    assert all(run in here for run in there)
    again = tmp_path / "again.gz"
    write_archive(again, archived_runs({"one": experiment}, tmp_path / "there"))
    assert again.read_bytes() == archive.read_bytes()


def test_a_method_that_diverged_is_told_of_there_too(tmp_path, experiment):
    """Else its claims would say that seeds are missing."""
    begun = a_run("B", 2, [0.4], finished=False)
    broken = msgspec.structs.replace(begun, stopped="a loss is not finite")
    runs = (a_run("B", 3, [0.4, 0.5, 0.6]), broken)
    store_runs(tmp_path / "runs" / "one", experiment, *runs)
    write_archive(tmp_path / "runs.gz", archived_runs({"one": experiment}, tmp_path / "runs"))
    assert [one.run.seed for one in read_archive(tmp_path / "runs.gz")] == [2, 3]
    assert unpack(tmp_path / "runs.gz", tmp_path / "there") == (2, 0)
    assert diverged_seeds(experiment, tmp_path / "there" / "one") == {"A": (), "B": (2,)}


def test_what_is_there_stays_finished_or_begun(tmp_path, experiment, archive):
    ours = a_run("A", 1, [0.1, 0.2, 0.3])
    save_result(run_folder(tmp_path / "there" / "one", experiment.methods[0], 1), ours)
    begun = run_folder(tmp_path / "there" / "one", experiment.methods[0], 2)
    begun.mkdir(parents=True)
    (begun / "identity").write_text("of a run that is under way")
    assert unpack(archive, tmp_path / "there") == (1, 2)
    assert [run.label for run in load_results(tmp_path / "there" / "one", experiment)] == ["A", "B"]
    assert load_results(tmp_path / "there" / "one", experiment)[0] == ours


@pytest.mark.parametrize("name", ["../one", "/one", "one/..", ".hidden", "a//b", "", "a\nb"])
def test_no_run_leaves_the_folder_of_runs(tmp_path, archive, name):
    (line, *_) = gzip.decompress(archive.read_bytes()).splitlines()
    document = json.loads(line) | {"experiment": name}
    archive.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(InputError, match=r"line 1: .*expected the name of an experiment"):
        unpack(archive, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def altered(archive, **fields):
    """The archive's last run with other fields."""
    lines = gzip.decompress(archive.read_bytes()).splitlines()
    document = json.loads(lines[-1])
    document["run"] |= fields
    return gzip.compress(b"\n".join([*lines[:-1], json.dumps(document).encode()]))


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda path: path.read_bytes()[:-20], "Compressed file ended|CRC"),
        (lambda _: b"no gzip", "Not a gzipped file"),
        (lambda _: b"", "empty, no run in it"),
        (lambda _: gzip.compress(b""), "empty, no run in it"),
        (lambda _: gzip.compress(b"no JSON\n"), "line 1: expected a run"),
        (lambda path: altered(path, finished=False), "line 3: .*expected a finished run"),
        (lambda path: altered(path, seed="one"), r"line 3: .*seed"),
    ],
)
def test_a_damaged_file_is_refused_before_anything_is_laid(tmp_path, archive, alter, says):
    archive.write_bytes(alter(archive))
    with pytest.raises(InputError, match=says):
        unpack(archive, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_line_without_end_is_not_read_into_memory(archive, monkeypatch):
    monkeypatch.setattr("protofleet.experiments.archive._MOST_LINE", 1000)
    archive.write_bytes(gzip.compress(b" " * 5000))
    with pytest.raises(InputError, match="line 1: above 1000 bytes"):
        list(read_archive(archive))


def test_the_table_of_another_machine_counts_the_runs(tmp_path, archive, capsys):
    assert call("unpack", archive, "--out", "there") == 0
    assert "there: 3 runs laid" in capsys.readouterr().out
    assert call("unpack", archive, "--out", "there") == 0
    assert "there: 0 runs laid, 3 were there" in capsys.readouterr().out
    assert call("table", "one.toml", "--out", "there/one", "--markdown") == 0
    assert "| A |" in capsys.readouterr().out
    assert call("pack", "one.toml", "--out", "there", "--to", "new.gz") == 0
    assert "new.gz: 3 runs of one" in capsys.readouterr().out
    assert (tmp_path / "new.gz").read_bytes() == archive.read_bytes()


def test_runs_of_other_rounds_than_the_files_are_packed_when_asked_for(tmp_path, experiment):
    short = (a_run("A", 1, [0.5, 0.6]), a_run("B", 1, [0.4, 0.5, 0.6]))
    store_runs(tmp_path / "runs" / "one", experiment, *short)
    assert call("pack", "one.toml", "--rounds", 2, "--to", "short.gz") == 0
    (packed,) = read_archive(tmp_path / "short.gz")
    assert (packed.run.label, packed.run.rounds) == ("A", short[0].rounds)
    assert call("pack", "one.toml", "--to", "whole.gz") == 0
    (packed,) = read_archive(tmp_path / "whole.gz")
    assert (packed.run.label, packed.run.rounds) == ("B", short[1].rounds)


def test_an_archive_of_nothing_is_refused_with_the_remedy(experiment, capsys):
    assert experiment.rounds == 3
    assert call("pack", "one.toml", "--to", "new.gz") == 1
    told = capsys.readouterr().err
    assert "packed with --rounds N" in told
    assert "protofleet experiment run one.toml" in told
    assert call("pack", "one.toml", "--rounds", 9, "--to", "new.gz") == 1
    assert "expected finished runs of one with 9 rounds, found none" in capsys.readouterr().err
