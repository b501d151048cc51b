"""``protofleet bench``: measured comparisons on this machine."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._outputs import writable, writable_picture
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._trust import trusted_keys
from protofleet.cli._verbosity import progress_console, say
from protofleet.cli._width import wrapped
from protofleet.errors import UnavailableError

if TYPE_CHECKING:
    from protofleet.benchmarks._rows import Result
    from protofleet.benchmarks.device.plan import Options
    from protofleet.benchmarks.device.report import DeviceReport
    from protofleet.benchmarks.kernels.measure import Planned

_TIMED = ("programs", "memory", "rounds")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def bench() -> None:
    """Measure a bundle, kernels, training steps, rounds and memory.

    docs/benchmarks.md says how, and how to read the figures.
    """


def _integers(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"expected numbers from 1 such as 1,2; got '{text}'")
    return tuple(dict.fromkeys(int(part) for part in parts))


_quick = click.option("--quick", is_flag=True, help="Fewer cases and repetitions.")
_json = click.option(
    "--json", "json_file", type=_FILE, callback=writable, help="Also write rows to FILE."
)
_plot = click.option(
    "--plot", type=_FILE, callback=writable_picture, help="Also draw kernels to FILE, .png or .svg."
)


@bench.command()
@_quick
@_json
@_plot
@click.option("--threads", default="", callback=_integers, help="Numbers of threads, e.g. 1,2.")
@click.option("--only", multiple=True, metavar="NAME", help="Kernels with NAME in theirs; repeat.")
def kernels(
    *,
    quick: bool,
    json_file: Path | None,
    plot: Path | None,
    threads: tuple[int, ...],
    only: tuple[str, ...],
) -> None:
    """Kernels against PyTorch, POT, scikit-learn and bounds, each with a target."""
    from protofleet.benchmarks.kernels.measure import load_cases, plan

    planned = plan(load_cases(), quick=quick, only=only, threads=threads)
    _measure_kernels(_started(), planned, json_file, plot, quick=quick)


@bench.command()
@click.option(
    "--only", multiple=True, metavar="PATTERN", help="Such architectures, e.g. mobile; repeat."
)
@click.option(
    "--strategy", "strategies", multiple=True, metavar="NAME", help="Such methods; repeat."
)
@click.option(
    "--json",
    "json_file",
    type=_FILE,
    callback=writable,
    help="Keep cells in FILE as they come, and go on from those in it.",
)
@click.option(
    "--out", type=_FILE, callback=writable, help="Also write the table, as Markdown, to FILE."
)
def methods(
    *,
    only: tuple[str, ...],
    strategies: tuple[str, ...],
    json_file: Path | None,
    out: Path | None,
) -> None:
    """Every method on every architecture: a federation of two devices each; hours.

    With --json an interruption loses nothing: the same command goes on, and takes the
    federations that failed once more.
    """
    from protofleet.benchmarks import methods as matrix
    from protofleet.strategies import DESCRIPTIONS, check_known

    for name in strategies:
        check_known(name)
    store = matrix.CellStore(json_file)

    def write_page() -> None:
        if out is not None and store.cells:
            out.write_text(matrix.page(matrix.in_order(store.cells.values())), encoding="utf-8")

    write_page()
    outcomes = []
    wanted = strategies or tuple(sorted(DESCRIPTIONS))
    goes = "starts over" if json_file is None else "goes on"
    with on_interrupt(f"the same command {goes}"):
        for cell in matrix.run(matrix.architectures(only), wanted, store.settled()):
            click.echo(f"{cell.architecture}, {cell.strategy}: {cell.outcome} {cell.note}".rstrip())
            store.add(cell)
            outcomes.append(cell.outcome)
            write_page()
    if failed := outcomes.count("failed"):
        raise UnavailableError(f"{failed} of {len(outcomes)} federations failed")


@bench.command("all")
@_quick
@_json
@_plot
def every(*, quick: bool, json_file: Path | None, plot: Path | None) -> None:
    """Programs, memory, rounds and kernels, one after another; long."""
    from protofleet.benchmarks.kernels.measure import load_cases, plan

    planned = plan(load_cases(), quick=quick)
    result = _started()
    _measure(result, _TIMED, json_file, quick=quick)
    _measure_kernels(result, planned, json_file, plot, quick=quick)


@bench.command()
@click.option(
    "--bundle",
    type=click.Path(exists=True, path_type=Path),
    required=True,
    help="What to measure: folder or .pfb file.",
)
@click.option(
    "--data",
    default="",
    help="Real examples: FILE.npz, or uci-har:N with --data-root. macro-F1 is then shown too.",
)
@click.option(
    "--data-root",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="PROTOFLEET_DATA",
    show_envvar=True,
    help="Folder of the published data sets.",
)
@click.option("--threads", default="", callback=_integers, help="E.g. 1,4; default: 1, 2, 4.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice(["onnx", "litert"]),
    help="Only this one; may be repeated.",
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["float32", "float16", "int8"]),
    help="Only this one; may be repeated.",
)
@click.option(
    "--batch",
    "batches",
    default="1,8,32,64",
    show_default=True,
    callback=_integers,
    help="Examples in a training step; '' for inference alone.",
)
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME",
    help="Count the bytes of this one; may be repeated. Default: all that the bundle can run.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    help="How long to measure each figure.  [default: 2; with --quick 0.05]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of random examples.")
@click.option(
    "--trust",
    "trust_files",
    type=_FILE,
    multiple=True,
    help="Public key (PEM) whose bundles to accept, beside your own and those of 'bundle trust'.",
)
@click.option(
    "--quick", is_flag=True, help="1 thread, few calls, bytes of FedAvg and the own strategy."
)
@click.option(
    "--json", "json_file", type=_FILE, callback=writable, help="Also write the report to FILE."
)
@click.option(
    "--plot",
    "device_plot",
    type=_FILE,
    callback=writable_picture,
    help="Also draw it: .png or .svg.",
)
def device(
    *,
    trust_files: tuple[Path, ...],
    json_file: Path | None,
    device_plot: Path | None,
    **options: Any,
) -> None:
    """What a device pays for a bundle: time, memory, disk, energy, bytes.

    Run it on the device, with what the device has: no PyTorch is needed, nor used. Every backend,
    precision and number of threads gets a fresh process; what bundle or machine lack is listed
    with what to do about it.

    \b
    A first look, in seconds; then everything, in minutes; then two devices side by side:
      protofleet bench device --bundle model.pfb --quick
      protofleet bench device --bundle model.pfb --data mine.npz --json pi5.json --plot pi5.png
      protofleet bench compare pi5.json pi4.json

    \b
    load         imports, checking the bundle, opening the program, first window
    window       one example, as in live use: p50, p95, p99 in ms
    1/s          examples a second in batches of 32
    training     forward and backward of one batch, without the optimiser
    memory       peak of the process in each phase, with all that it loaded before
    energy       of a call, all that the source counts; RAPL or the Pi 5's power chip
    bytes        of one device's round, for each strategy and codec
    """  # noqa: D301 - click's mark for lines to keep
    from protofleet.benchmarks.device import table

    chosen = _device_options(**options)
    if device_plot is not None:
        from protofleet.benchmarks.device.plot import draw_device  # before minutes of measuring
    report = _measure_device(chosen, trust_files, json_file)
    for line in table.lines(report):
        click.echo("\n".join(wrapped(line, hanging=2)))
    if device_plot is not None:
        draw_device(device_plot, report)


@bench.command()
@click.argument("first", metavar="A.json", type=_FILE)
@click.argument("second", metavar="B.json", type=_FILE)
def compare(first: Path, second: Path) -> None:
    """Two files of --json side by side."""
    from protofleet.benchmarks._compare import compare as lines

    for line in lines(first, second):
        click.echo(line)


def _device_options(
    *, quick: bool, seconds: float | None, batches: tuple[int, ...], **given: Any
) -> Options:
    """What is not given is the default, or a smaller one when it must be quick.

    No batches are not the default: they ask for inference alone.
    """
    from protofleet.benchmarks.device.plan import Options

    if quick:
        given["threads"] = given["threads"] or (1,)
    chosen = {name: value for name, value in given.items() if value not in ((), None, "")}
    seconds = seconds or (0.05 if quick else 2.0)
    return Options(quick=quick, seconds=seconds, batches=batches, **chosen)


def _measure_device(
    options: Options, trust_files: tuple[Path, ...], json_file: Path | None
) -> DeviceReport:
    from protofleet.benchmarks.device.measure import open_device_bundle, reports
    from protofleet.benchmarks.device.progress import open_progress

    bundle = open_device_bundle(options, trusted_keys(trust_files))
    for report in reports(options, bundle, open_progress):
        if json_file is not None:
            report.write(json_file)
    return report


def _started() -> Result:
    from protofleet.benchmarks import _rows

    result = _rows.Result(machine=_rows.machine_facts(), rows=[])
    facts = " · ".join(f"{name} {value}" for name, value in result.machine.items())
    click.echo("\n".join(wrapped(facts, hanging=2)))
    return result


def _measure(
    result: Result, names: tuple[str, ...], json_file: Path | None, **options: Any
) -> None:
    from protofleet.benchmarks import _rows

    for name in names:
        say(f"measuring {name} …")
        module = importlib.import_module(f"protofleet.benchmarks.{name}")
        for found in module.run(**options):
            _rows.show(found, click.echo)
            result.rows.extend(found)
            if json_file is not None:
                result.write(json_file)


def _measure_kernels(
    result: Result,
    planned: list[Planned],
    json_file: Path | None,
    plot: Path | None,
    *,
    quick: bool,
) -> None:
    from protofleet.benchmarks.kernels import comparison
    from protofleet.benchmarks.kernels.measure import measure

    started, rows = time.perf_counter(), []
    try:
        for found in measure(planned, say, quick=quick):
            rows += found
            result.rows.extend(found)
            if json_file is not None:
                result.write(json_file)
    finally:
        comparison.show_kernels(rows, click.echo)
    click.echo(f"\n{comparison.verdict(rows)}\n{time.perf_counter() - started:.1f} s")
    if plot is not None:
        from protofleet.benchmarks.kernels.plot import draw

        draw(plot, rows, [one.case for one in planned], result.machine)


_only_model = click.option("--only", multiple=True, metavar="MODEL", help="Such models; repeat.")


def _command(name: str, summary: str, *more: Callable[[Any], Any]) -> None:
    def command(json_file: Path | None, **options: Any) -> None:
        _measure(_started(), (name,), json_file, **options)

    for option in (*more, _json, _quick):
        command = option(command)
    bench.command(name, help=summary)(command)


_command("programs", "Inference and training steps against PyTorch; long.", _only_model)
_command("finetuning", "Parts of a trained model against all of its layers.", _only_model)
_command("memory", "Peak memory of a device, with and without Numba, and with LiteRT.")
_command("rounds", "Rounds over Mosquitto, without and with keys: seconds, bytes, memory.")
_command("soak", "500 rounds over Mosquitto: whether memory and files grow with them.")
_command("floods", "Rounds while strangers and members flood the broker; long.")
_command("parity", "Every program of every model against PyTorch; long.", _only_model)


@bench.command()
@_quick
@_json
@click.option(
    "--data-root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    envvar="PROTOFLEET_DATA",
    show_default=True,
    show_envvar=True,
    help="Folder of the published data sets; without UCI-HAR in it, random data of its shape.",
)
@click.option(
    "--flower",
    metavar="PYTHON",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Interpreter with flwr[simulation], to measure beside.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Which one; ray is measured beside local.",
)
@click.option("--cores", type=click.IntRange(1), help="Of either side.  [default: all]")
@_only_model
def experiments(json_file: Path | None, **options: Any) -> None:
    """The local engine of experiments, beside a plain PyTorch loop and Flower, each with a target.

    Clients per second: with training and scoring beside the loop, without training beside
    Flower's simulation engine. docs/benchmarks.md tells how to make an environment for that.
    """
    from protofleet.benchmarks import experiments as engine

    result, rows = _started(), []
    for row in engine.run(engine.EngineOptions(**options), say):
        rows.append(row)
        result.rows.append(row)
        if json_file is not None:
            result.write(json_file)
    engine.show(rows, click.echo)
    click.echo(f"\n{engine.verdict(rows)}")


@bench.command()
@_quick
@_json
@click.option(
    "--data-root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    envvar="PROTOFLEET_DATA",
    show_default=True,
    show_envvar=True,
    help="Folder of the published data sets; UCI-HAR is needed.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/asynchronous"),
    show_default=True,
    help="Folder of data, bundles and results; what finished there is not run again.",
)
@click.option("--seeds", default="", callback=_integers, help="In place of 1,2,3.")
def asynchronous(
    *, quick: bool, json_file: Path | None, data_root: Path, out: Path, seeds: tuple[int, ...]
) -> None:
    """Wall time to the same score, synchronous and buffered, one device in four being slow; long.

    Four device processes over Mosquitto; one is stopped nine tenths of the time.
    """
    from protofleet.benchmarks import asynchronous as compared

    result = _started()
    rows = compared.run(out, data_root, seeds, progress_console(stderr=True), quick=quick)
    result.rows.extend(rows)
    if json_file is not None:
        result.write(json_file)
    compared.show(rows, click.echo)
