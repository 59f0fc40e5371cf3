"""How the commands of `diloco simulate` print: a table that nothing is cut of, or JSON lines, the last of which is the figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from multiprocessing import get_context
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
MERGED_AND_STALE = "MERGED: units in each merge. STALE: outer steps since a unit's last contribution."


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


def in_processes[Result](simulate: Callable[..., Result], cells: Sequence[tuple[Any, ...]], jobs: int) -> list[Result]:
    """Return the results of the cells in their order, computed in so many processes, which do not fork from one that has threads."""
    if jobs == 1:
        return list(starmap(simulate, cells))
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(simulate, *zip(*cells, strict=True)))
