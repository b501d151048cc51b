"""``protofleet device policy``, and the options by which an owner says when a device takes part."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from protofleet.edge.owner.participation import PolicyLook

_PATH = click.Path(path_type=Path)
_FLAGS = {
    "only_charging": "Train only while external power is there.",
    "only_unmetered": "Train only in a network that costs nothing by volume.",
    "only_idle": "Train only while other programs leave the processor alone.",
}
_NUMBERS = {
    "least_battery_percent": (
        "--least-battery",
        "Charge in per cent below which nothing is trained.",
    ),
    "most_temperature_c": (
        "--most-temperature",
        "Temperature in °C above which nothing is trained.",
    ),
    "data_per_day_mb": ("--data-per-day", "Megabytes a day, both directions together."),
    "data_per_month_mb": ("--data-per-month", "Megabytes a month, both directions together."),
}


def policy_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of the policy; the command gets ``policy_file`` and, as a dict, ``conditions``."""

    @wraps(command)
    def gathered(**options: Any) -> None:
        named = (*_FLAGS, *_NUMBERS, "quiet_hours")
        conditions = {name: options.pop(name) for name in named}
        given = {name: value for name, value in conditions.items() if value not in (None, ())}
        command(conditions=given, **options)

    options = [
        click.option(
            "--policy",
            "policy_file",
            type=_PATH,
            help="When this device takes part (docs/device.md); default: policy.toml in its store.",
        ),
        *(
            click.option(
                f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}", default=None, help=text
            )
            for name, text in _FLAGS.items()
        ),
        *(
            click.option(option, name, type=float, help=text)
            for name, (option, text) in _NUMBERS.items()
        ),
        click.option(
            "--quiet-hours",
            multiple=True,
            metavar="HH:MM-HH:MM",
            help="Local time in which nothing is trained; may be repeated.",
        ),
    ]
    for option in reversed(options):
        gathered = option(gathered)
    return gathered


@click.command()
@click.option("--store", type=_PATH, help="The device's folder; default: the only one there is.")
@policy_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def policy(
    *, store: Path | None, policy_file: Path | None, conditions: dict[str, Any], as_json: bool
) -> None:
    """Show what this device's platform tells, and whether it may take part now.

    The policy is a file in the device's store, policy.toml, or what the options say in place of it;
    docs/device.md has its keys. A device that runs reads a changed file within 20 s.
    """
    from protofleet.edge.owner.participation import look_at_policy
    from protofleet.edge.state.stores import only_store

    folder = store or only_store()
    found = look_at_policy(folder, policy_file, conditions)
    click.echo(json.dumps(_figures(found)) if as_json else _to_text(found))


def _figures(found: PolicyLook) -> dict[str, Any]:
    import msgspec

    told = found.platform
    return {
        "may_take_part": not found.unmet,
        "unmet": [{"condition": one.condition, "reason": one.reason} for one in found.unmet],
        "untold": list(found.untold),
        "policy": msgspec.to_builtins(found.policy),
        "platform": {name: getattr(told, name) for name in told.__slots__},
        "day_bytes": found.moment.day_bytes,
        "month_bytes": found.moment.month_bytes,
    }


def _to_text(found: PolicyLook) -> str:
    from protofleet.units import byte_text

    told, moment = found.platform, found.moment
    values = {
        "external power": _yes_no(told.charging),
        "battery": _unit(told.battery_percent, "%"),
        "unmetered network": _yes_no(told.unmetered),
        "temperature": _unit(told.temperature_c, "°C"),
        "idle": _yes_no(told.idle),
        "data today": byte_text(moment.day_bytes),
        "data this month": byte_text(moment.month_bytes),
    }
    lines = [f"{name + ':':<18} {value}" for name, value in values.items()]
    if found.untold:
        then = "allowed" if found.policy.unknown == "allow" else "forbidden"
        lines.append(f"not told, so {then}: {', '.join(found.untold)}")
    if found.policy.use != "auto":
        lines.append(f"model that answers, pinned: {found.policy.use}")
    held = "; ".join(one.reason for one in found.unmet)
    lines.append(f"may not take part now: {held}" if held else "may take part now")
    return "\n".join(lines)


def _yes_no(value: bool | None) -> str:
    return "not told" if value is None else ("yes" if value else "no")


def _unit(value: float | None, unit: str) -> str:
    return "not told" if value is None else f"{value:g} {unit}"
