"""Plots of `make evidence`: files that change only when their figures do."""

from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.evidence.table13 import plot_table_13


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plots, "FOLDER", tmp_path / "plots")
    return tmp_path / "plots"


def test_the_same_figures_give_the_same_bytes(folder: Path) -> None:
    for name in ("one", "two"):
        plots.plot(name, plot_table_13, smoke=False)
    assert (folder / "one.svg").read_bytes() == (folder / "two.svg").read_bytes()


def test_a_smoke_run_leaves_no_file(folder: Path) -> None:
    plots.plot("any", plot_table_13, smoke=True)
    assert not folder.exists()
