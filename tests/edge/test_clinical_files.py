"""Recordings of clinical studies and of Apple Health, from files made here as their formats say."""

from __future__ import annotations

import datetime as dt
import struct
import zipfile

import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.examples import load_examples
from protofleet.edge.data.recording_files import recording_files
from protofleet.edge.data.unbundled import manifest_for
from protofleet.errors import InputError

_G = 9.80665
_BEGUN = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)


def _manifest(channels, units, *, rate_hz=10.0, window=20, hop=10):
    inputs = Preprocessing(
        input_shape=(window, len(channels)),
        rate_hz=rate_hz,
        window=window,
        hop=hop,
        channels=channels,
        units=units,
    )
    return manifest_for(inputs, ("still", "walk"))


_MOVES = _manifest(("acc_x", "acc_y", "acc_z"), ("m/s²",) * 3)


def _read(path, manifest=_MOVES):
    blocks = list(load_examples([str(path)], manifest))
    return np.concatenate([one.x for one in blocks]), np.concatenate([one.y for one in blocks])


def _cwa(path, seconds=30):
    """AX3 at 25 Hz, ±8 g, three axes of 16 bits (Open Movement, "AX3 technical information")."""
    head = bytearray(1024)
    struct.pack_into("<HHBHI", head, 0, 0x444D, 1020, 0x17, 1234, 1)
    head[36] = 0x48
    body = b""
    samples, packed = 80, (24 << 26) | (5 << 22) | (1 << 17) | (12 << 12)
    for sequence in range(seconds * 25 // samples + 1):
        at = sequence * samples / 25
        whole = int(at)
        block = bytearray(512)
        stamp = packed | (whole // 60 << 6) | whole % 60
        struct.pack_into(
            "<HHHIIIHHBB", block, 0, 0x5841, 508, 0, 1, sequence, stamp, 0, 296, 0, 200
        )
        block[24], block[25] = 0x48, 0x32
        struct.pack_into("<hH", block, 26, round(-(at - whole) * 25), samples)
        for k in range(samples):
            struct.pack_into("<hhh", block, 30 + 6 * k, 64, -128, 256)
        words = struct.unpack("<255H", block[:510])
        struct.pack_into("<H", block, 510, -sum(words) & 0xFFFF)
        body += block
    path.write_bytes(head + body)
    return path


_GENEACTIV = """Device Identity
Device Unique Serial Code:012345
Device Type:GENEActiv
Device Model:1.1
Device Firmware Version:Ver06.17 15June17
Calibration Date:2023-01-01 00:00:00:000

Device Capabilities
Accelerometer Range:-8 to 8
Accelerometer Resolution:0.0039
Accelerometer Units:g
Light Meter Range:0 to 5000
Light Meter Resolution:5
Light Meter Units:lux
Temperature Sensor Range:0 to 70
Temperature Sensor Resolution:0.25
Temperature Sensor Units:deg. C

Configuration Info
Measurement Frequency:20 Hz
Measurement Period:24 Hours
Start Time:2024-05-01 12:00:00:000
Time Zone:GMT +00:00

Trial Info
Study Centre:
Study Code:
Investigator ID:
Exercise Type:
Config Operator ID:
Config Time:2024-05-01 11:00:00:000
Config Notes:
Extract Operator ID:
Extract Time:2024-05-02 12:00:00:000
Extract Notes:

Subject Info
Device Location Code:left wrist
Subject Code:1
Date of Birth:1990-1-1
Sex:
Height:
Weight:
Handedness Code:
Subject Notes:

Calibration Data
x gain:25600
x offset:0
y gain:25600
y offset:0
z gain:25600
z offset:0
Volts:300
Lux:1000

Memory Status
Number of Pages:{pages}

"""


def _geneactiv(path, pages=3):
    """300 samples a page, of 12 hexadecimal digits: three axes of 12 bits, light, button."""
    text = _GENEACTIV.format(pages=pages)
    sample = "".join(f"{value & 0xFFF:03x}" for value in (64, -128, 256)) + "000"
    for page in range(pages):
        at = _BEGUN + dt.timedelta(seconds=15 * page)
        text += (
            f"Recorded Data\nDevice Unique Serial Code:012345\nSequence Number:{page}\n"
            f"Page Time:{at:%Y-%m-%d %H:%M:%S}:000\nUnassigned:\nTemperature:21.5\n"
            f"Battery voltage:4.1\nDevice Status:Recording\nMeasurement Frequency:20.0\n"
            f"{sample * 300}\n"
        )
    path.write_text(text)
    return path


@pytest.mark.parametrize(("make", "name"), [(_cwa, "left.cwa"), (_geneactiv, "left.bin")])
def test_wrist_worn_loggers_are_read_in_g(tmp_path, make, name):
    pytest.importorskip("skdh")
    (tmp_path / "walk").mkdir()
    x, y = _read(make(tmp_path / "walk" / name).parent)
    assert len(x) > 20
    np.testing.assert_allclose(x[5], np.tile([0.25 * _G, -0.5 * _G, _G], (20, 1)), rtol=1e-3)
    assert set(y) == {1}


def test_another_bin_is_none_of_them(tmp_path):
    (tmp_path / "firmware.bin").write_bytes(bytes(1000))
    (tmp_path / "walk.csv").write_text("time_s,acc_x,acc_y,acc_z\n0,1,2,3\n0.1,1,2,3\n")
    assert [one.parts[-1] for one in recording_files([str(tmp_path)])] == ["walk"]


def _wfdb(folder):
    """Signals of 16 bits, and notes of a person ("WFDB Applications Guide", signal, annot)."""
    count = 300
    header = [
        "trial 3 10 300 12:00:00 01/05/2024",
        *(f"trial.dat 16 100(0)/g 16 0 0 0 0 acc_{axis}" for axis in "xyz"),
    ]
    (folder / "trial.hea").write_text("\n".join(header) + "\n")
    (folder / "trial.dat").write_bytes(struct.pack("<hhh", 25, -50, 100) * count)
    notes = b""
    for samples_later, text in ((1, b"still"), (149, b"walk")):
        notes += struct.pack("<H", 22 << 10 | samples_later)
        notes += struct.pack("<H", 63 << 10 | len(text)) + text + b"\0" * (len(text) % 2)
    (folder / "trial.atr").write_bytes(notes + b"\0\0")
    return folder / "trial.hea"


def test_records_of_physionet_are_read_with_their_annotations(tmp_path):
    pytest.importorskip("wfdb")
    x, y = _read(_wfdb(tmp_path))
    assert x.shape == (29, 20, 3)
    np.testing.assert_allclose(x[5], np.tile([0.25 * _G, -0.5 * _G, _G], (20, 1)), rtol=1e-3)
    assert (y[1], y[-1], set(y)) == (0, 1, {0, 1, -1})


def test_a_record_without_its_signals_says_what_is_missing(tmp_path):
    pytest.importorskip("wfdb")
    header = _wfdb(tmp_path)
    (tmp_path / "trial.dat").unlink()
    with pytest.raises(InputError, match=r"data '.*trial\.hea': cannot be read .*trial\.dat"):
        recording_files([str(header)])


def _field(name, form):
    return {"name": name, "type": form}


def _record(name, **fields):
    return {"type": "record", "name": name, "fields": [_field(*one) for one in fields.items()]}


_IMU = _record("imu", physicalMin="int", physicalMax="int", digitalMin="int", digitalMax="int")
_LONGS = {"type": "array", "items": "long"}
_SAMPLED = {"timestampStart": "long", "samplingFrequency": "float"}


def _avro(path, seconds=30):
    """What an EmbracePlus writes (Empatica, "Raw data: Avro files"), as far as it is read."""
    import fastavro  # noqa: PLC0415 - an extra

    counts = {"type": "array", "items": "int"}
    floats = {"type": "array", "items": "float"}
    raw = _record(
        "raw",
        accelerometer=_record("acc", **_SAMPLED, imuParams=_IMU, x=counts, y=counts, z=counts),
        eda=_record("eda", **_SAMPLED, values=floats),
        temperature=_record("temperature", **_SAMPLED, values=floats),
        tags=_record("tags", tagsTimeMicros=_LONGS),
    )
    schema = _record("session", timezone="int", deviceSn="string", rawData=raw)
    begun = round(_BEGUN.timestamp() * 1e6)
    scale = {"physicalMin": -16, "physicalMax": 16, "digitalMin": -32768, "digitalMax": 32768}
    sensor = {"timestampStart": begun, "samplingFrequency": 10.0}
    moves = {
        axis: [count] * 10 * seconds for axis, count in zip("xyz", (512, -1024, 2048), strict=True)
    }
    session = {
        "timezone": 0,
        "deviceSn": "3YK",
        "rawData": {
            "accelerometer": {**sensor, "imuParams": scale, **moves},
            "eda": {**sensor, "samplingFrequency": 4.0, "values": [0.5] * 4 * seconds},
            "temperature": {**sensor, "samplingFrequency": 1.0, "values": [33.0] * seconds},
            "tags": {"tagsTimeMicros": [begun + 5_000_000]},
        },
    }
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), [session])
    return path


