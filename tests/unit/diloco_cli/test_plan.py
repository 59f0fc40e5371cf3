"""`diloco plan` through its door: what would run where, on a fleet of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.documents import ROOT
from builders.jobs import Obj, a_manifest, gpu_pool, tpu_pool
from builders.nodes import a_fleet_gpu_node, a_fleet_node, a_fleet_tpu_node
from click.testing import CliRunner, Result
from diloco_cli.diloco.main import main

pytestmark = pytest.mark.slow
"""The operator itself runs."""
FLEET = str(ROOT / "examples" / "fleet.yaml")
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")
BY_PEAK = "Speeds are peaks of the catalogue, a unit of the job's fastest pool being 1: nothing is measured yet."
NEEDS = "pool h100 needs 2 more slices of nvidia-h100-80gb, 1 host with 1 accelerator"
AUTOSCALER = "    - an autoscaler, which provisioning.mode of the pool asks"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def shown(result: Result) -> list[str]:
    return result.stdout.splitlines()


def a_file(path: Path, *objs: Obj) -> str:
    path.write_text(yaml.safe_dump_all(objs))
    return str(path)


def a_job(name: str, *pools: Obj, min: int, max: int, **spec: Any) -> Obj:
    return a_manifest(name, min=min, max=max, pools=pools, **spec)


def one_gpu(**fields: Any) -> Obj:
    """A pool for the hosts of the example's fleet."""
    return gpu_pool(acceleratorsPerHost=1, **fields)


def test_a_job_is_shown_with_each_unit_where_it_would_run_why_there_and_its_share() -> None:
    """Peaks: v5p 4 x 459 = 1836, v6e 4 x 918 = 3672, h100 989 TFLOP/s: 0.5, 1 and 0.269 of the fastest, 2.039 in all."""
    result = run(QUICKSTART, "--fleet", FLEET)
    assert result.exit_code == 0, result.output
    assert shown(result) == [
        "bytes-lm in namespace default: fits, 4 units (at least 2, at most 4), speed 2.04",
        "  UNIT     RUNS ON   SPEED   SHARE   WHY",
        "  v5p-0    v5p-a     0.50    25%     1st choice",
        "  v6e-0    v6e-a     1.00    49%     2nd choice; v5p: full",
        "  h100-0   h100-a    0.27    13%     3rd choice; v5p, v6e: full",
        "  h100-1   h100-b    0.27    13%     3rd choice; v5p, v6e: full",
        "",
        BY_PEAK,
    ]


def test_units_of_other_clusters_are_counted_and_not_placed(tmp_path: Path) -> None:
    """One of four units is for the pool here, and the others are of tokyo."""
    pools = [tpu_pool(topology="2x2x1", max=1), tpu_pool("far", topology="2x2x1", max=3, cluster="tokyo")]
    job = a_job("lm", *pools, min=3, max=4, spec={"syncer": {"externalAddress": "syncer.example.com"}})
    result = run(a_file(tmp_path / "lm.yaml", job), "--fleet", FLEET)
    assert result.exit_code == 0, result.output
    assert shown(result)[:4] == [
        "lm in namespace default: fits, 1 unit (at least 3, at most 4), speed 1.00",
        "  UNIT    RUNS ON   SPEED   SHARE   WHY",
        "  v5p-0   v5p-a     1.00    100%    1st choice",
        "  3 units of pool far in cluster tokyo, if they fit there, which is not known here",
    ]


def test_a_fleet_that_loses_a_pool_and_drains_a_node_shows_before_and_after() -> None:
    result = run(QUICKSTART, "--fleet", FLEET, "--without", "h100", "--drain", "v6e-a")
    assert result.exit_code == 0, result.output
    assert shown(result)[7:] == [
        "AFTER --without h100, --drain v6e-a",
        "",
        "bytes-lm in namespace default: fits, 2 units (at least 2, at most 4), speed 1.50; before 4 units, speed 2.04",
        "  UNIT     RUNS ON   BEFORE   SPEED   SHARE   WHY",
        "  v5p-0    v5p-a     v5p-a    0.50    33%     1st choice",
        "  v6e-0    v6e-b     v6e-a    1.00    67%     moves; 2nd choice; v5p: full",
        "  h100-0   -         h100-a   -       -       ends: NoCapacity",
        "  h100-1   -         h100-b   -       -       ends: NoCapacity",
        f"  h100-0, h100-1 wait: NoMatchingNodes: {NEEDS}; the fleet has no such nodes",
        "    - more nodes",
        AUTOSCALER,
        "",
        BY_PEAK,
    ]


