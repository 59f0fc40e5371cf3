"""Writes the plots of benchmarks into docs/results/plots: some are those of `diloco simulate`, others show what only a benchmark measures.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from xml.etree.ElementTree import Element

from diloco_cli.svg import as_file

from benchmarks import ROOT

FOLDER: Final = ROOT / "docs" / "results" / "plots"


def plot(name: str, draw: Callable[[], Element], *, smoke: bool) -> None:
    """Draw, and write `FOLDER`/`name`.svg. A smoke run draws but writes nothing."""
    text = as_file(draw())
    if not smoke:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.svg").write_text(text)
