"""Commands that print a table of the paper beside ours. The figures themselves: tests/unit/diloco/simulation."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from builders.exploration import full
from click.testing import CliRunner
from diloco_cli.diloco.main import main


def simulated(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["simulate", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def lines(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in simulated(*arguments, "-o", "json").splitlines()]


SMALL = {
    "table-4": ("--steps", "100"),
    "table-5": ("--seconds", "100"),
    "fig-12": ("--seeds", "1"),
    "table-13": (),
}
TABLES = [full(table) if table == "fig-12" else table for table in SMALL]


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_a_table_fits_into_a_terminal_of_80_columns(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = simulated(table, *SMALL[table])
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out


def test_the_bandwidths_are_marked_as_fit_or_prediction_and_disclose_the_interval() -> None:
    out = simulated("table-13")
    assert out.count("  fit") == 45
    assert out.count("  predicted") == 15
    assert "need H = 102" in " ".join(out.split())
    *cells, figure = lines("table-13")
    assert len(cells) == 60
    assert {cell["published"] is None for cell in cells if cell["sites"] == 2 and cell["stepSeconds"] == 5.0} == {True}
    assert figure["value"] <= figure["limit"]


@pytest.mark.slow
def test_the_ablation_has_a_row_for_each_arm_and_clock_with_what_was_predicted() -> None:
    *rows, figure = lines("table-5", *SMALL["table-5"])
    assert [(row["clock"], row["arm"]) for row in rows] == [
        (clock, arm) for clock in ("paper", "ours") for arm in ("K = M", "K = 1", "K = 1 + grace")
    ]
    assert all(row["predicted"]["contributionsPerMerge"] for row in rows)
    assert figure["figure"] == "table-5"


@pytest.mark.slow
def test_extra_compute_has_its_time_beside_the_published_and_the_least_possible_one() -> None:
    *rows, figure = lines("table-4", *SMALL["table-4"])
    assert [row["extra"] for row in rows] == [0.0, 0.25, 0.5, 1.0, 3.0]
    assert [row["published"] for row in rows] == [1.0, 0.9, 0.83, 0.75, 0.62]
    assert figure["unit"] == "relative error, largest"


@pytest.mark.full
@pytest.mark.slow
def test_a_newcomer_has_a_row_for_each_bandwidth() -> None:
    *rows, figure = lines("fig-12", *SMALL["fig-12"])
    assert [row["copySteps"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 24]
    assert (figure["limit"], figure["predicted"]) == (6, 6)


@pytest.mark.full
@pytest.mark.slow
def test_each_scenario_with_a_coordinator_has_contributions_per_merge_and_staleness() -> None:
    for table in ("table-4", "table-5", "fig-12"):
        *rows, _ = lines(table, *SMALL[table])
        assert all(row["contributionsPerMerge"] > 0 <= row["staleness"] for row in rows)


@pytest.mark.full
@pytest.mark.slow
def test_learners_far_away_cost_the_newcomer_round_trips_and_the_text_says_so() -> None:
    near, far = lines("fig-12", *SMALL["fig-12"])[0], lines("fig-12", *SMALL["fig-12"], "--latency", "200ms")[0]
    # Its request and the parameters; without a link that is slow a newcomer trains within its first step.
    assert far["trainsAfterSteps"] > near["trainsAfterSteps"]
    assert "200 ms from the syncer" in " ".join(simulated("fig-12", *SMALL["fig-12"], "--latency", "200ms").split())


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_each_table_has_a_plot(table: str) -> None:
    svg = ElementTree.fromstring(simulated(table, *SMALL[table], "-o", "svg"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}text"))) > 10
