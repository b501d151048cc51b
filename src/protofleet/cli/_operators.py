"""``protofleet export --list-operators``: which operators and networks export, and the proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._outputs import check_writable_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofleet.export.sweep.cases import SweepCase

FLAG = "--list-operators"


@click.command(add_help_option=False)
@click.option("--only", metavar="PATTERN", help="A part of a name, or a group.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Page to write.")
def _operators(only: str | None, out: Path | None) -> None:
    """List the cases; with ``--out``, prove each and write the table."""
    from protofleet.export.sweep.collect import all_cases

    cases = all_cases(only)
    if out is None:
        _tell(cases)
        return
    check_writable_folder(out.parent, "--out", named=out)
    out.parent.mkdir(parents=True, exist_ok=True)
    from protofleet.export.sweep.prove import Proof
    from protofleet.export.sweep.run import run
    from protofleet.export.sweep.table import page, summary

    rows = []
    for number, row in enumerate(run(cases), start=1):
        rows.append(row)
        failed = {one: p for one, p in row.proofs.items() if not isinstance(p, Proof)}
        told = "; ".join(f"{one}: {why}" for one, why in failed.items()) or f"{row.seconds:.1f} s"
        click.echo(f"{number}/{len(cases)} {row.name}: {told}", err=True)
        before = out.read_text(encoding="utf-8") if out.is_file() else ""
        out.write_text(page([row], before, all_cases()), encoding="utf-8")
    click.echo(f"{out}: {summary(rows)}")


def _tell(cases: Sequence[SweepCase]) -> None:
    for group in dict.fromkeys(case.group for case in cases):
        names = [case.name for case in cases if case.group == group]
        click.echo(f"{group} ({len(names)})")
        for name in names:
            click.echo(f"  {name}")
    click.echo(f"docs/results/operators.md holds the results; {FLAG} --out FILE proves them here")


class WithOperators(click.Command):
    """A command that lists operators instead when it is asked to: no other argument is needed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Hand over to the list, and end."""
        if FLAG in args:
            others = [arg for arg in args if arg != FLAG]
            name = f"{ctx.info_name} {FLAG}"
            with _operators.make_context(name, others, parent=ctx.parent) as own:
                _operators.invoke(own)
            ctx.exit()
        return super().parse_args(ctx, args)
