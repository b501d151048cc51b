"""``protofleet docs``: this version's documentation, and the systemd unit, without a network."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("name", required=False)
def docs(name: str | None) -> None:
    """Print the page NAME, or list all pages and where they lie.

    \b
    The unit that runs a device as a service is among them:
      protofleet docs protofleet-device.service
    """  # noqa: D301 - click's mark for lines to keep
    from protofleet.errors import InputError

    folder = _folder()
    found = [page for page in folder.rglob("*") if page.suffix in {".md", ".service"}]
    pages = {page.relative_to(folder).as_posix(): page for page in found}
    if name is None:
        width = max(map(len, pages))
        for known, page in sorted(pages.items()):
            click.echo(f"{known:{width}}  {_title(page)}")
        click.echo(f"in {folder}")
        return
    chosen = pages.get(name) or pages.get(f"{name}.md")
    if chosen is None:
        raise InputError(f"docs '{name}': no such page; 'protofleet docs' lists them")
    click.echo(chosen.read_text(encoding="utf-8"), nl=False)


def _folder() -> Path:
    """Inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "docs"
    return installed if installed.is_dir() else package.parent / "docs"


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as file:
        return file.readline().strip("#\n ")
