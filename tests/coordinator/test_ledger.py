"""The ledger: what it holds, and that a SIGKILL anywhere loses and doubles nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packed import pack_update
from power_loss import cuts, record

from protofleet.coordinator.ledger import ledger as ledger_module
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.errors import InputError, ProtofleetError, UnavailableError
from protofleet.federation.records import (
    Costs,
    EvaluationRecord,
    Metrics,
    Scores,
    Spread,
    UpdateRecord,
)
from protofleet.federation.schedules.buffered import BufferedSchedule
from protofleet.federation.schedules.schedule import (
    AddMembers,
    CloseRound,
    DeviceAppeared,
    Invite,
    OpenRound,
    RoundPhase,
    RoundState,
    ScheduleAction,
    StateCommitted,
    UpdateStored,
)
from protofleet.federation.schedules.synchronous import SynchronousSchedule
from protofleet.strategies.types import ServerState, Update
from protofleet.wire.messages import TransferOffer

_IDENTITY = {"federation": "home", "seed": "1"}
_CLIENTS = ("a", "b")
_ROUNDS = 2
_SCHEDULE = SynchronousSchedule(rounds=_ROUNDS, seed=0, minimum=len(_CLIENTS))
_FINAL = replace(_SCHEDULE, final_fit=True)


def _update(folder: Path, round_id: int, client_id: str) -> ArrivedUpdate:
    rng = np.random.default_rng([round_id, ord(client_id)])
    update = Update(
        client_id=client_id,
        round_id=round_id,
        num_examples=ord(client_id),
        tensors={"w": rng.normal(size=5).astype(np.float32)},
    )
    blob = pack_update(update, Costs())
    path = folder / f"{client_id}.incoming"
    path.write_bytes(blob)
    record = UpdateRecord(client_id=client_id, round_id=round_id, num_examples=update.num_examples)
    accepted = Accepted(device_id=client_id, transfer_id=f"{round_id}{client_id}", record=record)
    return ArrivedUpdate(path, accepted)


def _scores(round_id: int) -> Scores:
    spread = Spread(mean=float(round_id), std=0.0)
    return Scores(personalisation=Metrics(macro_f1=spread, accuracy=spread))


def _aggregate(state: ServerState, updates) -> ServerState:
    total = np.array(state.tensors["w"], np.float64)
    for update in updates:
        total = 0.5 * total + update.tensors["w"] * update.class_counts[1]
    return ServerState(round_id=state.round_id + 1, tensors={"w": total})


def _run(folder: Path, schedule: SynchronousSchedule = _FINAL, opened=Ledger) -> None:
    """A coordinator without a wire: every client delivers as soon as it is asked to.

    Before it delivers, a client registers that it has as many samples of class 1 as rounds.
    """
    with opened(folder, _IDENTITY) as ledger:
        state, actions = schedule.resume(ledger.state(), 0.0)
        server = ledger.server_state() or ServerState(round_id=0, tensors={"w": np.zeros(5)})
        pending = list(actions)
        events = [DeviceAppeared(client_id) for client_id in _CLIENTS]
        while pending or events:
            if not pending:
                state, new = schedule.step(state, events.pop(0), 0.0)
                pending += new
                continue
            server, more = _perform(ledger, server, state, pending.pop(0))
            events += more


def _perform(ledger: Ledger, server: ServerState, state: RoundState, action: ScheduleAction):
    match action:
        case OpenRound(round_id, cohort, size, final):
            ledger.open_round(round_id, cohort, 0.0, size=size, final=final)
            delivering = cohort
        case Invite(client_id):
            delivering = (client_id,)
        case CloseRound(round_id, _, final):
            ledger.close_round(round_id)
            if final:
                server = replace(server, round_id=round_id)
            else:
                server = _aggregate(server, ledger.updates(round_id))
            ledger.commit_round(server, _scores(round_id), 1.0, keep_states=2)
            return server, [StateCommitted()]
        case _:
            return server, []
    for client_id in delivering:
        if _SCHEDULE.refusal(state, client_id, state.round_id) is None:
            ledger.devices.register(client_id, (0, state.round_id))
            ledger.accept(_update(ledger.folder, state.round_id, client_id))
    return server, [UpdateStored(client_id) for client_id in delivering]


def _outcome(folder: Path):
    with Ledger(folder, _IDENTITY) as ledger:
        state = ledger.server_state()
        return (
            state.round_id,
            state.tensors["w"].tobytes(),
            ledger.committed(),
            {r: [a.device_id for a in ledger.accepted(r)] for r in range(1, state.round_id + 1)},
            ledger.state(),
            ledger.devices.registered(),
            sorted(file.name for file in ledger.states.iterdir()),
            list(ledger.spool.iterdir()),
        )


class _DyingConnection(sqlite3.Connection):
    countdown = 0

    def execute(self, *args):
        _count_down()
        result = super().execute(*args)
        _count_down()
        return result

    def __exit__(self, *args):
        _count_down()
        result = super().__exit__(*args)
        _count_down()
        return result


def _count_down() -> None:
    _DyingConnection.countdown -= 1
    if _DyingConnection.countdown == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _killed_at(folder: Path, point: int, run=_run, **options) -> bool:
    """Run in a child that SIGKILLs itself at its ``point``-th step; whether it got there."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _DyingConnection.countdown = point
            connect, fsync, replace = sqlite3.connect, os.fsync, Path.replace
            ledger_module.sqlite3.connect = lambda path, **options: connect(
                path, factory=_DyingConnection, **options
            )
            os.fsync = lambda fd: (_count_down(), fsync(fd))
            Path.replace = lambda a, b: (_count_down(), replace(a, b), _count_down())
            run(folder, **options)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [_SCHEDULE, _FINAL], ids=["rounds", "and-a-final-fit"])
