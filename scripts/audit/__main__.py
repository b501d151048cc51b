"""Licences and known vulnerabilities of the pinned packages (constraints.txt).

Exit status: 0: checked and good; 1: a package has a licence that is not allowed, or a known
vulnerability; 2: nothing bad was found, but not everything could be checked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from licences import check_licences

_ROOT = Path(__file__).resolve().parents[2]
_PINS = _ROOT / "constraints.txt"
_TOOL = "pip-audit==2.10.1"
_GOOD, _BAD, _UNCHECKED = 0, 1, 2


def main() -> int:
    """Check what was asked for; the worst status counts."""
    parser = argparse.ArgumentParser(
        prog="scripts/audit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--licences", action="store_true", help="these alone: needs no network")
    options = parser.parse_args()
    pins = dict(line.split("==") for line in _PINS.read_text().split())
    found = [_licences(pins)]
    if not options.licences:
        found.append(_vulnerabilities(pins))
    return _BAD if _BAD in found else max(found)


def _licences(pins: dict[str, str]) -> int:
    report = check_licences(pins)
    for name, licence in sorted(report.refused.items()):
        print(f"licences: {name} {pins[name]}: {licence or 'names no licence'}: not allowed")
    print(
        f"licences: {report.allowed} of {len(pins)} packages have an allowed one, "
        f"{len(report.refused)} have not"
    )
    if report.absent:
        print(f"licences: NOT CHECKED, not installed here: {', '.join(report.absent)}")
    if report.refused:
        return _BAD
    return _UNCHECKED if report.absent else _GOOD


def _vulnerabilities(pins: dict[str, str]) -> int:
    """By pip-audit, in an environment of its own; it asks a service on the network."""
    try:
        answers = _ask()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        told = getattr(error, "stderr", None) or str(error)
        print(f"vulnerabilities: NOT CHECKED: {told.strip().splitlines()[-1]}")
        return _UNCHECKED
    # For a package that the service does not know, pip-audit says nothing and ends with 0.
    skipped = [one["name"] for one in answers if "skip_reason" in one]
    bad = {one["name"]: one["vulns"] for one in answers if one.get("vulns")}
    for name, entries in bad.items():
        for entry in entries:
            fixed = ", ".join(entry["fix_versions"]) or "no version"
            print(f"vulnerabilities: {name}: {entry['id']}, fixed in {fixed}")
    checked = len(answers) - len(skipped)
    print(f"vulnerabilities: {checked} of {len(pins)} packages checked, {len(bad)} have known ones")
    if checked < len(pins):
        print(
            f"vulnerabilities: NOT CHECKED: {len(pins) - checked} packages, which the service here "
            f"does not know: {', '.join(skipped[:5])}, …; run it where pypi.org can be reached"
        )
    if bad:
        return _BAD
    return _UNCHECKED if checked < len(pins) else _GOOD


def _ask() -> list[dict[str, Any]]:
    home = _ROOT / "build" / "audit"
    python = home / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(home))
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", _TOOL)
    done = subprocess.run(
        [str(python), "-m", "pip_audit", "-r", str(_PINS), "--no-deps", "--disable-pip",
         "--format", "json", "--progress-spinner", "off"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.stdout.strip():
        raise ValueError(done.stderr.strip() or f"pip-audit ended with {done.returncode}")
    answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    return answers


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
