"""Rounds that wait for nobody: a buffered schedule over MQTT, with one client much slower.

    pip install 'protofleet[coordinator,fleet]'     # Mosquitto is taken where it is installed
    python asynchronous.py digits.pfb

A new state of the server is made of every two updates, whoever sent them; what the slow client
sends counts in a later state, and less the older it is. A synchronous run of as many updates, in
which everybody waits for it, is shown beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import protofleet as pf

FEDBUFF = {"kind": "buffered", "buffer": 2, "staleness": "polynomial", "exponent": 0.5}
"""Section ``[schedule]`` of a federation file (docs/coordinator.md): FedBuff, arXiv:2106.06639."""


def show(done: Any) -> None:
    """A line for each state of the server."""
    print(
        f"  state {done.round_id} after {done.seconds:.2f} s: {done.participants} updates, "
        f"{done.staleness:.1f} states late on average"
    )


def main(bundle: Path, out: Path, states: int) -> dict[str, pf.Results]:
    """Run both; each has a coordinator, a broker and a process for each client."""
    clients = pf.split(pf.load_dataset("digits"), 4, alpha=0.5)
    slow = {"every": 4, "slowdown": 5.0}
    runs = {
        "buffered": pf.Federation(
            bundle, clients, rounds=states, schedule=FEDBUFF, slow=slow, folder=out / "buffered"
        ),
        "synchronous": pf.Federation(
            bundle, clients, rounds=max(1, states // 2), slow=slow, folder=out / "synchronous"
        ),
    }
    results = {}
    for name, federation in runs.items():
        print(name)
        results[name] = federation.run("mqtt", watch=show)
        seconds = sum(one.seconds for one in results[name].rounds)
        accuracy = results[name].last.sections["personalisation"]["accuracy"].mean
        print(f"  {seconds:.1f} s in all, accuracy {accuracy:.2f}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="of digits, such as docs/api.md makes")
    parser.add_argument("--out", type=Path, default=Path("asynchronous"), help="folder of the runs")
    parser.add_argument("--states", type=int, default=8)
    given = parser.parse_args()
    main(given.bundle, given.out, given.states)