def test_killed_at_any_step_and_resumed_the_run_ends_with_the_same_bits(ram_path, schedule):
    """A real SIGKILL before and after every write, rename and transaction of the whole run."""
    _run(ram_path / "whole", schedule)
    expected = _outcome(ram_path / "whole")
    assert expected[0] == _ROUNDS + schedule.final_fit
    point, killed = 0, True
    while killed:
        point += 1
        folder = ram_path / f"k{point}"
        killed = _killed_at(folder, point, schedule=schedule)
        _run(folder, schedule)
        assert _outcome(folder) == expected, f"killed at step {point}"
    assert point > 60


def work(folder: Path, mark) -> None:
    """The run, with a mark where an update is answered ``done``, and where a round is told."""

    class Promising(Ledger):
        def accept(self, *arrivals):
            super().accept(*arrivals)
            mark(" ".join(["accepted", *(one.accepted.transfer_id for one in arrivals)]))

        def commit_round(self, state, *args, **options):
            super().commit_round(state, *args, **options)
            mark(f"committed {state.round_id}")

    _run(folder, opened=Promising)


@pytest.mark.slow
def test_power_cut_at_any_write_loses_nothing_that_was_promised(ram_path):
    """The disk forgets what was not synced; resumed, the run ends with the same bits."""
    _run(ram_path / "whole")
    expected = _outcome(ram_path / "whole")
    root, tried = ram_path / "run", 0
    for cut in cuts(record(__file__, root, ram_path), root, ram_path / "left"):
        where = f"{cut.place}, {cut.disk}, {cut.marks}"
        with Ledger(cut.folder, _IDENTITY) as ledger:
            committed = [one.round_id for one in ledger.committed()]
            for mark in cut.marks:
                what, *names = mark.split()
                for name in names:
                    if what == "committed":
                        assert int(name) in committed, where
                    elif int(name[0]) not in committed:
                        of_round = ledger.accepted(int(name[0]))
                        assert name in [one.transfer_id for one in of_round], where
        _run(cut.folder)
        assert _outcome(cut.folder) == expected, where
        tried += 1
    assert tried > 100


_BUFFERED = BufferedSchedule(
    rules=SynchronousSchedule(rounds=4, seed=0, minimum=3, patience=3), buffer=2
)


def _run_buffered(folder: Path) -> None:
    """A coordinator without a wire: a and b deliver as soon as they are asked to, c much later."""
    with Ledger(folder, _IDENTITY) as ledger:
        state, actions = _BUFFERED.resume(ledger.state(), 0.0)
        server = ledger.server_state() or ServerState(round_id=0, tensors={"w": np.zeros(5)})
        events, slow = [DeviceAppeared(client_id) for client_id in "abc"], []
        while actions or events or slow:
            if actions:
                action, *rest = actions
                server, events, slow = _answered(ledger, server, state, action, (events, slow))
                actions = rest
                continue
            event = events.pop(0) if events else UpdateStored(slow.pop(0))
            if isinstance(event, UpdateStored) and not _stored(ledger, state, event.device_id):
                continue
            state, new = _BUFFERED.step(state, event, 0.0)
            actions = list(new)


def _stored(ledger: Ledger, state: RoundState, client_id: str) -> bool:
    task = state.task_of(client_id)
    if not task or _BUFFERED.refusal(state, client_id, task) is not None:
        return False
    arrived = _update(ledger.folder, task, client_id)
    ledger.accept(replace(arrived, counted_in=state.round_id))
    return True


