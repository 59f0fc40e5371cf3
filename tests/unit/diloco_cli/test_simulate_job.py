"""A job of one's own on a fleet."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner, Result
from diloco_cli.diloco.main import main
from diloco_cli.diloco.simulations.inputs import numbers_of_units
from diloco_operator.api.names import NODE_REGION, NODE_ZONE

EXAMPLES = Path(__file__).parents[3] / "examples"
JOB, FLEET = str(EXAMPLES / "quickstart.yaml"), str(EXAMPLES / "fleet.yaml")


def simulated(*arguments: str, fleet: str = FLEET, time: str = "10m") -> Result:
    short = ["--time", time, "--fleet", fleet]
    return CliRunner().invoke(main, ["simulate", *arguments, *short], catch_exceptions=False)


def lines(*arguments: str) -> list[dict[str, Any]]:
    done = simulated(*arguments, "-o", "json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


@pytest.mark.slow
def test_each_number_of_units_that_fits_has_a_column_with_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = simulated(JOB)
    assert done.exit_code == 0
    out = done.output.splitlines()
    assert out[0].split() == ["UNITS", "2", "3", "4"]
    assert max(len(line.rstrip()) for line in out) <= 80
    assert "\n- missing hardware" in done.output
    assert "4 units with 2 spare slices get most work done." in done.output


@pytest.mark.slow
def test_json_has_shares() -> None:
    rows = lines(JOB, "--failure-rate", "5000")
    assert [row["units"] for row in rows] == [2, 3, 4]
    assert [row["spares"] for row in rows] == [4, 3, 2]
    assert all(row["goodput"] + sum(row["badput"].values()) == pytest.approx(1.0, abs=0.001) for row in rows)
    assert [row["mostWork"] for row in rows].count(True) == 1
    assert sum(row["failures"] for row in rows) > 0


@pytest.mark.slow
def test_nodes_that_their_labels_call_spot_are_reclaimed_and_others_are_not(tmp_path: Path) -> None:
    nodes = list(yaml.safe_load_all(Path(FLEET).read_text()))
    for node in nodes:
        node["metadata"]["labels"]["cloud.google.com/gke-spot"] = "true"
    spot = tmp_path / "fleet.yaml"
    spot.write_text(yaml.safe_dump_all(nodes))
    often = ("--failure-rate", "0", "--reclaims", "300", "--notice", "0s", "--away", "5m")
    assert [row["reclaimed"] for row in lines(JOB, *often)] == [0, 0, 0]
    done = simulated(JOB, *often, fleet=str(spot))
    (row,) = [line.split() for line in done.output.splitlines() if line.startswith("RECLAIMED")]
    # Each unit is taken away every 5 minutes, and starts for 2 minutes: some times in ten.
    assert all(1 <= int(count) <= 20 for count in row[1:])


@pytest.mark.slow
def test_without_a_fleet_the_job_is_on_this_machine() -> None:
    done = CliRunner().invoke(main, ["simulate", str(EXAMPLES / "cpu.yaml"), "--time", "1m", "--units", "2"])
    assert (done.exit_code, "2 units with" in done.output) == (0, True), done.output


def test_a_fleet_that_is_too_small_says_what_there_is_not(tmp_path: Path) -> None:
    nodes = list(yaml.safe_load_all(Path(FLEET).read_text()))
    small = tmp_path / "fleet.yaml"
    small.write_text(yaml.safe_dump_all(nodes[:2]))
    done = simulated(JOB, fleet=str(small))
    assert done.exit_code == 0
    assert "Not more: 2 of 4 units have hardware" in " ".join(done.output.split())
    small.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cpu-0"}}))
    done = simulated(JOB, fleet=str(small))
    assert done.exit_code == 2
    assert "no unit has hardware" in done.output


@pytest.mark.slow
def test_the_numbers_of_units_may_be_asked_for() -> None:
    assert [row["units"] for row in lines(JOB, "--units", "3,1,3")] == [1, 3]
    done = simulated(JOB, "--units", "2,9")
    assert done.exit_code == 2
    assert "--units 9: the pools of the job and the fleet have room for 4" in " ".join(done.output.split())


@pytest.mark.slow
def test_nodes_that_come_later_give_the_job_further_units() -> None:
    (all_,), (later,) = lines(JOB, "--units", "4"), lines(JOB, "--units", "4", "--join", "h100-*=5m")
    assert later["units"] == 4, "in the end"
    assert later["work"] < all_["work"]
    done = simulated(JOB, "--join", "b200-*=5m")
    assert done.exit_code == 2
    assert "no node that the job could use has such a name" in done.output


@pytest.mark.slow
def test_links_cost_merged_work_and_bytes_are_counted() -> None:
    (near,) = lines(JOB, "--units", "2", "--parameters", "100M")
    # bf16: 200 MB in each direction for a unit in H = 24 steps of 5 s and more, of which it takes 100 or so in ten minutes less the start.
    assert 4 * 200e6 < near["bytes"]["up"] < 2 * 5 * 200e6
    (far,) = lines(JOB, "--units", "2", "--parameters", "100M", "--bandwidth", "20Mbit/s", "--latency", "50ms")
    assert far["work"] < near["work"]
    assert far["badput"]["waiting"] == 0, "no accelerator stops for a link"
    shown = simulated(JOB, "--units", "2", "--parameters", "100M").output
    assert "UP, DOWN:" in shown
    assert "bit/s" in shown


@pytest.fixture
def two_regions(tmp_path: Path) -> str:
    """The fleet, whose H100 hosts are in the region `far`, in zones of their own."""
    nodes = list(yaml.safe_load_all(Path(FLEET).read_text()))
    for node in nodes:
        name = node["metadata"]["name"]
        if name.startswith("h100-"):
            node["metadata"]["labels"] |= {NODE_REGION: "far", NODE_ZONE: f"far-{name[-1]}"}
    file = tmp_path / "regions.yaml"
    file.write_text(yaml.safe_dump_all(nodes))
    return str(file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("latencies", "merged"),
    # Of four units two have H100 hosts, of which the operator takes far-a and far-b. After 30 s an answer comes too late for its merge.
    [(["far=30s"], 2), (["far-a=30s"], 3), (["far=30s", "far-a=0s"], 3), (["30s", "far=0s"], 2)],
)
def test_units_of_a_far_region_or_zone_answer_too_late_and_others_do_not(two_regions: str, latencies: list[str], merged: int) -> None:
    options = [word for latency in latencies for word in ("--latency", latency)]
    done = simulated(JOB, "--units", "4", "--failure-rate", "0", *options, "-o", "json", fleet=two_regions, time="30m")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["contributionsPerMerge"] == pytest.approx(merged, abs=0.1)


@pytest.mark.slow
def test_a_place_where_no_node_is_is_bad_input(two_regions: str) -> None:
    done = simulated(JOB, "--loss", "fra=0.001", fleet=two_regions)
    assert done.exit_code == 2
    assert "--loss fra=…: no node that the job could use is in such a zone or region; their places are far, far-a, far-b" in done.output
    done = simulated(JOB, "--latency", "far=40ms")
    assert done.exit_code == 2
    assert NODE_REGION in done.output, "the fleet has no labels of places"


@pytest.mark.slow
def test_units_go_back_to_the_faster_kind_when_it_is_there_again(tmp_path: Path) -> None:
    nodes = list(yaml.safe_load_all(Path(FLEET).read_text()))
    for node in nodes:
        if node["metadata"]["name"].startswith("h100"):
            node["metadata"]["labels"]["cloud.google.com/gke-spot"] = "true"
            node["status"]["capacity"]["nvidia.com/gpu"] = "8"  # by the catalogue's peaks then faster than a v6e slice
    job = yaml.safe_load(Path(JOB).read_text())
    job["spec"]["learners"] |= {"min": 1, "max": 2}
    for pool in job["spec"]["pools"]:
        pool["learners"] = {"max": 2 if pool["name"] != "v5p" else 0}
        if pool["name"] == "h100":
            pool["acceleratorsPerHost"] = 8
    fleet, file = tmp_path / "fleet.yaml", tmp_path / "job.yaml"
    fleet.write_text(yaml.safe_dump_all(nodes))
    file.write_text(yaml.safe_dump(job))
    often = ("--failure-rate", "0", "--reclaims", "12", "--reclaim-all", "--away", "20m", "--units", "2", "--step", "15s")
    run = ["simulate", str(file), "--fleet", str(fleet), *often, "--time", "12h", "-o", "json"]
    done = CliRunner().invoke(main, run, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    row = json.loads(done.output)
    # Some five times in twelve hours all H100 hosts go for 20 minutes, and both units to v6e. They train there for 10 of these, and come
    # back one after the other. All work is that of units of speed 0.9, of which v6e has two thirds.
    assert row["reclaimed"] >= 4
    assert 2 <= row["moved"] <= row["reclaimed"]
    assert row["badput"]["lost work"] == 0, "steps of 17 and 25 s fit into the notice, and into the grace of a move"


@pytest.mark.parametrize("bandwidth", ["5Gbit/s", "far=5Gbit/s"])
def test_a_bandwidth_without_the_size_of_the_model_is_bad_input(bandwidth: str) -> None:
    done = simulated(JOB, "--bandwidth", bandwidth)
    assert done.exit_code == 2
    assert "need --parameters" in done.output


@pytest.mark.slow
def test_a_job_has_a_plot() -> None:
    done = simulated(JOB, "-o", "svg")
    assert done.exit_code == 0
    assert "bytes-lm" in done.output
    assert ElementTree.fromstring(done.output).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("file", ["no-such.yaml", FLEET])
def test_what_is_no_job_is_bad_input(file: str) -> None:
    done = simulated(file)
    assert done.exit_code == 2
    assert file in done.output


def test_two_jobs_of_one_file_are_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    job = Path(JOB).read_text()
    file.write_text("---\n".join([job, job.replace("name: bytes-lm", "name: other")]))
    done = simulated(str(file))
    assert done.exit_code == 2
    assert "has 2 jobs; give one with one job" in done.output


@pytest.mark.parametrize(
    ("least", "most", "numbers"),
    [(1, 1, [1]), (2, 9, [2, 3, 4, 5, 6, 7, 8, 9]), (1, 128, [1, 2, 4, 8, 16, 32, 64, 128])],
)
def test_a_wide_range_of_units_is_shown_in_steps(least: int, most: int, numbers: list[int]) -> None:
    assert numbers_of_units(least, most) == numbers
