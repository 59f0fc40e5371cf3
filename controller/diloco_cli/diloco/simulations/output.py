"""How `diloco simulate` prints: a table that nothing is cut of, JSON lines, or a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from diloco_cli.svg import as_file

_ANY_WIDTH = 1000
_LINE = 80

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "svg"]),
    default="table",
    show_default=True,
    help="Format of the output; svg: a plot, for a file.",
)
seed_option = click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same figures on each machine.")


def print_json(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print a JSON object a line."""
    for line in lines:
        click.echo(json.dumps(line))


def print_svg(picture: Element) -> None:
    """Print a whole SVG file."""
    click.echo(as_file(picture), nl=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str]) -> None:
    """Print rows under upper-case names. `left`: the columns that are not aligned to the right. In a narrow terminal lines wrap; nothing
    is cut."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).maximum)
    console.print(table)


def print_text(*paragraphs: str) -> None:
    """Print below a table, in lines of 80 columns."""
    for paragraph in paragraphs:
        click.echo(click.wrap_text(paragraph, _LINE))
