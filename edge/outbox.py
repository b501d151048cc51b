"""What a device has to deliver: the update of the round in progress, or once more the last one."""

from __future__ import annotations

from protofleet.edge.owner.participation import Participation
from protofleet.edge.state.journal import SentUpdate
from protofleet.edge.state.store import Store
from protofleet.wire.device_endpoint import DeviceEndpoint

SETTLE_S = 10.0
"""Three repetitions of an offer: silence for longer means that nobody will answer this round."""


class Outbox:
    """Offers updates that the store keeps, while the owner's conditions let anything be sent.

    Args:
        endpoint: of the device.
        store: has the update.
        participation: whether it may be sent.

    Attributes:
        sending: the transfer of the update of the round in progress; empty: it is not offered.
        update_bytes: of the last update.
        settle_by: when an update that a newer task waits for is given up; infinite: none does.
    """

    def __init__(
        self, endpoint: DeviceEndpoint, store: Store, participation: Participation
    ) -> None:
        self._endpoint, self._store, self._participation = endpoint, store, participation
        self.sending, self.update_bytes = "", 0
        self.settle_by = float("inf")

    def send(self, round_id: int) -> None:
        """Offer the round's update until the coordinator's receipt."""
        if not self._participation.may_transfer:
            return
        pending = self._store.journal.pending
        self.update_bytes = pending.update.bytes if pending else 0
        coding = pending.coding if pending else None
        offer = self._endpoint.send_update(self._store.update_path(), round_id, coding)
        self.sending = offer.transfer_id

    def send_delivered(self, delivered: SentUpdate) -> None:
        """Offer an update again that a coordinator has had and lost."""
        if self._participation.may_transfer:
            path = self._store.update_path()
            self._endpoint.send_update(path, delivered.round_id, delivered.coding)

    def withhold(self) -> None:
        """Offer the update no longer; it stays in the store."""
        self._endpoint.cancel(self.sending)
        self.sending = ""

    def settle(self, now: float) -> None:
        """A newer task waits for the update's fate."""
        self.settle_by = now + SETTLE_S

    def clear(self) -> None:
        """No round is in progress."""
        self.sending, self.settle_by = "", float("inf")