def _answered(ledger, server, state, action, waiting):
    """The action's effects; who is given a task delivers, c when nobody else has anything to do."""
    events, slow = waiting
    given = ()
    match action:
        case OpenRound(round_id, given, size):
            ledger.open_round(round_id, given, 0.0, size=size)
        case AddMembers(round_id, given):
            ledger.extend_round(round_id, state.attempt, given)
        case Invite(client_id):
            given = (client_id,)
        case CloseRound(round_id):
            ledger.close_round(round_id)
            server = _mixed(server, ledger.updates(round_id))
            oldest = min((t for t in state.tasks.values() if t > round_id - 3), default=None)
            ledger.commit_round(server, _scores(round_id), 1.0, keep_states=1, oldest_task=oldest)
            events = [StateCommitted(), *events]
    events = [*events, *(UpdateStored(one) for one in given if one != "c")]
    return server, events, [*slow, *(one for one in given if one == "c")]


def _mixed(state: ServerState, updates) -> ServerState:
    """Another sum for every order and every round of its updates."""
    total = state.tensors["w"]
    for update in updates:
        total = 0.5 * total + update.tensors["w"] / (1 + state.round_id + 1 - update.round_id)
    return ServerState(round_id=state.round_id + 1, tensors={"w": total})


def _of_order(order) -> bytes:
    """The last state's bits, from the order of admission alone."""
    state = ServerState(round_id=0, tensors={"w": np.zeros(5)})
    for _, group in groupby(order, key=lambda one: one.counted_in):
        made = sorted(group, key=lambda one: (one.client_id, -one.round_id))
        updates = [SimpleNamespace(round_id=one.round_id, tensors=_tensors(one)) for one in made]
        state = _mixed(state, updates)
    return state.tensors["w"].tobytes()


def _tensors(one):
    rng = np.random.default_rng([one.round_id, ord(one.client_id)])
    return {"w": rng.normal(size=5).astype(np.float32)}


@pytest.mark.slow
def test_killed_at_any_step_a_buffered_run_is_what_its_order_of_admission_says(ram_path):
    """Every update counts once, late ones too, and the state follows from the ledger's order."""
    point, killed, late = 0, True, 0
    while killed:
        point += 1
        folder = ram_path / f"k{point}"
        killed = _killed_at(folder, point, _run_buffered)
        _run_buffered(folder)
        with Ledger(folder, _IDENTITY) as ledger:
            order, committed = ledger.admissions(), ledger.committed()
            state, spooled = ledger.server_state(), list(ledger.spool.iterdir())
        assert [one.round_id for one in committed] == [1, 2, 3, 4], point
        assert len({one[1:] for one in order}) == len(order) == 8, point
        assert [one.participants for one in committed] == [2] * 4, point
        assert state.tensors["w"].tobytes() == _of_order(order), point
        assert spooled == [], point
        late += any(one.counted_in > one.round_id for one in order)
    assert point > 60
    assert late > point / 4


def test_a_final_fit_leaves_the_tensors_and_is_told_apart(ram_path):
    _run(ram_path / "without", _SCHEDULE)
    _run(ram_path / "with", _FINAL)
    without, found = _outcome(ram_path / "without"), _outcome(ram_path / "with")
    assert found[1] == without[1]
    assert [(done.round_id, done.final) for done in found[2]] == [(1, False), (2, False), (3, True)]
    assert found[4] == RoundState(round_id=4, final=True, last_invited=dict.fromkeys(_CLIENTS, 3))
    assert without[4] == RoundState(round_id=3, last_invited=dict.fromkeys(_CLIENTS, 2))


def test_updates_have_the_class_counts_of_their_acceptance(tmp_path):
    """Also after a restart, and although their client has registered others since."""
    with Ledger(tmp_path / "r", _IDENTITY) as ledger:
        ledger.open_round(1, ("a", "b"), 0.0)
        ledger.devices.register("a", (3, 94))
        ledger.accept(_update(tmp_path, 1, "a"))
        ledger.devices.register("a", (0, 7))
        ledger.accept(_update(tmp_path, 1, "b"))
    with Ledger(tmp_path / "r", _IDENTITY) as ledger:
        one, two = ledger.updates(1)
        assert ledger.devices.registered() == {"a": (0, 7)}
    assert one.class_counts.tolist() == [3, 94]
    assert one.class_counts.dtype == np.int64
    assert two.class_counts is None


