"""Orders of an operator: durable in the ledger, taken by the coordinator between two events."""

from __future__ import annotations

import threading
from contextlib import closing

import msgspec
import pytest
from fake_endpoint import CONNECTED, QUIET

from protofleet.coordinator import events
from protofleet.coordinator.ledger.control import Orders, Wish, extended_rounds, is_served
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.status import read_status
from protofleet.errors import InputError, UnavailableError
from protofleet.federation.schedules.schedule import RoundPhase


def _says(fed, wish):
    """A step at which another process gives an order."""

    def step():
        with closing(Orders(fed.plan.config.run_dir)) as orders:
            return orders.wish(wish) and None

    return step


def _extends(fed, rounds):
    def step():
        with closing(Orders(fed.plan.config.run_dir)) as orders:
            return orders.extend(rounds) and None

    return step


def _there(fed):
    return [CONNECTED, fed.online("a"), fed.online("b")]


def _round(fed, round_id):
    return [*fed.delivers("a", round_id), *fed.delivers("b", round_id)]


def _leave(fed):
    return [fed.gone("a", "left"), fed.gone("b", "left")]


def _tags(fed):
    operated = (events.Operated, events.Stopped, events.RoundsRaised, events.Finished)
    found = [event for event in fed.events if isinstance(event, operated)]
    return [type(event).__struct_config__.tag for event in found]


def _bits(fed):
    return {name: value.tobytes() for name, value in fed.server_state.tensors.items()}


def test_a_pause_ends_the_open_round_and_holds_over_a_kill(open_federation):
    """The bits are those of a run without it."""
    calm = open_federation(rounds=2, name="calm")
    calm.play(_there(calm), _round(calm, 1), _round(calm, 2), _leave(calm))

    fed = open_federation(rounds=2)
    endpoint = fed.play(_there(fed), _says(fed, Wish.PAUSE), _round(fed, 1), QUIET)
    assert (fed.state.phase, fed.state.round_id) == (RoundPhase.WAITING, 2)
    assert [one.hold for one in endpoint.published][-1] == "paused"
    status = read_status(fed.plan.config)
    assert (status.operation, status.served, status.committed) == ("paused", False, 1)
    assert status.since_s

    endpoint = fed.play(_there(fed), QUIET)
    assert (fed.state.round_id, endpoint.sent) == (2, [])
    fed.play(_there(fed), _says(fed, Wish.RUN), QUIET, _round(fed, 2), _leave(fed))
    assert _tags(fed) == ["pausing", *["paused"] * 3, "continued", "finished"]
    assert _bits(fed) == _bits(calm)


def test_a_stop_drains_writes_results_and_the_next_start_goes_on(open_federation):
    fed = open_federation(rounds=2)
    endpoint = fed.play(_there(fed), _says(fed, Wish.STOP), _round(fed, 1))
    assert isinstance(fed.finished, events.Stopped)
    assert endpoint.published[-1].hold == "stopped"
    assert (fed.plan.config.run_dir / "global.safetensors").exists()
    assert read_status(fed.plan.config).operation == "stopped"
    fed.play(_there(fed), _round(fed, 2), _leave(fed))
    assert isinstance(fed.finished, events.Finished)
    assert _tags(fed) == ["stopping", "stopped", "finished"]


def test_an_end_leaves_the_open_round_to_the_next_start(open_federation):
    fed = open_federation()
    fed.play(_there(fed), fed.delivers("a"), _says(fed, Wish.END))
    assert fed.told(events.Stopped, "round_id", "open") == [(1, True)]
    assert (fed.state.phase, fed.state.delivered) == (RoundPhase.OPEN, {"a"})
    fed.play(_there(fed), fed.delivers("b"), _leave(fed))
    assert fed.told(events.RoundClosed, "participants") == [(2,)]


def test_a_stop_that_was_not_obeyed_before_a_kill_is_obeyed_after_it(open_federation):
    fed = open_federation(rounds=2)
    fed.play(_there(fed), _says(fed, Wish.STOP), QUIET)
    fed.play(_there(fed), _round(fed, 1))
    assert fed.told(events.Stopped, "round_id", "open") == [(2, False)]


