"""The option --catalogue: a file with further accelerators, read before anything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from diloco_operator.api.names import ENV_CATALOGUE


class CatalogueError(Exception):
    """The file cannot be used; the message has every mistake with its row and field."""


def install_catalogue(path: Path | None) -> None:
    """Add the rows of the file, if there is one, to the catalogue of this process. Raises `CatalogueError`."""
    if path is None:
        return
    # Imported only here, so that a program without a file starts faster.
    from diloco_operator.accelerators import BUILT_IN, extend
    from diloco_operator.api.catalogue_file import BadCatalogue, read_catalogue
    from diloco_operator.program.yaml_reader import load_file

    content = load_file(path, CatalogueError)
    try:
        extend(*read_catalogue(content, BUILT_IN))
    except BadCatalogue as error:
        raise CatalogueError("\n".join([f"{path}:", *(f"  {problem}" for problem in error.problems)])) from error


def catalogue_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--catalogue",
        type=click.Path(path_type=Path),
        envvar=ENV_CATALOGUE,
        show_envvar=True,
        metavar="FILE",
        help="File with an AcceleratorCatalogue: accelerators besides the built-in ones, see docs/operator.md.",
    )(command)
