"""Events as lines for a person, with rich markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from protofleet.coordinator import events
from protofleet.federation.records import PrivacyRecord, Scores
from protofleet.printable import printable, shell_word
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.units import byte_text, clock_text, duration_text

_CLAIMS = {"num_examples": "the number of examples", "difference": "the length of the update"}


def to_text(report: events.Report) -> str:
    """One line about ``report``."""
    kind = type(report).__struct_config__.tag
    line = _LINES.get(type(report))
    return f"[bold]{kind}[/bold]" if line is None else line(report)


def _safe(text: str) -> str:
    """Text that is shown as it is, wherever it comes from."""
    return escape(printable(text))


def _started(e: events.Started) -> str:
    verb = "resumes" if e.resumed else "starts"
    numbered = f", bundle of sequence {e.sequence}" if e.sequence else ""
    return (
        f"federation [bold]{e.federation}[/bold] {verb} with round {e.round_id} of {e.rounds}: "
        f"{e.strategy}, seed {e.seed}{numbered}, results in {_safe(e.run_dir)}"
    )


def _opened(e: events.RoundOpened) -> str:
    again = f" again, {e.delivered} updates are in" if e.resumed else ""
    enough = f", {e.size} updates suffice" if e.size < len(e.cohort) else ""
    return f"[cyan]{_round(e)}[/cyan] open{again}: {len(e.cohort)} devices{enough}"


def _late(rounds: int) -> str:
    return f", {rounds} {'round' if rounds == 1 else 'rounds'} late" if rounds else ""


def _extended(e: events.RoundExtended) -> str:
    added = f"; also invited: {', '.join(e.added)}" if e.added else ""
    return (
        f"[yellow]round {e.round_id}[/yellow] missed its quorum at the deadline: "
        f"{e.delivered} updates, {e.needed} needed, missing {', '.join(e.missing)}{added}; "
        f"extended ({e.attempt})"
    )


def _closed(e: events.RoundClosed) -> str:
    updates = f"{e.participants} updates"
    if e.trained is not None and e.trained < e.participants:
        of_them = "[yellow]none of a device with training examples: nothing was learnt[/yellow]"
        updates += f" ({of_them if e.trained == 0 else f'{e.trained} of devices with examples'})"
    return (
        f"[green]{_round(e)}[/green] committed in {e.seconds:.2f} s: "
        f"{updates}, {byte_text(e.bytes_up)} up, {byte_text(e.bytes_down)} down"
        f"{_scores(e.scores)}{_privacy(e.privacy)}"
    )


def _idle(e: events.Finished) -> str:
    if not e.idle:
        return ""
    if e.idle == e.rounds:
        return ", [yellow]in none of which a device had training examples[/yellow]"
    return f", in [yellow]{e.idle}[/yellow] of which no device had training examples"


def _privacy(spent: PrivacyRecord | None) -> str:
    if spent is None:
        return ""
    if spent.repeatable:
        return "; [yellow]not private[/yellow]: its noise comes from privacy.noise_seed"
    return f"; ε = {spent.epsilon:.3g} at δ = {spent.delta:.3g}"


def _scores(scores: Scores, which: str = "") -> str:
    headline = TASKS[scores.task].headline
    metric = METRICS[headline]
    parts = [
        f"{_safe(name)} {metric.text(metrics[headline].mean)}"
        for name, metrics in scores.sections.items()
        if headline in metrics
    ]
    return f"; {which}{metric.label}: {', '.join(parts)}" if parts else ""


def _round(e: events.RoundOpened | events.RoundClosed) -> str:
    return "final fit" if e.final else f"round {e.round_id}"


def _since(waited_s: float) -> str:
    return f", for {duration_text(waited_s)}" if waited_s >= 1 else ""


_LINES: dict[type[events.Report], Any] = {
    events.Started: _started,
    events.BrokerConnected: lambda e: f"connected to the broker, MQTT {e.protocol}",
    events.BrokerDisconnected: lambda e: (
        f"[yellow]no connection to the broker[/yellow]: {_safe(e.reason)}; trying again"
    ),
    events.BrokerHinders: lambda e: f"[yellow]the broker hinders[/yellow]: {_safe(e.reason)}",
    events.AnotherCoordinator: lambda e: (
        f"[yellow]another coordinator[/yellow] of federation '{_safe(e.federation)}' seems to run "
        "on this broker, and to invite its devices; end one of the two"
    ),
    events.LeaseAwaited: lambda e: (
        f"[yellow]another coordinator[/yellow] serves this federation (epoch {e.epoch}); "
        + (
            "waits for its end"
            if e.alive
            else f"takes over if nothing is heard of it for {duration_text(e.silent_s)}"
        )
    ),
    events.LeaseLost: lambda e: (
        f"[red]replaced[/red]: another coordinator has taken over (epoch {e.by_epoch})"
    ),
    events.EndsSoon: lambda e: (
        f"[{'red]over' if e.over else 'yellow]ends soon'}[/]: {_safe(e.what)}; {_safe(e.remedy)}"
    ),
    events.CertificateRenewed: lambda e: (
        f"the coordinator's certificate is made anew, until {clock_text(e.until_s)}"
    ),
    events.Withheld: lambda e: (
        f"[dim]and {e.count} more of {e.kind} in the last {e.seconds:.0f} s[/dim]"
    ),
    events.DeviceOnline: lambda e: f"{e.device_id} is online ({e.live} live)",
    events.DeviceOffline: lambda e: f"{e.device_id} is gone: {e.reason} ({e.live} live)",
    events.DeviceHeld: lambda e: (
        f"{e.device_id} is there and may not take part: {', '.join(e.conditions)} ({e.live} live)"
    ),
    events.DeviceRefused: lambda e: (
        f"[yellow]refused[/yellow] {e.device_id} ({e.rule}): {_safe(e.reason)}"
    ),
    events.Waiting: lambda e: (
        f"round {e.round_id} waits for devices: {e.live} of {e.needed} are there"
        f"{_since(e.waited_s)}"
    ),
    events.RoundOpened: _opened,
    events.RoundExtended: _extended,
    events.UpdateReceived: lambda e: (
        f"round {e.counted_in}: update {e.delivered} of {e.cohort} from {e.device_id}, "
        f"{byte_text(e.bytes)}{_late(e.counted_in - e.round_id)}"
    ),
    events.UpdateRejected: lambda e: (
        f"[yellow]round {e.round_id}: rejected[/yellow] the update of {e.device_id}: "
        f"{_safe(e.reason)}"
    ),
    events.ClaimLimited: lambda e: (
        f"[yellow]round {e.round_id}: {_CLAIMS[e.claim]} of {e.device_id}[/yellow] counted as "
        f"{e.limit:.4g}, not as {e.stated:.4g}"
    ),
    events.UpdatesLeftOut: lambda e: (
        f"[yellow]round {e.round_id}: "
        + ("the model stays as it was" if e.dropped else f"without {', '.join(e.devices)}")
        + f"[/yellow]: {escape(e.reason)}"
    ),
    events.TaskRefused: lambda e: (
        f"round {e.round_id}: {e.device_id} takes no part: {_safe(e.reason)}"
    ),
    events.DeviceLog: lambda e: (
        f"round {e.round_id} has failed on {e.device_id}; its log: {_safe(' | '.join(e.lines))}"
    ),
    events.RoundClosed: _closed,
    events.Pausing: lambda e: f"[yellow]pausing[/yellow]: round {e.round_id} ends first",
    events.Paused: lambda e: (
        f"[yellow]paused[/yellow] since {clock_text(e.since_s)}: round {e.round_id} opens after "
        "protofleet coordinator resume"
    ),
    events.Stopping: lambda e: f"[yellow]stopping[/yellow] in round {e.round_id}",
    events.Continued: lambda e: f"[green]goes on[/green] with round {e.round_id}",
    events.RoundsRaised: lambda e: f"the run has [bold]{e.rounds}[/bold] rounds now",
    events.BundleRollout: lambda e: (
        f"bundle {e.bundle[:16]}: [bold]{e.state.replace('_', ' ')}[/bold], stage {e.stage}"
        + (f": {_safe(e.reason)}" if e.reason else "")
    ),
    events.BundleDevice: lambda e: (
        f"bundle {e.bundle[:16]}: {e.device_id} {e.state}"
        + (f" ({_safe(e.rule)}): {_safe(e.reason)}" if e.reason else "")
    ),
    events.BundleSwitched: lambda e: (
        f"[bold]bundle {e.bundle[:16]}[/bold] takes the place of {e.former[:16]}"
    ),
    events.Stopped: lambda e: (
        f"[bold]stopped[/bold] {'in' if e.open else 'before'} round {e.round_id}; {_safe(e.result)}"
    ),
    events.StorageFailed: lambda e: (
        f"[red]held up[/red]: {_safe(e.reason)}; no update is admitted until it can be written"
    ),
    events.StorageBack: lambda e: (
        f"[green]goes on[/green]: {_safe(e.run_dir)} can be written again"
    ),
    events.Failed: lambda e: f"[red]ended[/red]: {_safe(e.reason)}",
    events.Finished: lambda e: (
        f"[bold green]finished[/bold green] after {e.rounds} round{'s' * (e.rounds != 1)}{_idle(e)}"
        f"{_scores(e.scores, 'best ')}; "
        f"{_safe(e.result)}; to look at it: protofleet report "
        f"{_safe(shell_word(Path(e.result).parent))}"
    ),
}

_ROUTINE = (
    events.BrokerConnected,
    events.DeviceOnline,
    events.DeviceOffline,
    events.DeviceHeld,
    events.RoundOpened,
    events.UpdateReceived,
)


def is_routine(report: events.Report) -> bool:
    """Whether it only says that all goes on as it should: no result, no trouble, no waiting."""
    return isinstance(report, _ROUTINE)
