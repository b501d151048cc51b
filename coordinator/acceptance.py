"""Admitted updates become updates that count."""

from __future__ import annotations

from protofleet.coordinator import events
from protofleet.coordinator.arrivals import Arrivals
from protofleet.coordinator.devices.troubles import DeviceTroubles
from protofleet.coordinator.parts import Run
from protofleet.coordinator.rollout import Rollouts


class Acceptance:
    """Accepts updates: into the ledger, then the receipts, then whoever follows devices.

    Args:
        run: with the ledger and the devices' endpoint.
        rollouts: told of devices' rounds.
        troubles: told of devices that have trained.

    Attributes:
        arrivals: updates that wait for it.
    """

    def __init__(self, run: Run, rollouts: Rollouts, troubles: DeviceTroubles) -> None:
        self._run, self._rollouts, self._troubles = run, rollouts, troubles
        self.arrivals = Arrivals()

    def accept(self, delivered: int, cohort: int) -> tuple[tuple[str, ...], int]:
        """Accept all that wait.

        Args:
            delivered: updates of the open round that have counted before.
            cohort: how many it is about.

        Returns:
            Their devices, in the order in which they came, and the bytes of their transfers.
        """
        arrived, run = self.arrivals.take(), self._run
        if not arrived:
            return (), 0
        run.ledger.accept(*(arrival for _, arrival in arrived))
        for count, (event, arrival) in enumerate(arrived, 1):
            device_id, offer, record = event.device_id, event.offer, arrival.accepted.record
            run.endpoint.accept(offer.transfer_id)
            run.sink(
                events.UpdateReceived(
                    round_id=offer.round_id,
                    device_id=device_id,
                    bytes=offer.total_bytes,
                    num_examples=record.num_examples,
                    loss=record.loss,
                    delivered=delivered + count,
                    cohort=cohort,
                    counted_in=arrival.counted_in,
                    transfer_id=offer.transfer_id,
                )
            )
            self._rollouts.update_accepted(device_id, record)
            self._troubles.note(device_id, "diverged", there=False)
        devices = tuple(event.device_id for event, _ in arrived)
        return devices, sum(event.offer.total_bytes for event, _ in arrived)
