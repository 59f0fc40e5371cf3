"""[table-13] The bandwidth between sites that training needs, beside Table 13 of Decoupled DiLoCo."""

from __future__ import annotations

from collections.abc import Iterator

from diloco.simulation.table13 import CELLS, LIMIT, PUBLISHED, like_for_like, rms
from diloco_cli.simulations.table13 import plot_table_13

from benchmarks.figure import Figure
from benchmarks.plots import plot


def measure(*, smoke: bool) -> Iterator[Figure]:
    plot("table-13", plot_table_13, smoke=smoke)
    details = {"predicted_cells": len(CELLS) - len(PUBLISHED), "like_for_like": round(like_for_like(), 1)}
    yield Figure("table-13", rms(CELLS), "relative error, rms", LIMIT, rms(CELLS) <= LIMIT, len(PUBLISHED), details)