def test_killed_again_and_again_the_run_ends_with_the_same_bits(ram_path):
    _run(ram_path / "whole")
    kills = 0
    while _killed_at(ram_path / "run", 30 + 5 * kills):
        kills += 1
    assert kills >= 3
    assert _outcome(ram_path / "run") == _outcome(ram_path / "whole")


def _offer(round_id: int, transfer_id: str) -> TransferOffer:
    return TransferOffer(
        transfer_id=transfer_id,
        kind="update",
        round_id=round_id,
        total_bytes=1,
        sha256="ab" * 32,
        chunk_bytes=1,
    )


def test_an_open_round_is_found_again(tmp_path):
    with Ledger(tmp_path / "r", _IDENTITY) as ledger:
        ledger.open_round(1, ("b", "a"), 0.0)
        ledger.accept(_update(tmp_path, 1, "b"))
        ledger.extend_round(1, 1, ("c",))
    with Ledger(tmp_path / "r", _IDENTITY) as ledger:
        state = ledger.state()
        assert (state.phase, state.round_id, state.attempt, state.size) == (
            RoundPhase.OPEN,
            1,
            1,
            2,
        )
        assert (state.cohort, state.delivered) == (("a", "b", "c"), frozenset("b"))
        assert ledger.has_accepted("b", _offer(1, "1b"))
        assert not ledger.has_accepted("b", _offer(1, "1c"))
        assert not ledger.has_accepted("b", _offer(2, "1b"))
        assert not ledger.has_accepted("a", _offer(1, "1b"))


def test_another_run_in_the_same_folder_is_refused_by_what_differs(tmp_path):
    Ledger(tmp_path, _IDENTITY).close()
    with pytest.raises(InputError, match=r"seed 1.*says 2"):
        Ledger(tmp_path, {**_IDENTITY, "seed": "2"})


def test_a_second_coordinator_in_the_same_folder_is_refused(tmp_path):
    with Ledger(tmp_path, _IDENTITY), pytest.raises(UnavailableError, match="another coordinator"):
        Ledger(tmp_path, _IDENTITY)


def test_a_damaged_state_is_noticed(tmp_path):
    _run(tmp_path)
    file = tmp_path / "states" / f"{_ROUNDS + 1:06d}.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with Ledger(tmp_path, _IDENTITY) as ledger, pytest.raises(ProtofleetError, match="damaged"):
        ledger.server_state()


def test_a_closed_rounds_spool_is_gone_at_once_and_from_the_disk_in_the_end(tmp_path):
    """But for a late update, which counts in the next round."""
    with Ledger(tmp_path, _IDENTITY) as ledger:
        for round_id, late in ((1, False), (2, True)):
            ledger.open_round(round_id, _CLIENTS, 0.0)
            first, *others = (_update(tmp_path, round_id, name) for name in _CLIENTS)
            ledger.accept(*others, replace(first, counted_in=3) if late else first)
            ledger.close_round(round_id)
            state = ServerState(round_id=round_id, tensors={"w": np.zeros(1)})
            ledger.commit_round(state, _scores(round_id), 1.0, keep_states=1)
        assert [one.name for one in ledger.spool.iterdir()] == ["000002"]
        (left,) = (ledger.spool / "000002").iterdir()
        assert left.stem == _CLIENTS[0]
    assert list((tmp_path / "removed").iterdir()) == []


def test_what_a_killed_process_was_removing_is_gone_after_the_next_start(tmp_path):
    with Ledger(tmp_path, _IDENTITY):
        pass
    (tmp_path / "removed" / "7").mkdir()
    (tmp_path / "removed" / "7" / "a.safetensors").write_bytes(b"an update")
    with Ledger(tmp_path, _IDENTITY):
        assert list((tmp_path / "removed").iterdir()) == []


def test_an_aggregations_claims_are_those_of_the_records_without_scores_and_costs(tmp_path):
    with Ledger(tmp_path, _IDENTITY) as ledger:
        ledger.open_round(1, _CLIENTS, 0.0)
        ledger.accept(*(_update(tmp_path, 1, name) for name in _CLIENTS))
        accepted, claims = list(ledger.accepted(1)), ledger.claims(1)
    assert [one.device_id for one in claims] == sorted(_CLIENTS)
    for one, claim in zip(accepted, claims, strict=True):
        ours, theirs = claim.record, one.record
        assert (ours.client_id, ours.round_id, ours.num_examples, ours.share_of_work) == (
            theirs.client_id,
            theirs.round_id,
            theirs.num_examples,
            theirs.share_of_work,
        )
        assert claim.norms == one.norms
        assert (ours.costs, ours.evaluation) == (Costs(), EvaluationRecord())
