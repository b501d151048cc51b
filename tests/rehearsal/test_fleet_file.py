"""The file of a rehearsal."""

from __future__ import annotations

import pytest

from protofleet.errors import InputError
from protofleet.firmware_sim.world.hardware import PI_4_GFLOPS, PI_4_PRIMES, HostSpeed
from protofleet.rehearsal.fleet_file import load_rehearsal, owners_of
from protofleet.rehearsal.starter import fleet_toml, hardware_toml

_FILE = """
federation = "federation.toml"
data = "data"
days = 28
start = "22:30"

[[groups]]
name = "phone"
count = 3
hardware = "phone-low"
away = "cellular"
habits = "night-shift"
policy = {only_charging = true, quiet_hours = ["12:00-13:00"]}

[[groups]]
name = "board"
count = 12
hardware = "mine"
network = "slow-wifi"

[hardware.mine]
speed = {low = 0.9, likely = 1.0, high = 1.2}
memory_mb = 1024
train_w = {low = 0.5, likely = 0.8, high = 1.2}
idle_w = 1.5

[habits.night-shift]
charging = [{at = "09:00", hours = 7.0, sd_minutes = 45, share = 0.95}]
"""


def _text(kinds, *, metered=False):
    return fleet_toml(
        federation="federation.toml", data="data", kinds=kinds, days=7.0, metered=metered
    )


def test_it_says_who_there_is_and_where_paths_start(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(_FILE)
    found = load_rehearsal(path)
    assert found.federation == tmp_path / "federation.toml"
    assert (found.start_s, found.end_s) == (22.5 * 3600, 22.5 * 3600 + 28 * 86400)
    names = list(found.devices())
    assert (names[0], names[3], names[-1], len(names)) == ("phone-1", "board-01", "board-12", 15)
    phone, board = found.groups
    assert found.hardware_of(phone).battery_wh > 0
    assert found.hardware_of(board).memory_mb == 1024
    assert found.network_named(phone.away).metered
    assert found.network_named(board.away) is None
    assert found.habits_of(phone).charging[0].hours == 7
    assert phone.policy.only_charging


def test_devices_get_the_owners_data_in_turn(study, fleet):
    owners = owners_of(fleet)
    assert [path.stem for path in owners.values()] == [f"owner-{n}" for n in range(4)]
    (study / "data" / "pooled.npz").write_bytes(b"")
    assert owners_of(fleet) == owners


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("days = 28", "days = 0", "days: expected more than 0"),
        ('"22:30"', '"25:00"', "start: expected a time"),
        ('"phone-low"', '"phone-lo"', "hardware: expected one of .*phone-low.* got 'phone-lo'"),
        ('"slow-wifi"', '"wifi"', "network: expected one of .*home-wifi"),
        ('"night-shift"', '"owl"', "habits: expected one of .*night-shift"),
        ("count = 3", "count = 0", "count: expected 1 to"),
        ("count = 12", "count = 100000", "at most 100000 devices, got 100003"),
        ('name = "board"', 'name = "phone"', "the name 'phone' occurs twice"),
        ("only_charging", "only_loading", "only_loading"),
        ('"12:00-13:00"', '"12-13"', "quiet_hours"),
        ("low = 0.9", "low = 1.1", "low <= likely <= high"),
        ("memory_mb = 1024", "memory_mb = 0", "memory_mb: expected more than 0"),
        ('at = "09:00"', 'at = "9"', "at: expected a time"),
        ("days = 28", "dayz = 28", "dayz"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(tmp_path, before, after, said):
    path = tmp_path / "fleet.toml"
    assert before in _FILE
    path.write_text(_FILE.replace(before, after, 1))
    with pytest.raises(InputError, match=said) as refused:
        load_rehearsal(path)
    assert str(path) in str(refused.value)
    assert "docs/rehearse.md" in str(refused.value)


def test_without_a_file_the_command_that_writes_one_is_named(tmp_path):
    with pytest.raises(InputError, match="'protofleet fleet init' writes one"):
        load_rehearsal(tmp_path / "fleet.toml")


def test_what_fleet_init_writes_is_read(tmp_path):
    path = tmp_path / "fleet.toml"
    kinds = (("phone-high", 2), ("watch", 1), ("pi-5", 3))
    path.write_text(_text(kinds))
    found = load_rehearsal(path)
    assert [(one.name, one.count) for one in found.groups] == list(kinds)
    assert [one.habits for one in found.groups] == ["phone", "watch", "home-board"]
    commented = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    examples = "\n".join(line for line in commented if line.startswith(("[", "charging", "away")))
    assert "[hardware.my-board]" in examples
    with pytest.raises(InputError, match="hardware: expected one of"):
        _text([("pi-6", 1)])


def test_this_machine_is_written_as_a_kind_of_device_that_is_read(tmp_path):
    path = tmp_path / "fleet.toml"
    host = HostSpeed(primes=2 * PI_4_PRIMES, gflops=8 * PI_4_GFLOPS)
    text = _text((("pi-5", 1),)).replace('"pi-5"', '"mine"')
    path.write_text(text + hardware_toml("mine", host, 2048))
    found = load_rehearsal(path)
    mine = found.hardware_of(found.groups[0])
    assert (mine.speed.low, mine.speed.likely, mine.speed.high) == (2, 4, 8)
    assert mine.memory_mb == 2048
