"""``protofleet experiment``: a paper's table, run again and put beside the printed one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._broker import broker_options
from protofleet.cli._experiments import (
    FILE,
    FOLDER,
    all_runs_option,
    data_root_option,
    default_data_root,
    integers,
    kept,
)
from protofleet.cli._outputs import writable, writable_picture
from protofleet.cli._verbosity import progress_console
from protofleet.cli.claims import claims
from protofleet.cli.outcome import outcome
from protofleet.printable import shell_word

if TYPE_CHECKING:
    from rich.console import Console

    from protofleet.experiments.config import Experiment
    from protofleet.experiments.store import MethodResult
    from protofleet.experiments.table import Table


@click.group()
def experiment() -> None:
    """Run a paper's table again, beside the figures that it prints.

    docs/experiments.md has them all. Start with: protofleet experiment list
    """


experiment.add_command(claims)
experiment.add_command(outcome)


_Command = Callable[..., None]


def _chosen(command: _Command) -> _Command:
    """What ``run`` and ``table`` have in common."""
    options = (
        click.option("--out", type=FOLDER, help="Folder of the results; default: runs/NAME."),
        click.option(
            "--seeds", callback=integers, metavar="1,2", help="Instead of the file's; any will do."
        ),
        click.option(
            "--methods", multiple=True, metavar="LABEL", help="Only this row; repeat for more."
        ),
        click.option(
            "--json",
            "json_file",
            type=FILE,
            callback=writable,
            help="Also write experiment, table and every round of every run to FILE.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@experiment.command("list")
@data_root_option
@click.option(
    "--check-data",
    is_flag=True,
    help="Load each data set, which may take minutes: tells what is missing and where to put it.",
)
@click.option(
    "--out",
    type=FOLDER,
    default=Path("runs"),
    show_default=True,
    help="Folder of all runs, which tell how long an experiment takes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(*, data_root: Path | None, check_data: bool, out: Path, as_json: bool) -> None:
    """Show the experiments that come with Protofleet, and whether their data are there."""
    import msgspec
    from rich.console import Console

    from protofleet.experiments.listing import listed, show

    with Console(stderr=True).status("looking for the data …"):
        found = listed(data_root or default_data_root(), out, check_data=check_data)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        show(found, Console())


@experiment.command()
@click.argument("name", metavar="FILE_OR_NAME")
@_chosen
@data_root_option
@click.option(
    "--engine",
    type=click.Choice(["local", "mqtt", "ray"]),
    default="local",
    show_default=True,
    help="local: clients take turns in processes of this machine. mqtt: every client is a device "
    "process that talks to a coordinator over a broker. ray: clients take turns in the CPUs of a "
    "Ray cluster.",
)
@click.option(
    "--workers", type=click.IntRange(1), help="Processes of local, CPUs of ray; default: all."
)
@click.option("--rounds", type=click.IntRange(1), help="Instead of the file's, for a quick look.")
@click.option(
    "--diagnostics",
    is_flag=True,
    help="After every round, figures of the alignment layers into result.json; not for mqtt.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Also measure how much memory a device needs: two rounds more per method and seed.",
)
@broker_options("For mqtt: mqtt://host:port; default: one of its own.")
def run(
    *,
    name: str,
    out: Path | None,
    seeds: tuple[int, ...] | None,
    methods: tuple[str, ...],
    json_file: Path | None,
    data_root: Path | None,
    diagnostics: bool,
    **options: Any,
) -> None:
    """Train every method with every seed, then print the table.

    FILE_OR_NAME is an experiment's file, or a name that 'protofleet experiment list' shows. Runs
    that are finished are not repeated; interrupted ones go on with the same command. The folder
    then holds a result.json per method and seed, curves.png and bars.png.
    """
    import msgspec

    from protofleet.experiments.config import find, load_experiment, name_of
    from protofleet.experiments.runner import RunOptions, check_no_overwrite, run_experiment

    if options["broker"] and options["engine"] != "mqtt":
        raise click.UsageError("--broker is for --engine mqtt")
    path = find(name)
    whole = load_experiment(path)
    if diagnostics:
        whole = msgspec.structs.replace(whole, diagnostics=True)
    asked = _narrowed(whole, seeds, methods)
    folder = out or _default_folder(path)
    check_no_overwrite(folder, asked, options["engine"], options["rounds"])
    console = progress_console()
    chosen = RunOptions(
        data_root=data_root or default_data_root(),
        seeds=seeds,
        labels=methods or None,
        **options,
    )
    with kept(folder):
        results = run_experiment(name_of(path), whole, folder, chosen, console)
    _conclude(asked, results, console, json_file=json_file, plot=folder / "curves.png")


@experiment.command()
@click.argument("names", metavar="FILE_OR_NAME...", nargs=-1, required=True)
@_chosen
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--costs", is_flag=True, help="Of one experiment: Markdown of the costs alone.")
@click.option(
    "--plot",
    type=FILE,
    callback=writable_picture,
    help="Also draw curves to FILE, .png or .svg, and bars beside it; of several experiments "
    "scores over bytes.",
)
@click.option(
    "--page",
    type=FILE,
    callback=writable,
    help="Of several experiments: write a summary to FILE and a page of each to results/ beside it "
    "(docs/choosing.md is made so).",
)
def table(
    *,
    names: tuple[str, ...],
    out: Path | None,
    seeds: tuple[int, ...] | None,
    methods: tuple[str, ...],
    json_file: Path | None,
    page: Path | None,
    costs: bool,
    **shown: Any,
) -> None:
    """Print the table of what 'run' has stored so far, without training anything.

    Of several experiments, or of a folder of them such as 'choosing', what they say together:
    scores at equal rounds and at equal bytes, costs, and which method to take when. Their results
    are looked for in OUT/NAME.

    \b
    The page of all methods:
      protofleet experiment table choosing --page choosing.md --plot choosing.png
    """  # noqa: D301 - click's mark for lines to keep
    from protofleet.cli._overview import compare
    from protofleet.errors import InputError
    from protofleet.experiments.config import expanded, find, load_experiment, name_of

    given = expanded(names)
    together = {name_of(find(name)): load_experiment(find(name)) for name in given}
    if len(together) < len(given):
        raise InputError(f"experiments {', '.join(given)}: expected files of names that differ")
    known = dict.fromkeys(method.label for one in together.values() for method in one.methods)
    if unknown := [label for label in methods if label not in known]:
        raise InputError(f"method '{unknown[0]}': unknown; expected one of {', '.join(known)}")
    if len(together) > 1:
        if costs:
            raise click.UsageError("--costs is for one experiment")
        asked = {
            name: _narrowed(one, seeds, labels)
            for name, one in together.items()
            if (labels := [m.label for m in one.methods if not methods or m.label in methods])
        }
        command = f"protofleet experiment table {' '.join(map(shell_word, names))}"
        compare(asked, out or Path("runs"), command, json_file=json_file, page=page, **shown)
        return
    if page is not None:
        raise click.UsageError("--page is for several experiments; print one with --markdown")
    (whole,) = together.values()
    chosen = _narrowed(whole, seeds, methods)
    _show_one(given[0], chosen, out, json_file=json_file, costs=costs, **shown)


def _show_one(name: str, asked: Experiment, out: Path | None, **shown: Any) -> None:
    from rich.console import Console

    from protofleet.errors import InputError
    from protofleet.experiments.config import find
    from protofleet.experiments.store import load_results

    folder = out or _default_folder(find(name))
    results = load_results(folder, asked)
    if not results:
        raise InputError(
            f"results '{folder}': expected runs of '{name}', found none; "
            f"make them with: protofleet experiment run {shell_word(name)}"
        )
    _conclude(asked, results, Console(), **shown)


@experiment.command()
@click.argument("names", metavar="FILE_OR_NAME...", nargs=-1, required=True)
@click.option(
    "--to", type=FILE, required=True, callback=writable, help="The file, such as runs.jsonl.gz."
)
@all_runs_option
@click.option(
    "--rounds", type=click.IntRange(1), help="Runs of so many, as of 'run', not of the file's."
)
def pack(*, names: tuple[str, ...], to: Path, out: Path, rounds: int | None) -> None:
    """Write the finished runs of experiments into one small file, for another machine.

    Those that diverged are written, too. Figures of every round, no models and no data: some
    kilobytes a run. 'unpack' lays them there as if they had been run there, so that machines
    share the work of a table.
    """
    from protofleet.errors import InputError
    from protofleet.experiments.archive import archived_runs, write_archive
    from protofleet.experiments.config import expanded, find, load_experiment, name_of

    asked = {name_of(find(name)): load_experiment(find(name)) for name in expanded(names)}
    runs = archived_runs(asked, out, rounds)
    if not runs:
        raise InputError(
            f"results '{out}': expected finished runs of {', '.join(asked)}"
            f"{f' with {rounds} rounds' if rounds else ''}, found none; those of other rounds "
            "are packed with --rounds N; "
            f"make them with: protofleet experiment run {shell_word(expanded(names)[0])}"
        )
    write_archive(to, runs)
    click.echo(f"{to}: {len(runs)} runs of {', '.join(asked)}")


@experiment.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@all_runs_option
def unpack(*, file: Path, out: Path) -> None:
    """Lay the runs of a file that 'pack' wrote into the folder of runs; none is replaced.

    Tables, pages and claims then count them. 'run' counts them where it would get the same from
    the same versions, and else runs anew.
    """
    from protofleet.experiments.archive import unpack as lay

    with kept(out):
        laid, present = lay(file, out)
    click.echo(f"{out}: {laid} runs laid" + (f", {present} were there" if present else ""))


def _conclude(
    asked: Experiment,
    results: list[MethodResult],
    console: Console,
    *,
    json_file: Path | None,
    plot: Path | None,
    as_markdown: bool = False,
    costs: bool = False,
) -> None:
    """Print the table and write what was asked for."""
    from protofleet.experiments._table_text import costs_markdown, markdown, show
    from protofleet.experiments.table import tabulate

    found = tabulate(asked, results)
    if costs:
        click.echo(costs_markdown(found))
    elif as_markdown:
        click.echo(markdown(found))
    else:
        show(found, console)
    if json_file is not None:
        _write_json(json_file, asked, found, results)
    if plot is not None:
        from protofleet.experiments import figures

        bars = plot.with_name(
            "bars.png" if plot.name == "curves.png" else f"{plot.stem}-bars{plot.suffix}"
        )
        figures.curves(asked, results, plot)
        figures.bars(found, bars)
        click.echo(f"pictures: {plot}, {bars}", err=True)


def _write_json(path: Path, asked: Experiment, found: Table, results: list[MethodResult]) -> None:
    import msgspec

    from protofleet.durable import replace_whole

    document = {"experiment": asked, "table": found.rows, "runs": results}
    replace_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1), shared=True)


def _narrowed(
    whole: Experiment, seeds: tuple[int, ...] | None, labels: Sequence[str]
) -> Experiment:
    """The experiment with the seeds and methods that were asked for."""
    import msgspec

    from protofleet.errors import InputError

    known = [method.label for method in whole.methods]
    if unknown := [label for label in labels if label not in known]:
        raise InputError(f"method '{unknown[0]}': unknown; expected one of {', '.join(known)}")
    methods = tuple(method for method in whole.methods if not labels or method.label in labels)
    return msgspec.structs.replace(whole, seeds=seeds or whole.seeds, methods=methods)


def _default_folder(path: Path) -> Path:
    from protofleet.experiments.config import name_of

    return Path("runs") / name_of(path)
