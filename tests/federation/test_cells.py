"""What cells send and the root makes of it: the bits of one coordinator, however devices lie."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from packed import pack_update
from tiny_plan import tiny
from toy_model import server_tools

from protofleet.errors import InputError, RefusedError
from protofleet.federation import cells
from protofleet.federation.plan import make_plan
from protofleet.federation.records import Costs, UpdateRecord
from protofleet.federation.settings import (
    AggregationSettings,
    CellSettings,
    EvaluationSettings,
    PrivacySettings,
    StrategySettings,
)
from protofleet.strategies.aggregation import build
from protofleet.strategies.types import Update

__all__ = ["tiny"]

SUMS = CellSettings(count=3, send="sums")
EXACT = AggregationSettings(kind="exact_mean", norm_clip=0, most_examples=0)
CLIENTS = 7


@pytest.fixture
def config(tiny):
    return msgspec.structs.replace(tiny.plan.config, cells=SUMS, aggregation=EXACT)


def updates_of(strategy):
    rng = np.random.default_rng(4)
    forms = strategy.uplink.required
    return [
        Update(
            client_id=f"client{k}",
            round_id=1,
            num_examples=int(rng.integers(0, 40)) if k else 0,
            tensors={n: rng.normal(size=f.shape).astype(np.float32) for n, f in forms.items()},
        )
        for k in range(CLIENTS)
    ]


def report(folder, cell, updates, strategy=None):
    """A cell's report: the sum if there is a strategy, else the updates."""
    files, entries = [], []
    for update in updates:
        file = folder / f"{cell}-{update.client_id}"
        file.write_bytes(pack_update(update, Costs()))
        files.append(file)
        entries.append(
            cells.ReportedUpdate(
                device_id=update.client_id,
                transfer_id="0" * 32,
                record=UpdateRecord(
                    client_id=update.client_id, round_id=1, num_examples=update.num_examples
                ),
                bytes=0 if strategy else file.stat().st_size,
            )
        )
    header = cells.ReportHeader(cell=cell, round_id=1, updates=tuple(entries))
    path = folder / f"{cell}.report"
    total = cells.sum_updates(strategy, updates) if strategy else None
    cells.write_report(path, header, [] if strategy else files, total)
    return path


def split(made, count):
    """Clients over so many cells, as their ids say."""
    return [
        [one for one in made if cells.cell_of(one.client_id, count) == cell + 1]
        for cell in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedavg", {}), ("apfl", {"server": {"lr": 0.5}}), ("fedper", {"head": "b"})],
)
def test_sums_of_any_cells_make_the_state_of_one_coordinator(tiny, tmp_path, name, settings):
    strategy = make_plan(
        msgspec.structs.replace(
            tiny.plan.config, strategy=StrategySettings(name=name, settings=settings)
        )
    ).strategy
    before = strategy.server_init(tiny.plan.model, np.random.default_rng(0))
    made = updates_of(strategy)
    exact = replace(server_tools(), aggregator=build("exact_mean", {}))
    expected = strategy.aggregate(before, made, exact)
    for count in (1, 2, 3):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        paths = [
            report(folder, cell + 1, part, strategy) for cell, part in enumerate(split(made, count))
        ]
        gathered = cells.gather(paths[::-1], strategy)
        after = strategy.aggregate(before, gathered.updates, server_tools())
        assert [one.device_id for one in gathered.reported] == [u.client_id for u in made]
        for tensor, value in expected.tensors.items():
            assert after.tensors[tensor].tobytes() == value.tobytes()


def test_where_nobody_has_examples_nothing_moves(tiny, tmp_path):
    strategy = tiny.plan.strategy
    before = tiny.plan.server_init()
    path = report(tmp_path, 1, updates_of(strategy)[:1], strategy)
    after = strategy.aggregate(before, cells.gather([path], strategy).updates, server_tools())
    for name, value in before.tensors.items():
        np.testing.assert_array_equal(after.tensors[name], value)


def test_updates_of_all_cells_come_in_order_and_each_device_once(tiny, tmp_path):
    strategy, made = tiny.plan.strategy, updates_of(tiny.plan.strategy)
    parts = split(made, 2)
    parts[1] = sorted([*parts[1], parts[0][0]], key=lambda one: one.client_id)
    paths = [report(tmp_path, cell + 1, part) for cell, part in enumerate(parts)]
    gathered = cells.gather(paths[::-1], strategy)
    found = list(gathered.updates)
    assert len(gathered.updates) == CLIENTS
    assert [one.client_id for one in found] == [one.client_id for one in made]
    for mine, theirs in zip(found, made, strict=True):
        for name, value in theirs.tensors.items():
            np.testing.assert_array_equal(mine.tensors[name], value)


