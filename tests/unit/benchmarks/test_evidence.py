"""What `make evidence` simulates of the paper, in a small size: what was predicted before the first run, and the rows of each table."""

from functools import cache
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from builders.exploration import full

from benchmarks.evidence import fig12, table1, table4, table5, table13
from benchmarks.evidence.table5 import ARMS, PREDICTED_OURS, Pacing
from benchmarks.evidence.table13 import CELLS, PUBLISHED, Cell, H, Method, error, of_a_link, required, ring, rms


@cache
def measured(module: Any) -> tuple[list[dict[str, Any]], Element]:
    """The rows in the line of the module's figure and its plot, in its smallest size."""
    drawn: list[Element] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "plot", lambda name, draw, *, smoke: drawn.append(draw()))
        patch.setattr(table1, "SMOKE_SECONDS", 20.0)
        (figure,) = module.measure(smoke=True)
    return figure.details["rows"], drawn[0]


def rows(module: Any) -> list[dict[str, Any]]:
    return measured(module)[0]


def test_a_ring_of_two_moves_a_vector_once_and_a_large_one_nearly_twice() -> None:
    assert ring(2) == 1.0
    assert ring(8) == 1.75


def test_the_fit_is_within_three_percent_and_the_fifteen_others_are_predictions() -> None:
    assert (len(CELLS), len(PUBLISHED)) == (60, 45)
    assert rms(CELLS) <= 0.03
    predicted = [cell for cell in CELLS if cell not in PUBLISHED]
    assert {(cell.step_seconds, cell.sites) for cell in predicted} == {(5.0, 2)}
    assert all(error(cell) is None for cell in predicted)
    assert rms(predicted) == 0.0


def test_more_is_needed_for_more_utilisation_more_sites_and_shorter_steps() -> None:
    for method in Method:
        row = [required(Cell(method, 1.0, 2, utilisation)) for utilisation in (0.5, 0.75, 0.9, 0.95, 0.99)]
        assert row == sorted(row)
        assert required(Cell(method, 1.0, 8, 0.9)) > row[2] > required(Cell(method, 5.0, 2, 0.9))


def test_the_interval_of_the_models_needs_more_than_the_published_cells_have() -> None:
    cell = Cell(Method.BFLOAT16, 1.0, 8, 0.95)
    # The fitted interval is 102 steps: 102 / 24 = 4.25 times as much.
    assert required(cell, H) / required(cell) == pytest.approx(4.25)
    # 5.1e9 * 16 bit / 24 steps of 1 s.
    assert of_a_link(Method.BFLOAT16, 1.0) == pytest.approx(3.4)


@pytest.mark.full
def test_the_clock_of_the_paper_gives_what_its_ablation_has_and_ours_merges_all_in_each_arm() -> None:
    for arm in ARMS:
        paper, ours = (table5.simulate(arm, pacing, 400.0, seed=1) for pacing in (Pacing.PAPER, Pacing.OURS))
        assert 100 * paper.goodput == pytest.approx(arm.goodput, abs=2.0)
        assert paper.contributions == pytest.approx(arm.predicted_contributions, abs=0.25)
        assert (100 * ours.goodput, ours.contributions) == pytest.approx(PREDICTED_OURS, abs=0.1)


@pytest.mark.full
@pytest.mark.parametrize("extra", table4.EXTRA)
def test_extra_learners_save_nearly_all_that_they_can(extra: float) -> None:
    alone = table4.simulate(0.0, 1500, seed=1).seconds
    assert table4.simulate(extra, 1500, seed=1).seconds / alone == pytest.approx(table4.ideal(extra), rel=0.03)
    assert table4.ideal(extra) == pytest.approx(table4.PUBLISHED[extra], abs=0.006), "the published figures have two digits"


@pytest.mark.full
def test_joining_is_free_until_the_link_is_busy() -> None:
    assert fig12.simulate(fig12.PREDICTED_FREE, seeds=2, seed=1).free
    assert not fig12.simulate(fig12.PREDICTED_FREE + 2, seeds=2, seed=1).free


def test_joining_is_free_only_as_long_as_it_is_for_each_shorter_copy() -> None:
    def join(copy_steps: int, beside: float) -> fig12.Join:
        return fig12.Join(copy_steps, 10.0, True, alone=1.0, beside=beside)

    assert fig12.free_until([join(1, 0.99), join(6, 0.96), join(8, 0.9), join(10, 1.0)]) == 6
    assert fig12.free_until([join(1, 0.9)]) == 0
    assert not fig12.Join(24, 10.0, True, alone=0.0, beside=0.0).free, "nothing is merged, so nothing is free"


def test_learners_that_wait_lose_what_the_paper_has_at_six_steps_and_at_24() -> None:
    lost = {copy_steps: fig12.lost_by_waiting(copy_steps) for copy_steps in fig12.COPY_STEPS}
    # 24 steps carry 4 copies of 6 steps each; with copies of 7, 4 * 7 - 24 are left; from 8 on 3 copies fill the link.
    assert lost == {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 4, 8: 8, 10: 10, 12: 12, 24: 24}
    assert max(copy_steps for copy_steps, steps in lost.items() if not steps) == fig12.PUBLISHED_FREE


@pytest.mark.slow
def test_learners_far_away_cost_the_newcomer_round_trips() -> None:
    near, far = fig12.simulate(1, seeds=1, seed=1), fig12.simulate(1, seeds=1, seed=1, distance=fig12.Distance(0.5))
    # Its request and the parameters; without a link that is slow a newcomer trains within its first step.
    assert far.steps > near.steps


@pytest.mark.slow
def test_the_table_of_goodput_has_a_row_for_each_cell_and_every_slice_second_has_a_use() -> None:
    found = rows(table1)
    assert len(found) == 35
    assert {(row["units"], row["chips"]) for row in found if row["fitted"]} == {
        (units, chips) for units in (1, 2, 8) for chips in (150_000, 600_000, 1_200_000)
    }
    assert sum(row["published"] is not None for row in found) == 18
    assert all(abs(row["goodput"] + sum(row["badput"].values()) - 1) < 0.001 for row in found)


@pytest.mark.slow
def test_a_cell_is_simulated_until_its_standard_error_is_as_asked_for() -> None:
    row = table1.simulate_cell(1.0, 1, table1.Cell(1, 1_200_000), least=0.0)
    # Of 16 parts; the standard deviation of such a standard error is 18 % of it.
    assert 0.5 < row.noise < 1.6


@pytest.mark.slow
def test_a_published_cell_that_was_not_fitted_is_met_within_two_points() -> None:
    """Four units on 600,000 chips: 89 and 99 %. The standard error of 10,000 s of four units is half a point."""
    row = table1.simulate(table1.Cell(4, 600_000), 10_000.0, seed=1)
    assert not row.fitted
    assert row.errors is not None
    assert max(abs(error) for error in row.errors) < 2.0
    assert table1.rms([row]) < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("module", [table1, table4, table5, full(fig12), table13], ids=lambda module: module.__name__)
def test_each_table_has_a_plot(module: Any) -> None:
    svg = measured(module)[1]
    assert svg.tag == "svg"
    assert len(list(svg.iter("text"))) > 10
