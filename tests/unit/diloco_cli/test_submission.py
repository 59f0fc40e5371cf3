"""The job and the ConfigMap that a script and a few words become."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import Obj
from diloco_cli.diloco.submission import (
    MAX_SCRIPT_BYTES,
    BadScript,
    Script,
    Submission,
    config_map_of,
    job_of,
    name_of_job,
    read_script,
    stays_behind,
)
from diloco_cli.manifests import Manifest, validate_jobs
from diloco_cli.pool_option import read_pool

SCRIPT = Script("train.py", "import diloco.torch\n")


def a_submission(*pools: str, **fields: Any) -> Submission:
    given: dict[str, Any] = {"name": "train", "script": SCRIPT, "image": "registry.example/train:1", "steps": 100, **fields}
    return Submission(pools=[read_pool(text, None) for text in pools], **given)


def container(job: Obj, pool: int = 0) -> Obj:
    [found] = job["spec"]["pools"][pool]["template"]["spec"]["containers"]
    return dict(found)


def test_a_script_travels_in_a_config_map_that_every_pool_mounts() -> None:
    wanted = a_submission("v5p=1", "h100=2")
    config_map, job = config_map_of(wanted), job_of(wanted)
    assert config_map is not None
    assert config_map["data"] == {"train.py": SCRIPT.text}
    assert config_map["immutable"] is True
    for pool in job["spec"]["pools"]:
        spec = pool["template"]["spec"]
        [volume] = spec["volumes"]
        assert volume["configMap"] == {"name": config_map["metadata"]["name"]}
        [mount] = spec["containers"][0]["volumeMounts"]
        assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
        assert spec["containers"][0]["command"] == ["diloco-launch", f"{mount['mountPath']}/train.py"]
    assert job["spec"]["learners"] == {"min": 1, "max": 3}
    assert job["spec"]["training"] == {"steps": 100}


@pytest.mark.parametrize(
    "pools", [("cpu=2",), ("v5p=1", "h100=2"), ("v6e=4x2x4",), ("l4=1x1",), ("mi300x=1",), ("h100=2,hosts=4,spot,min=1", "l4=1,spares=1")]
)
def test_the_job_is_valid(pools: tuple[str, ...]) -> None:
    wanted = a_submission(*pools, arguments=["--lr", "3e-4"], environment={"A": "b"}, storage="1Gi", sync_interval=8, fragments=2)
    [job] = validate_jobs([Manifest(job_of(wanted), "this job", 0)])
    assert job.name == "train"


def test_another_script_under_the_same_name_is_another_config_map() -> None:
    changed = Script("train.py", SCRIPT.text + "#\n")
    first, second, again = (config_map_of(a_submission("cpu=1", script=each)) for each in (SCRIPT, changed, SCRIPT))
    assert first is not None
    assert second is not None
    assert first == again
    assert first["metadata"]["name"] != second["metadata"]["name"]


def test_a_script_in_the_image_is_named_there() -> None:
    wanted = a_submission("cpu=1", script="/app/train.py")
    assert config_map_of(wanted) is None
    assert container(job_of(wanted))["command"] == ["diloco-launch", "/app/train.py"]
    assert "volumes" not in job_of(wanted)["spec"]["pools"][0]["template"]["spec"]


def test_hosts_with_gpus_get_a_process_for_each_and_tpus_and_cpus_none_of_their_own() -> None:
    processes = [pool.get("processesPerHost") for pool in job_of(a_submission("h100=1", "l4=1x4", "v5p=1", "cpu=1"))["spec"]["pools"]]
    assert processes == [8, 4, None, None]
    assert job_of(a_submission("h100=1,hosts=4"))["spec"]["pools"][0]["processesPerHost"] == 8, "of each host"
    assert job_of(a_submission("h100=1", processes=2))["spec"]["pools"][0]["processesPerHost"] == 2
    assert "processesPerHost" not in job_of(a_submission("h100=1", processes=1))["spec"]["pools"][0]


def test_arguments_and_variables_arrive_as_they_were_typed() -> None:
    """Kubernetes reads $(NAME) as a variable's value, and $$(NAME) as $(NAME)."""
    job = job_of(a_submission("cpu=1", arguments=["--text", "$(HOME) and $x"], environment={"B": "$(A)", "A": "1"}))
    assert container(job)["command"][2:] == ["--text", "$$(HOME) and $x"]
    assert container(job)["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "$$(A)"}]


def test_pods_without_accelerators_ask_for_a_core_of_their_own() -> None:
    assert container(job_of(a_submission("cpu=1")))["resources"] == {"requests": {"cpu": "1", "memory": "2Gi"}}
    assert "resources" not in container(job_of(a_submission("h100=1")))
    assert container(job_of(a_submission("h100=1", cpu="48", memory="400Gi")))["resources"]["requests"] == {"cpu": "48", "memory": "400Gi"}


# --- the script -------------------------------------------------------------------------------------------------------
def test_a_script_that_is_too_large_is_told_the_way_of_an_image() -> None:
    assert read_script("train.py", b"#" * MAX_SCRIPT_BYTES, "diloco submit").name == "train.py"
    with pytest.raises(BadScript, match=r"131,073 bytes, .* may have 131,072: build it into an image .* --in-image --image IMAGE /app/"):
        read_script("train.py", b"#" * (MAX_SCRIPT_BYTES + 1), "diloco submit")


def test_what_is_no_text_and_no_file_name_is_refused() -> None:
    with pytest.raises(BadScript, match=r"no text in UTF-8 \(byte 1\)"):
        read_script("train.py", b"a\xff", "diloco submit")
    with pytest.raises(BadScript, match=r"'my train.py' is no name of a file in a ConfigMap"):
        read_script("my train.py", b"", "diloco submit")


def test_modules_beside_the_script_stay_behind() -> None:
    text = "import os, data.loading\nfrom model import Net\nfrom . import own\nif True:\n    import late\n"
    assert stays_behind(Script("train.py", text), ["data", "model", "late", "other", "own"]) == ["data", "late", "model"]
    assert stays_behind(Script("train.py", "print 'of another Python'"), ["data"]) == []


@pytest.mark.parametrize(
    ("script", "name"),
    [("train.py", "train"), ("/app/My_GPT2.py", "my-gpt2"), ("a" * 60 + ".py", "a" * 32), ("train", "train")],
)
def test_the_job_is_called_like_the_script(script: str, name: str) -> None:
    assert name_of_job(script) == name


def test_a_script_whose_name_makes_none_asks_for_one() -> None:
    with pytest.raises(BadScript, match=r"no name for a job can be made of '7.py': give --name"):
        name_of_job("7.py")
