"""The outcome of ``protofleet device try`` for a person, ending in lines for a federation file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofleet.units import byte_text, duration_text, ms_text

if TYPE_CHECKING:
    from protofleet.edge.trial import Trial


def to_text(trial: Trial) -> str:
    """Some lines; the last ones are TOML."""
    advised = next(i for i, rate in enumerate(trial.compared) if rate == trial.learning_rate)
    rows = [
        f"{rate:>10g}  {_loss(loss):>10}  {_note(trial, rate, advised == index)}".rstrip()
        for index, (rate, loss) in enumerate(trial.compared.items())
    ]
    steps = trial.epochs * -(-trial.examples // trial.batch_size)
    times = f"a step {ms_text(trial.step_ms.p50)} ms (95 %: {ms_text(trial.step_ms.p95)})"
    cost = f"a round of {trial.epochs} epochs, {steps} steps: {duration_text(trial.round_s)}"
    return "\n".join(
        (
            f"{trial.kind} on {trial.examples} examples in batches of {trial.batch_size}",
            f"{'rate':>10}  {'loss':>10}",
            f"{'':>10}  {trial.start_loss:>10.4g}  before training",
            *rows,
            f"{times}; {cost}; memory {byte_text(trial.peak_rss_bytes)} ({trial.backend})",
            "",
            "# into the federation file:",
            "[strategy.settings]",
            f'optimiser = {{kind = "{trial.kind}", lr = {trial.learning_rate:g}}}',
        )
    )


def _loss(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.4g}"


def _note(trial: Trial, rate: float, is_advised: bool) -> str:
    notes = ("the bundle's own" if rate == trial.bundle_rate else "", "<- advised" * is_advised)
    return "  ".join(filter(None, notes))
