"""``protofleet strategies``."""

import json
import subprocess
import sys

from click.testing import CliRunner

from protofleet.cli.strategies import strategies
from protofleet.strategies import STRATEGIES


def test_json_says_name_paper_objectives_and_what_travels():
    result = CliRunner().invoke(strategies, ["--json"])
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    by_name = {item["name"]: item for item in listed}
    assert by_name.keys() == STRATEGIES.keys()
    assert by_name["fedali"]["travels"]["down"] == ["parameters", "global prototypes"]
    assert by_name["fedavg"]["objectives"] == ["task_loss"]
    assert "arXiv:1602.05629" in by_name["fedavg"]["paper"]


def test_people_read_the_same():
    result = CliRunner().invoke(strategies)
    assert result.exit_code == 0
    assert "fedali" in result.stdout
    assert "comes up             parameters, local prototypes, number of examples" in result.stdout


def test_people_read_what_a_strategy_asks_of_server_and_registration():
    listed = CliRunner().invoke(strategies).stdout.split("\n\n")
    by_name = {item.partition("\n")[0]: item for item in listed}
    assert "server objectives    task_loss" in by_name["cdfl"]
    assert "devices register     training samples of each class" in by_name["fedhp"]
    assert "final fit            after the last round" in by_name["fedhp"]
    assert "register" not in by_name["fedavg"]
    assert "goes down            nothing" in by_name["local"]
    every = "classification, segmentation, regression, multilabel"
    assert f"tasks                {every}" in by_name["local"]
    assert "tasks                classification\n" in by_name["moon"]


def test_the_program_knows_the_command():
    code = "from protofleet.cli import main; main(['strategies', '--json'])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)
