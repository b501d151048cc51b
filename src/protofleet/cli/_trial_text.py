"""The outcome of ``protofleet device try`` for a person, ending in lines for a federation file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofleet.units import byte_text, duration_text, ms_text

if TYPE_CHECKING:
    from protofleet.edge.learning.trial import Trial


def to_text(trial: Trial) -> str:
    """Some lines; the last ones are TOML."""
    rows = [
        f"{rate:>10g}  {f'{ratio:.3f}' if rate in trial.tried else 'not tried':>9}"
        f"  {_note(trial, rate)}".rstrip()
        for rate, ratio in trial.ratios.items()
    ]
    steps = trial.epochs * -(-trial.examples // trial.batch_size)
    times = f"a step {ms_text(trial.step_ms.p50)} ms (95 %: {ms_text(trial.step_ms.p95)})"
    cost = f"a round of {trial.epochs} epochs, {steps} steps: {duration_text(trial.round_s)}"
    what = f"{trial.strategy} with {trial.kind} on {trial.examples - trial.held_out} examples"
    score = f"loss on {trial.held_out} held-out ones after a local round, in units of that before"
    return "\n".join(
        (
            f"{what} in batches of {trial.batch_size}; {score}",
            f"{'rate':>10}  {'loss':>9}",
            *rows,
            f"{times}; {cost}; memory {byte_text(trial.peak_rss_bytes)} ({trial.backend})",
            "",
            "# into the federation file:",
            "[strategy.settings]",
            f'optimiser = {{kind = "{trial.kind}", lr = {trial.learning_rate:g}}}',
        )
    )


def _note(trial: Trial, rate: float) -> str:
    advised = rate == trial.learning_rate
    edge = advised and rate in (min(trial.ratios), max(trial.ratios))
    notes = (
        "the bundle's own" if rate == trial.bundle_rate else "",
        "<- advised" if advised else "",
        "(the last one of the ladder: one beyond may be better)" if edge else "",
    )
    return "  ".join(filter(None, notes))