def test_a_minimum_that_does_not_fit_ends_with_status_1_and_says_what_holds_its_hardware(tmp_path: Path) -> None:
    jobs = a_file(tmp_path / "jobs.yaml", a_job("big", one_gpu(), min=3, max=3), a_job("late", one_gpu(), min=2, max=2))
    result = run(jobs, "--fleet", FLEET)
    assert result.exit_code == 1, result.output
    assert shown(result)[6:] == [
        "late in namespace default: its minimum does not fit, 0 units (at least 2, at most 2)",
        f"  h100-0, h100-1 wait: NoFreeSlice: {NEEDS}; the fleet has 3: 3 held by job default/big (none surplus)",
        "    - wait until job default/big ends, or suspend it",
        "    - more nodes",
        AUTOSCALER,
        "",
        BY_PEAK,
        "",
        "Without what it needs: default/late",
    ]


def test_slices_that_come_let_the_job_that_waits_start(tmp_path: Path) -> None:
    jobs = a_file(tmp_path / "jobs.yaml", a_job("first", one_gpu(max=3), min=3, max=3), a_job("second", one_gpu(max=3), min=2, max=2))
    assert run(jobs, "--fleet", FLEET).exit_code == 1
    result = run(jobs, "--fleet", FLEET, "--add", "h100=2")
    assert result.exit_code == 0, result.output
    after = shown(result)[shown(result).index("AFTER --add h100=2") :]
    assert after[2:] == [
        "second in namespace default: fits, 2 units (at least 2, at most 2), speed 2.00; before 0 units",
        "  UNIT     RUNS ON        BEFORE   SPEED   SHARE   WHY",
        "  h100-0   added-h100-0   -        1.00    50%     1st choice",
        "  h100-1   added-h100-1   -        1.00    50%     1st choice",
        "",
        "1 other job stays as it is",
        "",
        BY_PEAK,
    ]


def test_a_job_that_would_not_train_though_it_has_hardware_says_why(tmp_path: Path) -> None:
    fleet = a_file(tmp_path / "fleet.yaml", a_fleet_tpu_node("tpu-0"))
    job = a_file(tmp_path / "job.yaml", a_job("lm", tpu_pool(topology="2x2x1"), min=1, max=1))
    result = run(job, "--fleet", fleet)
    assert result.exit_code == 1, result.output
    headline, why, *_ = shown(result)
    assert headline == "lm in namespace default: has hardware, and does not train, 1 unit (at least 1, at most 1), speed 1.00"
    assert why.startswith("  the syncer does not serve yet: its pod is Pending: 0/1 nodes are available: 1 node(s) had untolerated taint")


def two_jobs_one_of_which_keeps_spares(path: Path, spares: int) -> str:
    """On two slices of v6e and three hosts of h100; the first job has one unit and wants no more."""
    keeper = a_job("keeper", one_gpu(max=1, spares=spares), min=1, max=1)
    return a_file(path, keeper, a_job("other", one_gpu(max=3), min=1, max=3))


def test_spares_are_shown_with_their_slices_and_the_units_that_would_run_without_them(tmp_path: Path) -> None:
    result = run(two_jobs_one_of_which_keeps_spares(tmp_path / "jobs.yaml", 1), "--fleet", FLEET)
    assert result.exit_code == 0, result.output
    # Of three hosts each job has one, and one is a spare; without it the other job would have two.
    assert [line for line in shown(result) if "spare" in line] == [
        "  pool h100 keeps 1 spare free: h100-c",
        "Without spares 1 more unit would run: default/other/h100-1",
    ]


def test_spares_that_are_not_there_are_shown_as_fewer_than_asked_for(tmp_path: Path) -> None:
    jobs = two_jobs_one_of_which_keeps_spares(tmp_path / "jobs.yaml", 1)
    result = run(jobs, "--fleet", FLEET, "--drain", "h100-c", "-o", "json")
    found = json.loads(result.stdout)
    before, after = ([job["pools"][0]["spares"] for job in found[stage]] for stage in ("planned", "changed"))
    assert before == [{"asked": 1, "kept": 1, "slices": ["h100-c"]}, {"asked": 0, "kept": 0, "slices": []}]
    assert after[0] == {"asked": 1, "kept": 0, "slices": []}
    assert found["sparesCost"] == {"planned": ["default/other/h100-1"], "changed": []}
    assert "  pool h100 keeps 0 of 1 spare free" in shown(run(jobs, "--fleet", FLEET, "--drain", "h100-c"))


