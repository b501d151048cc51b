"""What a person says of columns and labels, in a file that the command proposes."""

from __future__ import annotations

import tomllib
import zipfile

import msgspec
import numpy as np
import pytest

import protofleet
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli._store import table_mapping
from protofleet.edge.data.csv_rows import Row
from protofleet.edge.data.examples import load_examples
from protofleet.edge.data.mapping import TableMapping, proposal, read_mapping
from protofleet.edge.data.unbundled import manifest_for
from protofleet.errors import InputError, MissingDataError

_INPUTS = Preprocessing(
    input_shape=(20, 3),
    rate_hz=10.0,
    window=20,
    hop=10,
    channels=("acc_x", "acc_y", "acc_z"),
    units=("m/s²",) * 3,
)
_HEAD = "Zeit [ms];Beschl. vorn [g];Beschl. seitlich [g];Beschl. oben [g];Akku;Tätigkeit"


@pytest.fixture
def manifest():
    return manifest_for(_INPUTS, ("still", "walk"))


def _recording(head=_HEAD, labels=("Sitzen", "Gehen")):
    rows = [f"{100 * k};{k % 7};0;1;99;{labels[k // 100]}" for k in range(200)]
    return "\n".join([head, *rows, ""])


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(_recording())
    return path


_COMPLETE = """
[columns]
"Zeit [ms]" = "time"
"Beschl. vorn [g]" = "acc_x"
"Beschl. seitlich [g]" = "acc_y"
"Beschl. oben [g]" = "acc_z"
"Akku" = ""
"Tätigkeit" = "label"
[labels]
"Sitzen" = "still"
"Gehen" = "walk"
"""


def _read(sources, manifest, text, tmp_path):
    path = tmp_path / "map.toml"
    path.write_text(text)
    mapping = read_mapping(path, manifest)
    blocks = list(load_examples([str(one) for one in sources], manifest, mapping=mapping))
    return np.concatenate([one.x for one in blocks]), np.concatenate([one.y for one in blocks])


def test_columns_units_times_and_labels_are_what_a_person_says(table, manifest, tmp_path):
    with pytest.raises(InputError, match="is for saying what its columns are"):
        list(load_examples([str(table)], manifest))
    x, y = _read([table], manifest, _COMPLETE, tmp_path)
    assert (len(x), y[0], y[-1]) == (19, 0, 1)
    np.testing.assert_allclose(x[5, :, 2], 9.80665, rtol=1e-4)  # from g to the bundle's unit
    np.testing.assert_allclose(x[5, :, 1], 0, atol=1e-6)


def test_the_next_recording_uses_it_in_a_zip_and_by_the_name_of_a_folder(manifest, tmp_path):
    head = _HEAD.removesuffix(";Tätigkeit")
    text = "\n".join(row.rsplit(";", 1)[0] for row in _recording().splitlines()[1:])
    with zipfile.ZipFile(tmp_path / "next.zip", "w") as archive:
        archive.writestr("gehen/eins.csv", f"{head}\n{text}\n")
        archive.writestr("Sitzen.csv", f"{head}\n{text}\n")
    mapping = _COMPLETE.replace('"Gehen"', '"gehen"')
    _, y = _read([tmp_path / "next.zip"], manifest, mapping, tmp_path)
    assert (len(y), set(y)) == (38, {0, 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[columns]\n"a" = "acc_w"\n', r"\[columns\] 'a': expected one of acc_x, .*, got 'acc_w'"),
        ('[labels]\n"a" = "run"\n', r"\[labels\] 'a': expected one of still, walk, .*, got 'run'"),
        ("[colums]\n", "contains unknown field `colums`"),
        ("[columns]\na = 5\n", "Expected `str`, got `int`"),
        ("columns", "map.toml': "),
    ],
)
def test_what_a_mapping_cannot_mean_is_named(manifest, tmp_path, text, said):
    path = tmp_path / "map.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_mapping(path, manifest)
    with pytest.raises(MissingDataError, match="no such file"):
        read_mapping(tmp_path / "other.toml", manifest)