def test_a_run_is_extended_in_its_last_round_and_after_a_restart(open_federation):
    fed = open_federation()
    fed.play(_there(fed), _extends(fed, 2), _round(fed, 1), QUIET)
    assert fed.told(events.RoundsRaised, "rounds") == [(2,)]
    assert (fed.state.phase, fed.state.round_id) == (RoundPhase.OPEN, 2)
    assert [one.rounds for one in fed.endpoint.published][-1] == 2
    assert extended_rounds(fed.plan.config.run_dir) == 2
    assert read_status(fed.plan.config).rounds == 2


class _OnceClosed(list):
    """Events; when the first round has closed, and before that is committed to, a step is done."""

    def __init__(self, step):
        super().__init__()
        self._step = step

    def append(self, event):
        super().append(event)
        if isinstance(event, events.RoundClosed) and event.round_id == 1:
            self._step()


def test_an_extension_while_the_last_round_closes_is_not_too_late(open_federation):
    fed = open_federation()
    fed.events = _OnceClosed(_extends(fed, 2))
    fed.play(_there(fed), _round(fed, 1), QUIET, _round(fed, 2), _leave(fed))
    assert _tags(fed) == ["rounds_raised", "finished"]
    assert fed.told(events.RoundClosed, "round_id", "participants") == [(1, 2), (2, 2)]
    assert fed.finished.rounds == 2


def test_a_pause_while_the_last_round_closes_changes_nothing(open_federation):
    fed = open_federation()
    fed.events = _OnceClosed(_says(fed, Wish.PAUSE))
    fed.play(_there(fed), _round(fed, 1), _leave(fed))
    assert fed.finished.rounds == 1


def test_an_order_to_nobody_is_taken_by_the_next_start(open_federation):
    fed = open_federation()
    fed.play(_there(fed), QUIET)
    with closing(Orders(fed.plan.config.run_dir)) as orders:
        order = orders.wish(Wish.PAUSE)
        assert not orders.await_taken(order)
        fed.play(_there(fed), QUIET)
        assert orders.await_taken(order)


def test_an_extension_ends_where_a_final_fit_has_begun(tiny):
    with Ledger(tiny.plan.config.run_dir, tiny.plan.identity) as ledger:
        with closing(Orders(tiny.plan.config.run_dir)) as orders:
            assert orders.extend(5).rounds == 5
            ledger.open_round(3, ("a",), 0.0, final=True)
            with pytest.raises(InputError, match="began after round 2"):
                orders.extend(6)
        assert ledger.control.read().rounds == 2


def test_orders_say_whether_anybody_takes_them(tiny):
    run_dir = tiny.plan.config.run_dir
    with pytest.raises(InputError, match="no run was started here"):
        Orders(run_dir)
    with Ledger(run_dir, tiny.plan.identity) as ledger:
        assert is_served(run_dir)
        ledger.control.changed()
        with closing(Orders(run_dir)) as orders:
            order = orders.wish(Wish.PAUSE)
            assert not orders.await_taken(order, timeout_s=0.0)
            assert ledger.control.changed()
            assert not ledger.control.changed()
            found = []
            waiting = threading.Thread(
                target=lambda: found.append(_await(run_dir, order)), daemon=True
            )
            waiting.start()
            ledger.control.take(ledger.control.read())
            waiting.join(10)
            assert found == [True]
    assert not is_served(run_dir)
    with closing(Orders(run_dir)) as orders:
        assert not orders.await_taken(orders.wish(Wish.RUN))
        with pytest.raises(UnavailableError, match="no coordinator is running"):
            orders.wish(Wish.STOP)


def _await(run_dir, order):
    with closing(Orders(run_dir)) as orders:
        return orders.await_taken(order)


def test_what_is_waited_for_is_named(open_federation):
    fed = open_federation()
    fed.play(_there(fed), fed.delivers("a"))
    status = read_status(fed.plan.config)
    assert (status.operation, status.missing, status.delivered) == ("down", ("b",), ("a",))
    assert msgspec.json.decode(msgspec.json.encode(status))["missing"] == ["b"]
