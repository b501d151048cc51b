"""``protofleet privacy``: what differential privacy costs, before a federation is begun."""

from __future__ import annotations

import json
import math

import click

_EXAMPLES = (
    (30, 1.0),
    (30, 4.0),
    (300, 1.0),
    (300, 4.0),
    (1000, 4.0),
    (10_000, 8.0),
)
"""Devices and noise multipliers of the table."""


@click.command()
@click.option("--devices", type=click.IntRange(min=1), help="In a round, on average.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=100, show_default=True, help="Of one device."
)
@click.option("--noise", type=click.FloatRange(min=0.01, max=1e6), help="noise_multiplier.")
@click.option(
    "--epsilon", type=click.FloatRange(min=0, min_open=True), help="Wanted: tells the noise."
)
@click.option(
    "--delta",
    type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
    help="Default: a tenth of 1 / all devices.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Of sampling = 'secret': the probability with which a device is drawn in a round.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def privacy(
    *,
    devices: int | None,
    rounds: int,
    noise: float | None,
    epsilon: float | None,
    delta: float | None,
    rate: float | None,
    as_json: bool,
) -> None:
    """Tell the ε of a noise multiplier, or the noise multiplier of an ε.

    Without --noise and --epsilon: a table of what is useful for how many devices. With --rate a
    device takes part in one round of 1 / RATE; else in all of them. docs/privacy.md says what ε is
    and what it does not cover.
    """
    if noise is not None and epsilon is not None:
        raise click.UsageError("give --noise or --epsilon: each follows from the other")
    if noise is None and epsilon is None:
        cases = [(n, s) for n, s in _EXAMPLES if devices in {None, n}] or [
            (devices or 1, noise) for noise in (0.5, 1.0, 2.0, 4.0, 8.0)
        ]
    elif devices is None:
        raise click.UsageError("--devices: how many take part in a round?")
    else:
        cases = [(devices, noise if noise is not None else math.nan)]
    rows = [_row(n, s, rounds, delta, rate, epsilon) for n, s in cases]
    click.echo(json.dumps(rows, indent=1) if as_json else _table(rows, rounds, rate))


def _row(  # noqa: PLR0917 - one case of the table
    devices: int,
    noise: float,
    rounds: int,
    delta: float | None,
    rate: float | None,
    epsilon: float | None,
) -> dict[str, float]:
    from protofleet.federation.accounting import (
        epsilon_of,
        least_noise,
        sampled_epsilon,
    )

    bound = 0.1 * (rate or 1) / devices if delta is None else delta

    def spent(sigma: float) -> float:
        if rate is None:
            return epsilon_of(sigma, rounds, bound)
        return sampled_epsilon(sigma, rate, rounds, bound)

    sigma = noise if epsilon is None else least_noise(epsilon, spent)
    return {
        "devices": devices,
        "noise_multiplier": float(f"{sigma:.6g}"),
        "delta": bound,
        "epsilon": float(f"{spent(sigma):.6g}"),
        "noise_of_the_mean": float(f"{sigma / devices:.6g}"),
    }


def _table(rows: list[dict[str, float]], rounds: int, rate: float | None) -> str:
    drawn = "a device in each" if rate is None else f"each device drawn with probability {rate:g}"
    lines = [f"{rounds} rounds, {drawn}; the mean's noise in clips, on each number of the model"]
    heads = ("devices", "noise_multiplier", "δ", "ε", "noise of the mean")
    cells = [
        (
            f"{row['devices']:.0f}",
            f"{row['noise_multiplier']:.4g}",
            f"{row['delta']:.2g}",
            f"{row['epsilon']:.4g}",
            f"{row['noise_of_the_mean']:.2g}",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (heads, *cells)) for column in range(len(heads))]
    lines += [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in (heads, *cells)
    ]
    return "\n".join(lines)