def test_a_proposal_has_what_is_known_and_leaves_the_rest_to_a_person(table, manifest, tmp_path):
    path = tmp_path / "map.toml"
    with pytest.raises(InputError, match=r"map\.toml': written, .* complete it"):
        table_mapping(path, [str(table)], manifest)
    found = tomllib.loads(path.read_text())
    assert list(found["columns"]) == [one.strip() for one in _HEAD.split(";")]
    guessed = {name: what for name, what in found["columns"].items() if what}
    assert guessed == {"Zeit [ms]": "time"}  # by its unit
    assert found["labels"] == {}
    assert "acc_x, acc_y, acc_z, time, label" in path.read_text()
    path.write_text(_COMPLETE)
    assert table_mapping(path, [str(table)], manifest) == read_mapping(path, manifest)
    assert table_mapping(None, [str(table)], manifest) == TableMapping()


@pytest.mark.parametrize(
    ("place", "source", "said"),
    [
        ("nowhere/map.toml", "mine.csv", "no such folder"),
        ("map.toml", "-", "no such file; recordings"),
    ],
)
def test_what_cannot_be_proposed_is_named(manifest, tmp_path, place, source, said):
    with pytest.raises(InputError, match=said):
        table_mapping(tmp_path / place, [source], manifest)


def test_a_proposal_knows_columns_by_their_words_and_lists_labels_that_are_no_classes(manifest):
    rows = list(
        _rows("Timestamp (ms),Acc X [g],y,accelerometer_z,Activity\n1,2,3,4,walk\n2,3,4,5,run")
    )
    found = tomllib.loads(proposal("mine.csv", [("mine", rows)], manifest))
    assert found["columns"] == {
        "Timestamp (ms)": "time",
        "Acc X [g]": "acc_x",
        "y": "acc_y",
        "accelerometer_z": "acc_z",
        "Activity": "label",
    }
    assert found["labels"] == {"run": ""}
    odd = list(_rows('a"b\\c\x7f,ü'))
    assert set(tomllib.loads(proposal("x", [("x", odd)], manifest))["columns"]) == {
        'a"b\\c\x7f',
        "ü",
    }


def _rows(text):
    for k, line in enumerate(text.splitlines(), 1):
        yield Row(k, line.split(","))


def test_a_mapping_renames_the_first_row_alone():
    mapping = TableMapping(columns={"a": "acc_x"}, labels={"b": "walk"})
    first, *rest = [row for rows in mapping.rows([[], list(_rows("a [g],a\na,b"))]) for row in rows]
    assert first.cells == ["a [g]", "acc_x"]
    other = TableMapping(columns={"t [ns]": "time", "u [s]": "time", "b": ""})
    (head, *_), *_ = other.rows([list(_rows("t [ns],u [s],b"))])
    assert head.cells == ["time", "time_s", "unused 3"]
    assert [row.cells for row in rest] == [["a", "walk"]]
    assert msgspec.json.encode(mapping.classes(("walk",))) == b'{"walk":"walk","b":"walk"}'


def test_a_person_s_word_goes_before_what_names_sound_like(manifest, tmp_path):
    """Another column of times, and one that is called Activity, are said to be neither."""
    head = "timestamp,clock [ms],Activity,acc_x,acc_y,acc_z,was"
    rows = [f"{7 * k},{100 * k},still,0,0,1,walk" for k in range(200)]
    (tmp_path / "two.csv").write_text("\n".join([head, *rows, ""]))
    text = '[columns]\n"clock [ms]" = "time"\n"Activity" = ""\n"was" = "label"\n'
    x, y = _read([tmp_path / "two.csv"], manifest, text, tmp_path)
    assert len(x) == 19
    assert set(y) == {1}


def test_python_takes_a_mapping(table, manifest, tmp_path):
    path = tmp_path / "map.toml"
    path.write_text(_COMPLETE)
    data = protofleet.read_recording(
        table, preprocessing=_INPUTS, classes=manifest.classes, mapping=path, test_share=0.5
    )
    assert np.bincount(data.y_train).tolist() == [5, 5]
