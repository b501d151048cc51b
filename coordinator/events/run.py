"""Of the run as a whole, and of what its operator does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import ClassVar

from protofleet.coordinator.events.base import CoordinatorEvent
from protofleet.coordinator.events.text import outcome_text, safe, scores_text
from protofleet.federation.outcomes.outcome import Outcome
from protofleet.federation.records import Scores
from protofleet.printable import shell_word
from protofleet.units import clock_text, duration_text


class Started(CoordinatorEvent, frozen=True, kw_only=True, tag="started"):
    """The coordinator is ready; ``round_id`` is the next or the resumed round.

    ``sequence`` is the bundle's: devices that have had one with a larger number stay away.
    """

    federation: str
    strategy: str
    rounds: int
    round_id: int
    seed: int
    resumed: bool
    bundle: str
    sequence: int
    run_dir: str

    def _says(self) -> str:
        verb = "resumes" if self.resumed else "starts"
        numbered = f", bundle of sequence {self.sequence}" if self.sequence else ""
        return (
            f"federation [bold]{self.federation}[/bold] {verb} with round {self.round_id} of "
            f"{self.rounds}: {self.strategy}, seed {self.seed}{numbered}, results in "
            f"{safe(self.run_dir)}"
        )


class Operated(CoordinatorEvent, frozen=True, kw_only=True):
    """Base of what the operator has ordered, at ``since_s`` (Unix seconds).

    ``round_id``: the round that is open, or would be the next.
    """

    round_id: int
    since_s: float


class Pausing(Operated, frozen=True, kw_only=True, tag="pausing"):
    """The open round ends by its rules; no other opens."""

    def _says(self) -> str:
        return f"[yellow]pausing[/yellow]: round {self.round_id} ends first"


class Paused(Operated, frozen=True, kw_only=True, tag="paused"):
    """No round is open, and none opens until the operator resumes."""

    def _says(self) -> str:
        return (
            f"[yellow]paused[/yellow] since {clock_text(self.since_s)}: round {self.round_id} "
            "opens after protofleet coordinator resume"
        )


class Stopping(Operated, frozen=True, kw_only=True, tag="stopping"):
    """The process ends: after the open round, or at once."""

    def _says(self) -> str:
        return f"[yellow]stopping[/yellow] in round {self.round_id}"


class Continued(Operated, frozen=True, kw_only=True, tag="continued"):
    """Rounds open again."""

    def _says(self) -> str:
        return f"[green]goes on[/green] with round {self.round_id}"


class RoundsRaised(CoordinatorEvent, frozen=True, kw_only=True, tag="rounds_raised"):
    """The operator has extended the run to so many rounds."""

    rounds: int

    def _says(self) -> str:
        return f"the run has [bold]{self.rounds}[/bold] rounds now"


class Calibrating(CoordinatorEvent, frozen=True, kw_only=True, tag="calibrating"):
    """Devices were asked to try learning rates, from ``smallest`` to ``largest``."""

    devices: int
    tries: int
    smallest: float
    largest: float

    def _says(self) -> str:
        who = "1 device tries" if self.devices == 1 else f"{self.devices} devices try"
        return f"{who} {self.tries} learning rates, from {self.smallest:g} to {self.largest:g}"


class Calibrated(CoordinatorEvent, frozen=True, kw_only=True, tag="calibrated"):
    """The run has its learning rate, ``lr``, by what ``devices`` have told of each rate."""

    lr: float
    kind: str
    devices: int
    rates: tuple[float, ...]
    ratios: tuple[float, ...]
    text: str

    def _says(self) -> str:
        return f"[bold]{safe(self.text)}[/bold]"


class EndedEarly(CoordinatorEvent, frozen=True, kw_only=True, tag="ended_early"):
    """The rounds up to ``after`` have brought what there is: no other one is aggregated."""

    after: int
    planned: int
    why: str
    text: str

    def _says(self) -> str:
        return f"[bold]run {safe(self.text)}[/bold]"


class Drifted(CoordinatorEvent, frozen=True, kw_only=True, tag="drifted"):
    """A round has found a worse loss than that with which the run came to rest: it goes on."""

    round_id: int
    what: str

    def _says(self) -> str:
        return f"round {self.round_id}: {safe(self.what)} since the run came to rest: it goes on"


class BundleRollout(CoordinatorEvent, frozen=True, kw_only=True, tag="bundle_rollout"):
    """The roll-out of a bundle stands elsewhere than before.

    ``state``: ``running``, ``waiting`` (for the operator, before ``stage``), ``paused``,
    ``complete`` or ``taken_back``; ``reason``: why, if nobody asked for it.
    """

    bundle: str
    state: str
    stage: str
    reason: str

    def _says(self) -> str:
        state = self.state.replace("_", " ")
        why = f": {safe(self.reason)}" if self.reason else ""
        return f"bundle {self.bundle[:16]}: [bold]{state}[/bold], stage {self.stage}{why}"


class BundleAwaited(CoordinatorEvent, frozen=True, kw_only=True, tag="bundle_awaited"):
    """A roll-out has not moved for ``waited_s``; told again at growing intervals.

    ``state``: ``running`` or ``waiting`` (for the operator). ``awaited``: the first of those on
    whom it waits, each with its state; none: it waits for a round in which one of them takes part.
    """

    bundle: str
    stage: str
    state: str
    awaited: dict[str, str]
    more: int
    waited_s: float

    def _says(self) -> str:
        for_whom = "a round with a device that has it"
        if self.state == "waiting":
            for_whom = "the operator: protofleet bundle next FILE"
        elif self.awaited:
            named = [f"{name} ({state})" for name, state in self.awaited.items()]
            for_whom = ", ".join([*named, *([f"{self.more} more"] if self.more else [])])
        waited = duration_text(self.waited_s)
        return f"bundle {self.bundle[:16]}: stage {self.stage} has waited {waited} for {for_whom}"


class BundleDevice(CoordinatorEvent, frozen=True, kw_only=True, tag="bundle_device"):
    """A device is further with a bundle, or has failed: the broken ``rule`` and the ``reason``."""

    bundle: str
    device_id: str
    state: str
    rule: str
    reason: str

    def _says(self) -> str:
        why = f" ({safe(self.rule)}): {safe(self.reason)}" if self.reason else ""
        return f"bundle {self.bundle[:16]}: {self.device_id} {self.state}{why}"


class BundleSwitched(CoordinatorEvent, frozen=True, kw_only=True, tag="bundle_switched"):
    """The run has another bundle from here on; its coordinator begins anew with it."""

    bundle: str
    former: str

    def _says(self) -> str:
        return f"[bold]bundle {self.bundle[:16]}[/bold] takes the place of {self.former[:16]}"


class Stopped(CoordinatorEvent, frozen=True, kw_only=True, tag="stopped"):
    """The process ends as it was told to; the next start goes on with ``round_id``.

    ``open``: that round has begun.
    """

    round_id: int
    open: bool
    result: str

    def _says(self) -> str:
        where = "in" if self.open else "before"
        return f"[bold]stopped[/bold] {where} round {self.round_id}; {safe(self.result)}"


class Failed(CoordinatorEvent, frozen=True, kw_only=True, tag="failed"):
    """One of several federations of a process has ended; the others go on."""

    level: ClassVar[int] = logging.ERROR

    reason: str

    def _says(self) -> str:
        return f"[red]ended[/red]: {safe(self.reason)}"


class StorageFailed(CoordinatorEvent, frozen=True, kw_only=True, tag="storage_failed"):
    """The run folder's disk takes no writes: nothing is admitted and no round opens until it does.

    Nothing that was acknowledged is lost.
    """

    level: ClassVar[int] = logging.ERROR

    reason: str

    def _says(self) -> str:
        return (
            f"[red]held up[/red]: {safe(self.reason)}; no update is admitted until it can be "
            "written"
        )


class StorageBack(CoordinatorEvent, frozen=True, kw_only=True, tag="storage_back"):
    """The disk takes writes again; the run goes on from its ledger."""

    run_dir: str

    def _says(self) -> str:
        return f"[green]goes on[/green]: {safe(self.run_dir)} can be written again"


class ResultsTrouble(CoordinatorEvent, frozen=True, kw_only=True, tag="results_trouble"):
    """The run works, and its results are such that nobody wants them."""

    level: ClassVar[int] = logging.WARNING

    what: str
    remedy: str

    def _says(self) -> str:
        return f"[yellow]look at the results[/yellow]: {safe(self.what)}; {safe(self.remedy)}"


class Finished(CoordinatorEvent, frozen=True, kw_only=True, tag="finished"):
    """All rounds are committed and the results written; in ``idle`` of them no device trained."""

    rounds: int
    idle: int = 0
    scores: Scores
    outcome: Outcome | None = None
    result: str

    def _says(self) -> str:
        rounds = f"after {self.rounds} round{'s' * (self.rounds != 1)}"
        if self.idle == self.rounds > 0:
            rounds += ", [yellow]in none of which a device had training examples[/yellow]"
        elif self.idle:
            rounds += f", in [yellow]{self.idle}[/yellow] of which no device had training examples"
        return (
            f"[bold green]finished[/bold green] {rounds}"
            f"{outcome_text(self.outcome) or scores_text(self.scores, 'best ')}; "
            f"{safe(self.result)}; to look at it: protofleet report "
            f"{safe(shell_word(Path(self.result).parent))}"
        )
