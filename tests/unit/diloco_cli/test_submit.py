"""`diloco submit` through its door: what it prints, and what it refuses. tests/cluster and tests/e2e let it train."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from builders.snapshots import a_model, save_snapshot
from click.testing import CliRunner, Result
from diloco_cli.diloco.main import main
from diloco_cli.diloco.up import _objects, run_here
from diloco_cli.diloco.up_run import UpOptions
from diloco_cli.manifests import Manifest, validate_jobs
from diloco_local.state_dir import StateDir

FLEET = str(Path(__file__).parents[3] / "examples" / "fleet.yaml")
IMAGE = ("--image", "registry.example/train:1")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """In a folder of its own, from where no cluster is configured."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    file = tmp_path / "train.py"
    file.write_text("import sys\nprint(sys.argv)\n")
    return str(file)


def submit(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["submit", *arguments])


def test_a_dry_run_needs_no_cluster_and_prints_what_kubectl_can_apply(script: str) -> None:
    done = submit(script, "data", "--pool", "v5p=1x2x2x1", *IMAGE, "--steps", "50", "--dry-run", "-o", "yaml", "--", "--lr", "3e-4")
    assert done.exit_code == 0, done.output
    assert "  train.py: |\n    import sys\n" in done.stdout, "the script is readable"
    config_map, job = yaml.safe_load_all(done.stdout)
    assert (config_map["kind"], job["kind"]) == ("ConfigMap", "DiLoCoJob")
    assert config_map["data"]["train.py"] == Path(script).read_text()
    command = job["spec"]["pools"][0]["template"]["spec"]["containers"][0]["command"]
    assert command == ["diloco-launch", "/opt/diloco-script/train.py", "data", "--lr", "3e-4"]
    assert "namespace" not in job["metadata"], "that of whoever applies it"
    validate_jobs([Manifest(job, "printed", 0)])


def test_words_behind_a_pool_and_a_queue_become_fields_of_the_job(script: str) -> None:
    pools = (
        "--pool",
        "nvidia-h100-80gb=2,hosts=4,min=1",
        "--pool",
        "nvidia-h100-80gb=3,reserved,name=own",
        "--pool",
        "v5e=1x4x8,autoscaler",
    )
    done = submit(script, *pools, "--spot", "--queue", "team-a", *IMAGE, "--dry-run")
    assert done.exit_code == 0, done.output
    _, job = yaml.safe_load_all(done.stdout)
    assert job["spec"]["queueName"] == "team-a"
    assert job["spec"]["learners"] == {"min": 1, "max": 6}
    several, own, slices = ({key: value for key, value in pool.items() if key != "template"} for pool in job["spec"]["pools"])
    h100 = {"accelerator": "nvidia-h100-80gb", "processesPerHost": 8}
    assert several == {"name": "h100-80gb", **h100, "hosts": 4, "capacity": "Spot", "learners": {"min": 1, "max": 2}}
    assert own == {"name": "own", **h100, "capacity": "Reserved", "learners": {"max": 3}}
    assert slices == {
        "name": "v5e", "accelerator": "tpu-v5e", "topology": "4x8", "capacity": "Spot", "provisioning": {"mode": "Autoscaler"},
        "learners": {"max": 1},
    }  # fmt: skip


def test_json_is_one_list(script: str) -> None:
    done = submit(script, "--pool", "cpu=1", *IMAGE, "--dry-run", "-o", "json", "-n", "team")
    found = json.loads(done.stdout)
    assert [(each["kind"], each["metadata"]["namespace"]) for each in found["items"]] == [("ConfigMap", "team"), ("DiLoCoJob", "team")]


def test_a_script_in_the_image_is_not_read(script: str) -> None:
    done = submit("/app/my_train.py", "--in-image", "--pool", "cpu=1", *IMAGE, "--dry-run")
    [job] = yaml.safe_load_all(done.stdout)
    assert job["metadata"]["name"] == "my-train"


