"""`diloco plan --goodput` through its door: which settings bring most tokens into merges, and what each costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from builders.documents import ROOT
from click.testing import CliRunner, Result
from diloco_cli.diloco.main import main

FLEET = str(ROOT / "examples" / "fleet.yaml")
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")
LLAMA = str(ROOT / "examples" / "llama.yaml")
CALM = ("--failure-rate", "0", "--start", "0s", "--compile", "0s")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def planned(*arguments: str, job: str = QUICKSTART) -> Result:
    return run(job, "--fleet", FLEET, "--goodput", "--time", "10m", *arguments)


def found(*arguments: str, job: str = QUICKSTART) -> dict[str, Any]:
    result = planned("-o", "json", *arguments, job=job)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.slow
def test_without_links_the_file_is_best_and_all_units_that_fit_are_in_it() -> None:
    """Steps of 5 s on v5p, 8.33 on v6e, 5.56 on each H100 host: 120 + 72 + 2 * 108 = 408 of 1M tokens in ten minutes, 2.448G in an hour,
    of which those since the last merge of each fragment, half of H = 24 steps of 120 and less, are not merged yet."""
    answer = found(*CALM)
    best = answer["best"]
    assert best == answer["asInFile"]
    assert best["pools"] == {"v5p": 1, "v6e": 1, "h100": 2}
    assert best["accelerators"] == 4 + 4 + 2 * 8
    assert (best["syncInterval"], best["compression"], best["quorum"]) == (24, "BFloat16", 1)
    assert 0.75 * 2.448e9 < best["tokensPerHour"] < 2.448e9
    assert best["tokensPerAcceleratorHour"] == pytest.approx(best["tokensPerHour"] / 24, abs=1)


@pytest.mark.slow
def test_each_group_of_settings_has_the_best_and_what_differs_in_that_group_alone() -> None:
    answer = found(*CALM)
    best = answer["best"]
    assert all(best in answer[group] for group in ("hardware", "exchange", "quorum"))
    assert {(row["syncInterval"], row["compression"]) for row in answer["exchange"]} == {
        (h, coding) for h in (10, 24, 30, 100) for coding in ("BFloat16", "Int4")
    }
    assert all(row["pools"] == best["pools"] for row in answer["exchange"] + answer["quorum"])
    assert [row["quorum"] for row in answer["quorum"]] == [1, 2, 4]
    placements = [tuple(row["pools"].items()) for row in answer["hardware"]]
    assert (("v5p", 1), ("h100", 2)) in placements, "a set of pools"
    assert (("v5p", 1), ("v6e", 1)) in placements, "two units, as the operator places them"
    assert len(set(placements)) == len(placements)
    assert all(row["units"] >= 2 for row in answer["hardware"]), "learners.min of the file"


@pytest.mark.full
@pytest.mark.slow
def test_a_link_too_narrow_for_the_file_is_answered_by_fewer_bytes() -> None:
    """bf16 of 7B in 24 steps of 5 s is 0.93 Gbit/s, Int4 0.23: only the second goes through 0.5 Gbit/s at H = 24."""
    answer = found(*CALM, "--parameters", "7B", "--bandwidth", "500Mbit/s", "--time", "30m")
    best, own = answer["best"], answer["asInFile"]
    assert own["tokensPerHour"] < 0.9 * best["tokensPerHour"]
    assert best["bytes"]["up"] < own["bytes"]["up"]
    assert (best["syncInterval"], best["compression"]) != (24, "BFloat16")
    assert best["pools"] == {"v5p": 1, "v6e": 1, "h100": 2}


@pytest.mark.full
@pytest.mark.slow
def test_the_same_options_give_the_same_answer_and_say_how_long_it_took() -> None:
    failing = ("--failure-rate", "30000", "--seed", "7")
    first, second = found(*failing), found(*failing)
    assert first.pop("searchSeconds") >= 0
    second.pop("searchSeconds")
    assert first == second
    assert sum(row["failures"] for row in first["hardware"]) > 0


@pytest.mark.slow
def test_the_table_names_the_answer_and_each_choice() -> None:
    result = planned(*CALM, "--parameters", "100M")
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert words.startswith("Most tokens per hour: 4 units (1 v5p, 1 v6e, 2 h100), H 24, BFloat16, quorum 1:")
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith("best, as in the file") for line in lines)
    for choice in ("1 v5p, 2 h100", "H 100, Int4", "quorum 4"):
        assert any(line.startswith(choice) for line in lines), choice
    assert "simulations of" in words


@pytest.mark.slow
def test_a_change_of_the_fleet_comes_first() -> None:
    answer = found(*CALM, "--without", "h100", "--add", "v5p=1x2x2x1")
    assert answer["best"]["pools"] == {"v5p": 1, "v6e": 1}, "the pool v5p has at most one"
    assert all("h100" not in row["pools"] for row in answer["hardware"])


@pytest.mark.slow
def test_a_plot_has_both_panels() -> None:
    result = planned(*CALM, "-o", "svg")
    assert result.exit_code == 0, result.output
    assert ElementTree.fromstring(result.stdout).tag == "{http://www.w3.org/2000/svg}svg"
    assert "bytes-lm: pools and units" in result.stdout
    assert "Exchange" in result.stdout


@pytest.mark.slow
def test_a_minimum_that_does_not_fit_is_told_with_its_cause(tmp_path: Path) -> None:
    job = yaml.safe_load(Path(QUICKSTART).read_text())
    job["spec"]["learners"]["min"] = 4
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    result = planned("--without", "h100", job=str(tmp_path / "job.yaml"))
    assert result.exit_code == 2
    assert "bytes-lm: the minimum of 4 does not fit this fleet: " in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((QUICKSTART, "--goodput"), "--goodput needs --fleet FILE"),
        ((QUICKSTART, "--fleet", FLEET, "--failure-rate", "1"), "--failure-rate: only with --goodput"),
        ((QUICKSTART, "--fleet", FLEET, "--step-tokens", "1M", "-o", "svg"), "--step-tokens, -o svg: only with --goodput"),
        ((QUICKSTART, "--fleet", FLEET, "--goodput", "--bandwidth", "1Gbit/s"), "need --parameters"),
        ((FLEET, "--fleet", FLEET, "--goodput"), "DiLoCoJob"),
        ((QUICKSTART, LLAMA, "--fleet", FLEET, "--goodput"), "have 2 jobs; give one with one job"),
    ],
)
def test_options_that_do_not_fit_together_are_bad_input(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