def test_a_wearable_s_avro_joins_its_sensors(tmp_path):
    pytest.importorskip("fastavro")
    names = ("acc_x", "acc_y", "acc_z", "eda", "temperature")
    manifest = _manifest(names, ("m/s²",) * 3 + ("µS", "°C"), rate_hz=4.0)
    path = _avro(tmp_path / "walk.avro")
    x, y = _read(path, manifest)
    wanted = [0.25 * _G, -0.5 * _G, _G, 0.5, 33.0]
    np.testing.assert_allclose(x[5], np.tile(wanted, (20, 1)), rtol=1e-3)
    assert set(y) == {1}
    names = [(one.parts[-1], one.marks is not None) for one in recording_files([str(path)])]
    assert names == [("acc", True), ("eda", True), ("temperature", True)]


_HEALTH = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE HealthData [
<!ELEMENT HealthData (ExportDate|Record|Workout)*>
<!ATTLIST HealthData locale CDATA #REQUIRED>
]>
<HealthData locale="en_GB">
 <ExportDate value="2024-05-02 08:00:00 +0200"/>
{records}
</HealthData>
"""


def _health(seconds=60):
    lines = []
    for second in reversed(range(seconds)):  # the newest first, as some exports have them
        at = f"2024-05-01 14:{second // 60:02}:{second % 60:02} +0200"
        lines.append(
            f' <Record type="HKQuantityTypeIdentifierHeartRate" sourceName="Anna&#8217;s Watch" '
            f'unit="count/min" startDate="{at}" endDate="{at}" value="{60 + second}"/>'
        )
    lines.append(
        ' <Workout workoutActivityType="HKWorkoutActivityTypeWalk" duration="0.5" '
        'startDate="2024-05-01 14:00:30 +0200" endDate="2024-05-01 14:01:00 +0200">\n'
        '  <MetadataEntry key="HKIndoorWorkout" value="0"/>\n </Workout>'
    )
    return _HEALTH.format(records="\n".join(lines))


_HEART = _manifest(("hr",), ("bpm",), rate_hz=1.0, window=10, hop=5)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_phone_s_health_export_has_heart_rates_and_workouts(tmp_path, zipped):
    path = tmp_path / "export.xml"
    path.write_text(_health())
    if zipped:
        with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, "apple_health_export/export.xml")
            archive.writestr("apple_health_export/export_cda.xml", "<ClinicalDocument/>")
        path = tmp_path / "export.zip"
    x, y = _read(path, _HEART)
    assert x.shape == (11, 10, 1)
    np.testing.assert_allclose(x[0, :, 0], np.arange(60, 70), atol=0.1)
    assert (y[0], y[-1]) == (-1, 1)


def test_an_export_that_unfolds_is_refused(tmp_path):
    text = _health().replace("<!ELEMENT", '<!ENTITY a "aaaaaaaaaa">\n<!ELEMENT', 1)
    (tmp_path / "export.xml").write_text(text)
    with pytest.raises(InputError, match=r"export\.xml': cannot be read \(it declares an entity"):
        recording_files([str(tmp_path / "export.xml")])


def test_another_xml_is_no_recording(tmp_path):
    (tmp_path / "settings.xml").write_text("<settings/>")
    (tmp_path / "walk.csv").write_text("time_s,hr\n0,60\n1,61\n")
    assert [one.parts[-1] for one in recording_files([str(tmp_path)])] == ["walk"]