def test_modules_that_stay_behind_are_told(script: str) -> None:
    Path(script).write_text("import model\n")
    (Path(script).parent / "model.py").touch()
    done = submit(script, "--pool", "cpu=1", *IMAGE, "--dry-run")
    assert done.exit_code == 0
    assert done.stderr == "note: train.py imports model, which is beside it and does not travel with it: install it into the image\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pool", "cpu=1"), "give --image, an image with Python, diloco and what the script imports; or --local"),
        (("--pool", "cpu=1", "--local", "--dry-run"), "--local runs the script here: leave out --in-image, --dry-run"),
        (IMAGE, "give --pool KIND=UNITS, such as --pool h100=2"),
        (("--local",), "give --pool; --pool cpu=2 trains with two units on the processors of this machine"),
        (("--pool", "v5q=1", *IMAGE, "--dry-run"), "v5q is no kind of accelerator"),
        (("--pool", "cpu=1", "--pool", "cpu=2", *IMAGE, "--dry-run"), "two pools would have the name cpu"),
        (("--pool", "cpu=1", "--pool", "cpu=2,spot", *IMAGE, "--dry-run"), "by a word behind each, such as cpu=1,name=cpu-b"),
        (("--pool", "cpu=1", "--local", "--queue", "team-a"), "--local runs the script here, where no Kueue is: leave out --queue"),
        (
            ("--pool", "cpu=1", "--queue", "Team A", *IMAGE, "--dry-run"),
            'spec.queueName: Invalid value: "Team A": queueName must be the name of a LocalQueue',
        ),
        (("--pool", "cpu=1,spares=1", "--queue", "a", *IMAGE, "--dry-run"), "spares is not for a job with queueName"),
        (("--pool", "cpu=1,spares=1,scavenged", *IMAGE, "--dry-run"), "spares keeps slices that are there"),
        (("--pool", "l4=1,hosts=513", *IMAGE, "--dry-run"), "spec.pools[0].hosts: Invalid value: 513"),
        (("--pool", "cpu=1", "--lr", "3", *IMAGE), "options of the script stand at the end, after --"),
        (("--pool", "cpu=1", "--min", "2", *IMAGE, "--dry-run"), "this job: (train): spec.learners"),
        (("--pool", "cpu=1", "--name", "No", *IMAGE, "--dry-run"), "this job: (No): metadata.name"),
    ],
)
def test_what_makes_no_sense_is_bad_input(script: str, arguments: tuple[str, ...], words: str) -> None:
    done = submit(script, *arguments)
    assert done.exit_code == 2, done.output
    assert words in done.stderr


def test_a_script_that_is_not_there_is_told(script: str) -> None:
    done = submit(f"{script}x", "--pool", "cpu=1", *IMAGE)
    assert done.exit_code == 2
    assert done.stderr.endswith("train.pyx: No such file or directory. Of a script in the image say --in-image\n")


def test_without_a_cluster_a_dry_run_takes_what_the_nodes_would_decide_from_the_catalogue_and_says_so(script: str) -> None:
    done = submit(script, "--pool", "v5p=1", *IMAGE, "--dry-run")
    assert done.exit_code == 0, done.output
    _, job = yaml.safe_load_all(done.stdout)
    assert job["spec"]["pools"][0]["topology"] == "2x2x1"
    assert "note: what --pool leaves open is the first of the catalogue, as no cluster could be asked: no Kubernetes cluster" in done.stderr


@pytest.mark.parametrize("output", ["yaml", "json"])
@pytest.mark.parametrize("command", [["validate"], ["plan", "--fleet", FLEET], ["simulate", "--fleet", FLEET, "--time", "1m"], ["up"]])
def test_what_a_dry_run_prints_is_read_by_the_other_commands(script: str, tmp_path: Path, command: list[str], output: str) -> None:
    file = tmp_path / "printed"
    file.write_text(submit(script, "--pool", "cpu=1", *IMAGE, "--dry-run", "-o", output).stdout)
    if command[0] == "up":  # it would train; what it made of the file is told by what it starts with
        jobs, config_maps = _objects([str(file)])
        assert [each["metadata"]["name"] for each in jobs] == ["train"]
        assert [(each["metadata"]["namespace"], each["data"]["train.py"]) for each in config_maps] == [
            ("default", Path(script).read_text())
        ]
        return
    done = CliRunner().invoke(main, [command[0], str(file), *command[1:]])
    assert done.exit_code == 0, done.output


def test_a_config_map_alone_is_no_job(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}))
    done = CliRunner().invoke(main, ["validate", str(file)])
    assert (done.exit_code, "contains no DiLoCoJob" in done.output) == (2, True)


def test_a_run_that_goes_on_from_a_snapshot_of_another_script_says_so(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(options: UpOptions, _view: object) -> NoReturn:
        with StateDir(options.state_dir):
            options.on_locked()
        raise SystemExit(0)

    monkeypatch.setattr("diloco_cli.diloco.submit.run_here", ends)  # it would train
    state = tmp_path / "state"

    def told() -> str:
        return submit(script, "--pool", "cpu=1", "--local", "--state-dir", str(state)).stderr

    assert told() == ""
    save_snapshot(state / "volumes" / "default" / "train-syncer" / "snapshots", 40, a_model(), job="train")
    assert told() == "", "the same script"
    Path(script).write_text("print('another')\n")
    with StateDir(state), monkeypatch.context() as real:
        real.setattr("diloco_cli.diloco.submit.run_here", run_here)
        assert "another command" in told(), "a run that is refused changes nothing"
    said = told()
    assert "note: train goes on from outer step 40, of a snapshot of another script" in said
    assert hashlib.sha256(b"train.py\0print('another')\n").hexdigest()[:12] in said
    assert told() == "", "it is said once"
