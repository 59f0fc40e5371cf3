"""Plots of `make evidence`: files that change only when their figures do."""

import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import pytest
from diloco.goodput import Accounts
from diloco.simulation.job import Outcome

from benchmarks import plots
from benchmarks.evidence.table4 import EXTRA, Row, ideal, plot_table_4
from benchmarks.evidence.table13 import plot_table_13

NOTHING = Outcome(1.0, 1, 1.0, 1.0, 1.0, 1, 0, 1.0, 1.0, 0, Accounts())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plots, "FOLDER", tmp_path / "plots")
    return tmp_path / "plots"


def texts(file: Path) -> list[str]:
    return [text for each in ET.parse(file).iter("{http://www.w3.org/2000/svg}text") if (text := "".join(each.itertext()))]


def test_the_same_figures_give_the_same_bytes(folder: Path) -> None:
    for name in ("one", "two"):
        plots.plot(name, plot_table_13, smoke=False)
    assert (folder / "one.svg").read_bytes() == (folder / "two.svg").read_bytes()


def test_a_plot_says_in_words_what_it_shows(folder: Path) -> None:
    rows = [Row(extra, NOTHING, ideal(extra)) for extra in EXTRA]
    plots.plot("table-4", partial(plot_table_4, rows), smoke=False)
    found = texts(folder / "table-4.svg")
    assert "Four learners; others join for half of the work" in found
    assert {"published", "simulated", "extra compute, %"} <= set(found)


def test_a_smoke_run_leaves_no_file(folder: Path) -> None:
    plots.plot("any", plot_table_13, smoke=True)
    assert not folder.exists()
