"""When devices are asked to present themselves anew, and how spread over time.

A broker keeps presences, but a coordinator that subscribes gets no more of them than its queue
holds (Mosquitto: 1000 by default), and a device may be taken for gone that is not. So each process
of the coordinator calls the roll when it starts, and again when it hears devices that it does not
know. The number of a call stands in each announcement, for devices that were away.
"""

from __future__ import annotations

SPREAD_MIN_S = 0.5
SPREAD_MAX_S = 600.0
PAUSE_S = 60.0
"""Between two calls; doubled while they bring no device that was not known, since names may be
invented."""
PAUSE_MAX_S = 3600.0


class RollCall:
    """Counts the calls of one process of the coordinator.

    Args:
        known: devices that earlier processes of the run have known.
        now: monotonic seconds.
        connections_per_s: that the broker takes; devices come at half that rate in the mean.

    Attributes:
        number: of the latest call.
    """

    def __init__(self, known: int, now: float, connections_per_s: float) -> None:
        self.number = 0
        self._known, self._mean_rate = known, connections_per_s / 2
        self._found = 0
        self._pause_s = PAUSE_S
        self._next_at = now

    @property
    def spread_s(self) -> float:
        """Over how long the devices are to answer, or to come back to the broker."""
        return min(SPREAD_MAX_S, max(SPREAD_MIN_S, self._known / self._mean_rate))

    def met(self, present: int) -> None:
        """So many devices are there at once."""
        self._known = max(self._known, present)

    def begin(self, now: float) -> None:
        """The first call goes out, at the start."""
        self._next_at = now + self.spread_s

    def heard_unknown(self, fitting: int, now: float) -> bool:
        """Whether to announce another call now that a device was heard that is not known.

        Args:
            fitting: devices that are known to fit.
            now: monotonic seconds.
        """
        if now < self._next_at:
            return False
        self._pause_s = PAUSE_S if fitting > self._found else min(PAUSE_MAX_S, 2 * self._pause_s)
        self._found, self._known = fitting, max(self._known, fitting)
        self.number += 1
        self._next_at = now + max(self._pause_s, 2 * self.spread_s)
        return True
