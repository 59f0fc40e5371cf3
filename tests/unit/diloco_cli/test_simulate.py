import json

import pytest
from click.testing import CliRunner
from diloco_cli.diloco.main import main


def simulated(*options: str) -> str:
    done = CliRunner().invoke(main, ["simulate", "table-1", "--noise", "100", "--jobs", "1", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
def test_the_table_shows_each_cell_with_what_was_published_and_how_far_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.simulation.table1.LEAST_SECONDS", 20.0)
    monkeypatch.setenv("COLUMNS", "80")
    out = simulated()
    lines = out.splitlines()
    assert lines[0].split() == ["UNITS", "CHIPS", "GOODPUT", "UPTIME", "MERGED", "STALE", "TOKENS", "5.8", "Y"]
    assert max(len(line.rstrip()) for line in lines) <= 80
    rows = [line.split() for line in lines[1:36]]
    assert {row[0] for row in rows} == {"1,", "1", "2", "4", "8", "16", "32"}
    assert sum("fit" in row for row in rows) == 12
    assert sum("(" in line for line in lines[1:36]) == 18, "the published cells"
    assert "…" not in out
    assert "RECONFIGURATION" in out
    assert "Root mean square error: " in out
    assert "Standard error of a goodput: " in " ".join(out.split())


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
