import json

import pytest
from click.testing import CliRunner
from diloco_operator.cli.main import main


def simulated(*options: str) -> str:
    done = CliRunner().invoke(main, ["simulate", "table-1", "--unit-seconds", "100", "--jobs", "1", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
def test_the_table_shows_each_cell_with_what_was_published_and_how_far_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.simulation.table1.LEAST_SECONDS", 20.0)
    monkeypatch.setenv("COLUMNS", "80")
    out = simulated()
    lines = out.splitlines()
    header = "UNITS CHIPS GOODPUT PUBLISHED UPTIME PUBLISHED LOST RECOVERY RECONFIG MISSING AT 5.8 YEARS"
    assert lines[0].split() == header.split()
    assert len(lines) == 1 + 35 + 2
    assert any(line.startswith("1, not elastic") and "2,400,000" in line and "not published" in line for line in lines)
    assert "…" not in out
    assert "root mean square error: " in out


@pytest.mark.slow
def test_json_has_a_line_for_each_cell_and_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.simulation.table1.LEAST_SECONDS", 20.0)
    lines = [json.loads(line) for line in simulated("-o", "json").splitlines()]
    assert len(lines) == 36
    assert lines[-1]["figure"] == "table-1"
    assert {(line["units"], line["chips"]) for line in lines[:-1] if line["fitted"]} == {
        (units, chips) for units in (1, 2, 8) for chips in (150_000, 600_000, 1_200_000)
    }
    assert all(abs(line["goodput"] + sum(line["badput"].values()) - 1) < 0.001 for line in lines[:-1]), "every slice-second has a use"