@pytest.mark.parametrize("change", ["short", "long", "json", "length", "unsorted", "record"])
def test_a_damaged_report_is_refused(tiny, tmp_path, change):
    path = report(tmp_path, 1, updates_of(tiny.plan.strategy)[1:4], tiny.plan.strategy)
    data = path.read_bytes()
    broken = {
        "short": data[:-1],
        "long": data + b"\0",
        "json": data[:8] + b"[" + data[9:],
        "length": b"\xff" * 8 + data[8:],
        "unsorted": data.replace(b'"device_id":"client1"', b'"device_id":"client9"'),
        "record": data.replace(b'"client_id":"client1"', b'"client_id":"client9"'),
    }
    path.write_bytes(broken[change])
    with pytest.raises(RefusedError, match="report: "):
        cells.read_header(path)


def test_a_sum_of_other_numbers_is_refused(tiny, tmp_path):
    path = report(tmp_path, 1, updates_of(tiny.plan.strategy)[1:4], tiny.plan.strategy)
    data = bytearray(path.read_bytes())
    data[-16:-8] = np.float64(np.nan).tobytes()  # the last limb, before one block's top
    path.write_bytes(data)
    cells.read_header(path)
    with pytest.raises(RefusedError, match="finite"):
        cells.read_sum(path)


def test_an_order_has_the_state_to_the_bit(tiny):
    state = tiny.plan.server_init()
    order = cells.CellOrder(round_id=1, update_norms={"params": 2.5})
    found, told = cells.decode_order(cells.encode_order(state, order))
    assert (told, found.round_id) == (order, 0)
    for name, value in state.tensors.items():
        assert found.tensors[name].tobytes() == value.tobytes()
    with pytest.raises(RefusedError, match="order: expected"):
        cells.decode_order(pack_update(updates_of(tiny.plan.strategy)[0], Costs()))


def test_each_process_has_its_name_and_folders(config, tmp_path):
    pooled = EvaluationSettings(pooled=tmp_path / "pooled.npz")
    file = msgspec.structs.replace(config, evaluation=pooled, keys=tmp_path / "keys")
    cell = cells.cell_config(file, 2)
    assert (cell.federation, cell.run_dir.name, cell.keys.name) == ("home.2", "run.2", "keys.2")
    assert (cell.evaluation.pooled, cell.cells) == (None, None)
    root = cells.root_config(file)
    assert (root.federation, root.run_dir, root.cohort.minimum) == ("home", file.run_dir, 3)
    assert (root.round.quorum, root.aggregation.kind) == (1.0, "mean")
    with pytest.raises(InputError, match="expected 1 to 3, as the file says, got 4"):
        cells.cell_config(file, 4)
    with pytest.raises(InputError, match=r"expected a section \[cells\]"):
        cells.cell_config(msgspec.structs.replace(file, cells=None), 1)


def test_a_device_s_id_alone_can_say_its_cell():
    found = [cells.cell_of(f"device{k}", 4) for k in range(400)]
    assert set(found) == {1, 2, 3, 4}
    assert min(found.count(cell) for cell in (1, 2, 3, 4)) > 70
    assert cells.cell_of("pi-7", 4) == 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"aggregation": AggregationSettings()}, "aggregation.kind: .* got 'mean'"),
        ({"aggregation": AggregationSettings(kind="exact_mean")}, "norm_clip: .* got 3.0"),
        (
            {"aggregation": AggregationSettings(kind="exact_mean", norm_clip=0)},
            "most_examples: .* got 10.0",
        ),
        ({"strategy": StrategySettings(name="fedamp")}, "'fedamp' .* looks at single updates"),
        (
            {"strategy": StrategySettings(settings={"optimiser": {"lr": "auto"}})},
            "optimiser.lr = .* give a number",
        ),
        (
            {"privacy": PrivacySettings(noise_multiplier=1.0, devices=5)},
            "no privacy.noise_multiplier",
        ),
    ],
)
def test_what_sums_cannot_do_is_refused(tiny, config, changed, message):
    file = msgspec.structs.replace(config, **changed)
    plan = tiny.plan
    if "strategy" in changed:
        bare = msgspec.structs.replace(file, aggregation=AggregationSettings())
        plan = make_plan(bare, finds_rate=False)
    with pytest.raises(InputError, match=message):
        cells.check_cells(file, plan)
    cells.check_cells(config, tiny.plan)
