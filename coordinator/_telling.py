"""What a service says of itself: its state as events, and of repeated things few."""

from __future__ import annotations

from protofleet.coordinator import events
from protofleet.coordinator._sparing import Sparing
from protofleet.errors import RefusedError
from protofleet.federation import synchronous as rounds
from protofleet.federation.settings import FederationConfig
from protofleet.federation.synchronous import Phase


class Teller:
    """Turns states and refusals into events for ``sink``.

    Args:
        config: the federation file.
        policy: its round's rules.
        sink: told what happens.
    """

    def __init__(self, config: FederationConfig, policy: rounds.Policy, sink: events.Sink) -> None:
        self._config, self._policy, self._sink = config, policy, sink
        self._told = Sparing()
        self._told_waiting = (-1, -1)

    def opened(self, state: rounds.State, *, resumed: bool) -> None:
        """A round has begun, or goes on."""
        self._sink(
            events.RoundOpened(
                round_id=state.round_id,
                final=state.final,
                cohort=state.cohort,
                delivered=len(state.delivered),
                resumed=resumed,
                deadline_s=self._config.round.deadline_s,
            )
        )

    def extended(self, state: rounds.State, action: rounds.Extend) -> None:
        """The open round goes on with more members."""
        self._sink(
            events.RoundExtended(
                round_id=action.round_id,
                attempt=action.attempt,
                delivered=len(state.delivered),
                needed=action.needed,
                missing=tuple(c for c in state.outstanding if c not in action.added),
                added=action.added,
            )
        )

    def waiting(self, state: rounds.State) -> None:
        """A round waits for devices; told again when their number changes."""
        told = (state.round_id, len(state.live))
        if state.phase is Phase.WAITING and told != self._told_waiting:
            self._told_waiting = told
            needed = rounds.needed_devices(self._policy, state.round_id)
            self._sink(events.Waiting(round_id=told[0], live=told[1], needed=needed))

    def rejected(self, peer: str, round_id: int, reason: str) -> None:
        """An update was not taken."""
        if self._told.passes((peer, round_id)):
            self._sink(events.UpdateRejected(round_id=round_id, device=peer, reason=reason))

    def refused(self, peer: str, error: RefusedError) -> None:
        """Something that a device sent broke a rule."""
        if self._told.passes((peer, error.rule)):
            self._sink(events.DeviceRefused(device=peer, rule=error.rule, reason=str(error)))

    def may_answer(self, peer: str, error: RefusedError) -> bool:
        """Whether to announce the federation to a refused device this time."""
        return self._told.passes((peer, error.rule, "announced"))
