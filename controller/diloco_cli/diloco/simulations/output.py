"""How `diloco simulate` prints: a table that nothing is cut of, JSON lines, or a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree.ElementTree import Element

import click

from diloco_cli.svg import as_file

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


def print_text(*paragraphs: str) -> None:
    """Print below a table, in lines of 80 columns."""
    for paragraph in paragraphs:
        click.echo(click.wrap_text(paragraph, _LINE))
