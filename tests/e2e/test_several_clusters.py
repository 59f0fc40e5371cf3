"""`diloco up --cluster`: one job over embedded control planes beside each other, each with an operator and nodes of its own."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest
import yaml
from builders.jobs import Obj
from builders.local_jobs import a_fleet, a_quadratic_job
from builders.up_runs import DILOCO, Up
from click.testing import CliRunner
from diloco_cli.diloco.main import main
from diloco_local.record.file import RecordReader
from diloco_local.record.reading import history_of
from diloco_operator.api.names import unit_name
from diloco_operator.api.phases import Phase

pytestmark = pytest.mark.timeout(600)

TOKYO = ("--cluster", "tokyo=tokyo.yaml")


def a_job_over_two_clusters(**options: object) -> Obj:
    job = a_quadratic_job(units={"v5p": 1}, min=3, **options)  # type: ignore[arg-type]
    [pool] = job["spec"]["pools"]
    job["spec"]["pools"].append({**pool, "name": "far", "cluster": "tokyo", "learners": {"max": 2}})
    job["spec"]["learners"]["max"] = 3
    job["spec"]["syncer"] = {"externalAddress": "quad-syncer.quad.default.svc"}
    return job


def renamed(nodes: list[Obj], prefix: str) -> list[Obj]:
    return [{**node, "metadata": {**node["metadata"], "name": f"{prefix}-{node['metadata']['name']}"}} for node in nodes]


def test_a_job_over_two_clusters_is_trained_to_its_end_by_all_its_units(tmp_path: Path) -> None:
    assert DILOCO.is_file()
    (tmp_path / "tokyo.yaml").write_text(yaml.safe_dump_all(renamed(a_fleet(tpus=2, gpus=0), "far")))
    up = Up(tmp_path, [a_job_over_two_clusters(steps=60, training={"quorum": 3})], *TOKYO, fleet=a_fleet(tpus=1, gpus=0))
    with contextlib.closing(up.process.stdout):  # type: ignore[type-var]
        status, last = up.end()
    assert (status, last["ending"]) == (0, "Complete"), up.errors()
    [job] = last["jobs"]
    [part] = job["parts"]
    assert (part["name"], {unit["name"] for unit in part["units"]}, part["tokens"] > 0) == ("tokyo", {"far-0", "far-1"}, True)
    assert part["tokens"] == sum(unit["tokens"] for unit in part["units"])
    assert job["goodput"]["acceleratorHours"].keys() == part["acceleratorHours"].keys() == {"tpu-v5p"}
    assert part["tokens"] + sum(unit["tokens"] for unit in job["units"]) == job["progress"]["tokens"]
    assert "mergeShare" not in part, "nothing is measured of a link after the end"
    [history] = history_of(RecordReader(tmp_path / "state")).jobs
    trained = {unit.name for unit in history.units.values() if unit.share(Phase.TRAINING) > 0}
    assert trained == {unit["name"] for unit in job["units"]} | {"far-0", "far-1"}, "the report's timeline has a row of each"
    of_tokyo = tmp_path / "state" / "clusters" / "tokyo" / "logs"
    assert f"Logs of the pods: {tmp_path}/state/logs, in cluster tokyo {of_tokyo}; " in last["message"]
    logs = {folder.name for folder in (of_tokyo / "default").iterdir()}
    assert logs == {f"quad-{unit_name('far', index)}-a1-0" for index in range(2)}, "their pods ran in tokyo"


def test_ctrl_c_drains_all_clusters_and_the_same_command_goes_on_in_all(tmp_path: Path) -> None:
    (tmp_path / "tokyo.yaml").write_text(yaml.safe_dump_all(renamed(a_fleet(tpus=2, gpus=0), "far")))

    def run(steps: int) -> Up:
        job = a_job_over_two_clusters(steps=steps, training={"quorum": 3}, environment={"QUADRATIC_STEP_MS": 20})
        return Up(tmp_path, [job], *TOKYO, fleet=a_fleet(tpus=1, gpus=0))

    first = run(1_000_000)
    first.until(lambda line: line["type"] == "status" and (line.get("progress") or {}).get("step", 0) >= 30)
    measured = {"mergeShare", "receivedBytesPerSecond", "sentBytesPerSecond"}
    [part] = first.until(lambda line: any(measured <= part.keys() for part in line.get("parts", ())))["parts"]
    assert 0 < part["mergeShare"] <= 1
    assert 0 < part["receivedBytesPerSecond"] <= part["receivedBytes"], "its learners name the cluster as status does"
    assert 0 < part["sentBytesPerSecond"] <= part["sentBytes"]
    first.process.send_signal(signal.SIGINT)
    status, stopped = first.end()
    assert (status, stopped["ending"]) == (130, "Interrupted")
    step = stopped["jobs"][0]["progress"]["step"]
    status, last = run(step + 30).end()
    assert (status, last["jobs"][0]["progress"]["step"]) == (0, step + 30)
    log = (tmp_path / "state" / "clusters" / "tokyo" / "logs" / "default" / "quad-far-0-a1-0" / "learner-0.log").read_text()
    assert "unit far-0 drained after" in log, log


def test_a_pool_in_a_cluster_that_is_not_given_is_told_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(a_job_over_two_clusters()))
    result = CliRunner().invoke(main, ["up", str(tmp_path / "job.yaml"), "--state-dir", str(tmp_path / "state"), "--cluster", "tokyo"])
    assert result.exit_code == 2
    assert "--cluster tokyo: write NAME=FILE, the name of the cluster and a file with its nodes" in result.stderr
    twice = ["--cluster", "tokyo=a.yaml", "--cluster", "tokyo=b.yaml"]
    result = CliRunner().invoke(main, ["up", str(tmp_path / "job.yaml"), "--state-dir", str(tmp_path / "state"), *twice])
    assert result.exit_code == 2
    assert "--cluster tokyo=b.yaml: cluster tokyo is there twice; leave one out" in result.stderr


def test_a_cluster_behind_a_link_is_as_far_from_the_syncer_as_the_link_is_long(tmp_path: Path) -> None:
    """The syncer measures it, with chunks of a model that is large enough for that."""
    (tmp_path / "tokyo.yaml").write_text(yaml.safe_dump_all(renamed(a_fleet(tpus=2, gpus=0), "far")))
    job = a_job_over_two_clusters(steps=1_000_000, training={"quorum": 3}, environment={"QUADRATIC_TENSORS": 2000})
    up = Up(tmp_path, [job], *TOKYO, "--latency", "tokyo=20ms", "--bandwidth", "200Mbit/s", fleet=a_fleet(tpus=1, gpus=0))
    seen = up.until(lambda line: any("roundTripSeconds" in part for part in line.get("parts") or ()))
    [part] = seen["parts"]
    assert part["roundTripSeconds"] >= 0.04, "there and back"
    up.process.send_signal(signal.SIGINT)
    assert up.end()[0] == 130


def test_a_link_to_a_cluster_that_is_not_given_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(a_job_over_two_clusters()))
    (tmp_path / "tokyo.yaml").write_text(yaml.safe_dump_all(a_fleet(tpus=2, gpus=0)))
    up = ["up", str(tmp_path / "job.yaml"), "--state-dir", str(tmp_path / "state")]
    result = CliRunner().invoke(main, [*up, "--cluster", f"tokyo={tmp_path}/tokyo.yaml", "--latency", "osaka=40ms"])
    assert (result.exit_code, "--latency osaka=…: cluster osaka is not here" in result.stderr) == (2, True)
    result = CliRunner().invoke(main, [*up, "--bandwidth", "20Mbit/s"])
    assert (result.exit_code, "--bandwidth: there is no other cluster" in result.stderr) == (2, True)
