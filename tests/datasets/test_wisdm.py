"""The raw file is not at hand: five real lines, and malformed lines written by hand."""

import numpy as np
import pytest

from protofleet.datasets import wisdm
from protofleet.errors import MissingDataError


@pytest.mark.data
def test_real_lines_are_read(data_root):
    path = data_root / "wisdm" / "WISDM_ar_v1.1_raw_first5lines.txt"
    read = wisdm.parse_wisdm(path.read_text().splitlines(keepends=True))
    assert len(read.user) == 5
    assert not read.refused
    assert set(read.user.tolist()) == {33}
    assert {wisdm.CLASSES[label] for label in read.label} == {"Jogging"}
    assert 0 < np.diff(read.time_s).max() < 1


def test_quirks_are_read_and_malformed_records_are_counted():
    """Every quirk that the data set's readers report, each once."""
    text = [
        "33,Jogging,49105962326000,-0.69,12.68,0.50;\n",
        "33,Jogging,49106012326000,5.01,11.26,0.95;33,Jogging,49106062326000,4.9,10.8,-0.08;\n",
        " 33 , Jogging , 49106112326000 , 1 , 2 , 3 ;\n",
        "33,Jogging,49106162326000,1,2,3,;\n",
        "33,Jogging,49106212326000,1,2,3\n",
        "\n",
        "   \n",
        "20,Walking,0,0,0,0.0;\n",
        "11,Walking,1867172313000,4.4,4.4,\n",
        "11,Walking,1867172313000,4.4,,1;\n",
        "11,Dancing,1867172313000,4.4,4,1;\n",
        "11,Walking,x,4.4,4,1;\n",
        "11,Walking,1867172313000,nan,4,1;\n",
    ]
    read = wisdm.parse_wisdm(text)
    assert len(read.user) == 6
    assert read.refused == {
        "with timestamp 0": 1,
        "with 5 fields instead of 6": 1,
        "with an empty field": 1,
        "with an unknown activity": 1,
        "with a field that is no finite number": 2,
    }
    assert read.report.startswith("WISDM: 6 records read; refused: 1 with")


def test_recordings_break_at_user_activity_and_time():
    line = "{},{},{},1,2,3;"
    rows = [
        (1, "Walking", 1_000_000_000),
        (1, "Walking", 1_050_000_000),
        (1, "Walking", 9_000_000_000),
        (1, "Walking", 8_000_000_000),
        (1, "Walking", 8_000_000_000),
        (1, "Jogging", 8_050_000_000),
        (2, "Jogging", 8_100_000_000),
    ]
    read = wisdm.parse_wisdm([line.format(*row) for row in rows])
    assert read.recording.tolist() == [0, 0, 1, 2, 3, 4, 5]


def test_empty_text_gives_no_recordings():
    assert len(wisdm.parse_wisdm([]).recording) == 0


def test_absent_file_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"WISDM_ar_v1\.1_raw\.txt' at"):
        wisdm.load_wisdm(tmp_path)