@pytest.mark.parametrize("spares", [1, 2])
def test_units_move_to_faster_hardware_whatever_spares_their_pool_keeps(tmp_path: Path, spares: int) -> None:
    fleet = a_file(tmp_path / "fleet.yaml", a_fleet_node("cpu"), *(a_fleet_gpu_node(f"l4-{i}", "nvidia-l4", 1) for i in range(3)))
    slow = gpu_pool("slow", "nvidia-l4", acceleratorsPerHost=1, max=2, spares=spares)
    job = a_file(tmp_path / "job.yaml", a_job("lm", slow, one_gpu(name="fast", max=2), min=1, max=2))
    result = run(job, "--fleet", fleet, "--add", "fast=2", "-o", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0, result.output
    assert [unit["pool"] for unit in found["changed"][0]["units"]] == ["fast", "fast"]


def test_json_has_the_same_as_data() -> None:
    result = run(QUICKSTART, "--fleet", FLEET, "--without", "np-v5p-a", "-o", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["fits"], found["settled"], found["changes"]) == (True, True, ["--without np-v5p-a"])
    [job] = found["planned"]
    assert [(unit["name"], unit["slice"], unit["choice"], unit["speed"]["basis"]) for unit in job["units"]] == [
        ("v5p-0", "v5p-a", 1, "peak"),
        ("v6e-0", "v6e-a", 2, "peak"),
        ("h100-0", "h100-a", 3, "peak"),
        ("h100-1", "h100-b", 3, "peak"),
    ]
    assert job["units"][1]["passed"] == [{"pool": "v5p", "reason": "AtMaximum"}]
    [move] = found["difference"]["moves"]
    assert (move["unit"], move["move"], move["before"], move["after"]) == ("v5p-0", "Ends", "v5p-a", "")
    [pool, *_] = found["changed"][0]["pools"]
    assert (pool["name"], pool["waits"], pool["reason"], pool["remedies"][0]) == ("v5p", True, "NoMatchingNodes", "more nodes")


def test_the_same_plan_comes_again() -> None:
    again = {run(QUICKSTART, "--fleet", FLEET, "--drain", "h100-a", "-o", "json").stdout for _ in range(3)}
    assert len(again) == 1


def test_what_waits_for_nodes_or_quota_says_that_a_plan_grants_none() -> None:
    result = run(str(ROOT / "examples" / "kueue.yaml"), "--fleet", FLEET)
    assert result.exit_code == 1
    assert "WaitingForQuota" in result.stdout
    assert "A plan grants no nodes and no quota: what waits for them may start once they come." in shown(result)


def test_a_suspended_job_asks_for_nothing(tmp_path: Path) -> None:
    job = a_file(tmp_path / "job.yaml", a_job("lm", one_gpu(), min=1, max=1, spec={"suspend": True}))
    result = run(job, "--fleet", FLEET)
    assert (result.exit_code, shown(result)) == (
        0,
        ["lm in namespace default: asks for nothing", "  spec.suspend is set: it asks for no hardware"],
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--drain", "v6e-q"], "--drain v6e-q: there is no node of this name; did you mean v6e-"),
        (["--without", "v7"], "--without v7: there is no node pool, pool of a job or accelerator of this name; the pools are h100, "),
        (["--add", "v6e=3x3"], "--add v6e=3x3: tpu-v6e has no topology '3'; it has 1x1, 2x2, "),
        (["--add", "v6e"], "--add v6e: write POOL=COUNTxTOPOLOGY, such as v6e=4x2x2"),
    ],
)
def test_a_change_that_the_fleet_does_not_allow_is_bad_input(options: list[str], said: str) -> None:
    result = run(QUICKSTART, "--fleet", FLEET, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(said)
    assert result.stdout == ""


def test_bad_files_are_told_with_line_and_field(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text((ROOT / "examples" / "quickstart.yaml").read_text().replace("topology: 2x2x1", "topology: 2x2x3"))
    result = run(str(job), "--fleet", FLEET)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{job}:18: document 1 (bytes-lm): spec.pools[0]")
    nodes = a_file(tmp_path / "fleet.yaml", a_fleet_node("cpu-0", speed="fast"))
    result = run(QUICKSTART, "--fleet", nodes)
    assert result.exit_code == 2
    assert "local.diloco.dev/relative-speed" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fleet", FLEET], "give a FILE with jobs"),
        ([QUICKSTART, "--fleet", FLEET, "--context", "here"], "not both"),
        ([QUICKSTART, "--kubeconfig", "/nowhere"], "to plan without a cluster, give its nodes with --fleet FILE"),
    ],
)
def test_where_the_nodes_come_from_must_be_clear(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_host_of_a_gpu_fleet_is_shared_by_units_that_take_a_part(tmp_path: Path) -> None:
    fleet = a_file(tmp_path / "fleet.yaml", a_fleet_gpu_node("h100-0"), a_fleet_node("cpu-0", cpu=8))
    job = a_file(tmp_path / "job.yaml", a_job("lm", gpu_pool(acceleratorsPerHost=4, max=2), min=2, max=2))
    result = run(job, "--fleet", fleet)
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in shown(result)[2:4]] == [["h100-0", "h100-0"], ["h100-1", "h100-0"]]
