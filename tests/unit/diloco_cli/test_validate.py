from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from builders.catalogues import NPU, a_file, restored
from builders.jobs import a_manifest, gpu_pool, template, tpu_pool, with_field
from click.testing import CliRunner, Result
from diloco_cli.diloco.main import main
from diloco_cli.manifests import load_manifests, validate_jobs


def validate(*files: Path | str, output: str = "text", stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["validate", *map(str, files), "-o", output], input=stdin)


def written(path: Path, *objects: object) -> Path:
    path.write_text(yaml.safe_dump_all(objects, sort_keys=False))
    return path


def test_valid_jobs_are_named(tmp_path: Path) -> None:
    file = written(tmp_path / "jobs.yaml", a_manifest("one"), a_manifest("two"))
    result = validate(file)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"{file}: document 1 (one): valid", f"{file}: document 2 (two): valid"]


def test_all_errors_of_all_files_are_shown_at_once(tmp_path: Path) -> None:
    good = written(tmp_path / "good.yaml", a_manifest("good"))
    bad = written(
        tmp_path / "bad.yaml", a_manifest("one", min=7, quorum=8), a_manifest("two", pools=[tpu_pool(topology="3x3")], fragments=99)
    )
    missing = tmp_path / "missing.yaml"
    result = validate(good, bad, missing)
    assert result.exit_code == 2
    assert result.stdout == ""
    shown = result.stderr
    assert "document 1 (one): spec.learners.min: learners.min must not exceed learners.max" in shown
    assert "document 1 (one): spec.training.quorum: training.quorum must not exceed learners.min" in shown
    assert "document 2 (two): spec.pools[0].topology: topology must be one that tpu-v5p has" in shown
    assert "document 2 (two): spec.training.fragments: fragments must not exceed syncInterval" in shown
    assert f"{missing}: does not exist; check the path" in shown
    assert shown.endswith("5 problems found\n")


BROKEN_EVERYWHERE = """\
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {labels: {team: 7}}
spec:
  learners: {min: 5, max: 2}
  pools:
  - {name: flow, accelerator: nvidia-h9, learners: {max: 4}, template: {spec: {hostname: x, containers: [{name: learner}]}}}
  - name: block
    colour: blue
    accelerator: nvidia-h101
    processesPerHost: two
    template:
      spec:
        nodeName: gpu-0
        containers:
        - name: learner
          env: [{name: DILOCO_UNIT, value: me}]
  - {name: known, accelerator: nvidia-h100-80gb, hosts: many, learners: {max: 1}, template: {spec: {containers: [{name: main}]}}}
  training: {steps: 10, overlapSteps: 99}
  syncer: {shards: 2, template: {spec: {subdomain: x}}}
"""


def test_errors_of_all_layers_are_shown_at_once_in_the_order_of_the_fields(tmp_path: Path) -> None:
    """Of the file, of the types, of the CRD's rules, of the catalogue and of the templates: none waits until another is gone."""
    file = tmp_path / "job.yaml"
    file.write_text(BROKEN_EVERYWHERE)
    found = json.loads(validate(file, output="json").stdout)["problems"]
    assert [(problem["line"], problem["field"]) for problem in found] == [
        (3, "metadata.name"),
        (3, "metadata.labels.team"),
        (5, "spec.learners.min"),
        (7, "spec.pools[0].accelerator"),
        (7, "spec.pools[0].template.spec.hostname"),
        (8, "spec.pools[1].learners"),
        (9, "spec.pools[1].colour"),
        (10, "spec.pools[1].accelerator"),
        (11, "spec.pools[1].processesPerHost"),
        (14, "spec.pools[1].template.spec.nodeName"),
        (17, "spec.pools[1].template.spec.containers[0].env[0].name"),
        (18, "spec.pools[2].hosts"),
        (18, "spec.pools[2].template.spec.containers"),
        (19, "spec.training.overlapSteps"),
        (20, "spec.syncer.shards"),
        (20, "spec.syncer.template.spec.subdomain"),
    ]


@pytest.mark.parametrize(
    "pools", [[], "none", [7], [{"name": 7, "accelerator": 7, "learners": 7, "template": 7}], [{"template": {"spec": {"containers": 7}}}]]
)
def test_what_cannot_be_read_is_named_once_and_hides_nothing(pools: object, tmp_path: Path) -> None:
    obj = with_field(with_field(a_manifest(), "spec.pools", pools), "spec.syncer", {"template": {"spec": {"hostNetwork": True}}})
    found = json.loads(validate(written(tmp_path / "job.yaml", obj), output="json").stdout)["problems"]
    fields = [problem["field"] for problem in found]
    assert len(fields) == len(set(fields)), fields
    assert fields[-1] == "spec.syncer.template.spec.hostNetwork"
    assert all(field.startswith("spec.pools") for field in fields[:-1])
    assert len(fields) > 1


def test_a_wrong_number_of_accelerators_is_no_reason_to_blame_the_template(tmp_path: Path) -> None:
    asks = template(command=["diloco-launch"])
    asks["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 4}}
    obj = a_manifest(min=1, pools=[gpu_pool(acceleratorsPerHost="four", template=asks)])
    found = json.loads(validate(written(tmp_path / "job.yaml", obj), output="json").stdout)["problems"]
    assert [problem["field"] for problem in found] == ["spec.pools[0].acceleratorsPerHost"]


def test_errors_carry_the_line_of_the_field(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        """\
# a comment
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: bytes-lm}
spec:
  learners: {max: 2}
  pools:
  - name: v5p
    accelerator: tpu-v5p
    topology: 3x3
    learners: {max: 4}
    template:
      spec:
        containers:
        - name: main
  training:
    quorum: 1
"""
    )
    shown = validate(file).stderr
    assert f"{file}:10: document 1 (bytes-lm): spec.pools[0].topology: " in shown
    assert f"{file}:14: document 1 (bytes-lm): spec.pools[0].template.spec.containers: " in shown
    assert f"{file}:16: document 1 (bytes-lm): spec.training.steps: Required value" in shown
    lines = [int(line) for line in re.findall(rf"^{re.escape(str(file))}:(\d+):", shown, re.MULTILINE)]
    assert lines == sorted(lines)


def test_a_document_that_is_no_object_has_its_own_line(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("# a comment\n---\njust text\n")
    assert f"{file}:3: document 1: must be an object with apiVersion" in validate(file).stderr


UNKNOWN = {
    "spec.learners.timeout": "did you mean timeouts?",
    "spec.training.stpes": "did you mean steps?",
    "spec.pools[0].Topology": "did you mean topology?",
    "spec.pools[1].colour": "unknown field; ",
    "spec.xyz": "the fields here are suspend, managedBy",
    "metadata.lables": "did you mean labels?",
    "specs": "did you mean spec?",
    "spec.pools[0].template.metadata.name": "unknown field; ",
}


@pytest.mark.parametrize(("path", "words"), UNKNOWN.items(), ids=UNKNOWN)
def test_unknown_field_is_an_error_that_names_the_nearest(tmp_path: Path, path: str, words: str) -> None:
    result = validate(written(tmp_path / "job.yaml", with_field(a_manifest(), path, 1)))
    assert result.exit_code == 2
    assert f"{path}: unknown field; " in result.stderr
    assert words in result.stderr


def test_pod_spec_is_left_to_the_api_server(tmp_path: Path) -> None:
    obj = with_field(a_manifest(), "spec.pools[0].template.spec.containers[0].resources", {"limits": {"memory": "1Gi"}})
    assert validate(written(tmp_path / "job.yaml", obj)).exit_code == 0


UNREADABLE = {
    "malformed": (b"spec: [1, 2", "is not valid YAML"),
    "tab": (b"spec:\n\tx: 1", "is not valid YAML"),
    "not UTF-8": (b"apiVersion: \xff\xfe", "is not UTF-8 text (byte 12); save it as UTF-8"),
    "empty": (b"", "contains no object; it needs a DiLoCoJob of diloco.dev/v1alpha1"),
    "only comments": (b"# nothing\n---\n---\n", "contains no object"),
    "a list": (b"- 1\n- 2\n", "must be an object with apiVersion, kind, metadata and spec, not a list"),
    "text": (b"hello", "not a string"),
    "key twice": (b"kind: DiLoCoJob\nkind: Pod\n", "the key 'kind' occurs twice; remove one"),
    "number as key": (b"kind: DiLoCoJob\n1: x\n", "a key must be a string; put '1' in quotes"),
    "alias to itself": (b"kind: &a [*a]\n", "contains itself through the anchor a"),
    "not a number": (b"kind: .nan\n", "contains a value that JSON does not have"),
    "binary": (b"kind: !!binary aGk=\n", "contains a value that JSON does not have"),
    "python": (b"kind: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
    "nested deeply": (b"[" * 500, "is nested more than 100 levels deep"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(content)
    result = validate(file)
    assert result.exit_code == 2
    assert str(file) in result.stderr
    assert words in result.stderr, result.stderr
    assert "Traceback" not in result.output


MISFITS = {
    "wrong kind": ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}, "kind: must be DiLoCoJob, not 'Pod'"),
    "kind in other letters": (with_field(a_manifest(), "kind", "DilocoJob"), "did you mean DiLoCoJob?"),
    "no kind": (with_field(a_manifest(), "kind", ...), "kind: must be DiLoCoJob, it is missing"),
    "wrong version": (
        with_field(a_manifest(), "apiVersion", "diloco.dev/v1"),
        "apiVersion: must be diloco.dev/v1alpha1, not 'diloco.dev/v1'",
    ),
    "no version": (with_field(a_manifest(), "apiVersion", ...), "apiVersion: must be diloco.dev/v1alpha1, it is missing"),
    "no metadata": (with_field(a_manifest(), "metadata", ...), "metadata: must be an object with a name"),
    "no name": (with_field(a_manifest(), "metadata", {}), "metadata.name: is required"),
    "number as name": (with_field(a_manifest(), "metadata.name", 7), "metadata.name: is required"),
    "number as label": (with_field(a_manifest(), "metadata.labels", {"a": 1}), "metadata.labels.a: must be a string; put 1 in quotes"),
    "labels as a list": (with_field(a_manifest(), "metadata.labels", ["a"]), "metadata.labels: must be an object of strings"),
    "no spec": (with_field(a_manifest(), "spec", ...), "spec: Required value"),
    "spec as a list": (with_field(a_manifest(), "spec", []), "spec: "),
}


@pytest.mark.parametrize(("obj", "words"), MISFITS.values(), ids=MISFITS)
def test_object_that_is_no_job_is_refused(tmp_path: Path, obj: dict[str, object], words: str) -> None:
    result = validate(written(tmp_path / "job.yaml", obj))
    assert result.exit_code == 2
    assert words in result.stderr, result.stderr


def test_same_name_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.yaml", a_manifest("x"), a_manifest("y")), written(tmp_path / "b.yaml", a_manifest("y"))
    result = validate(first, second)
    assert result.exit_code == 2
    assert f"{second}:4: document 1 (y): metadata.name: the same name is used in {first}, document 2" in result.stderr


def test_same_name_in_two_namespaces_is_fine(tmp_path: Path) -> None:
    other = with_field(a_manifest("x"), "metadata.namespace", "other")
    assert validate(written(tmp_path / "a.yaml", a_manifest("x"), other)).exit_code == 0


def test_directory_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path}: is a directory; name the files in it" in validate(tmp_path).stderr


def test_standard_input_is_a_dash() -> None:
    result = validate("-", stdin=yaml.safe_dump(a_manifest()).encode())
    assert (result.exit_code, result.stdout) == (0, "-: document 1 (bytes-lm): valid\n")


def test_items_of_a_list_are_jobs(tmp_path: Path) -> None:
    bad = with_field(a_manifest("two"), "spec.training.steps", 0)
    result = validate(written(tmp_path / "list.yaml", {"apiVersion": "v1", "kind": "List", "items": [a_manifest("one"), bad]}))
    assert "(two): spec.training.steps: " in result.stderr
    assert "(one)" not in result.stderr


def test_times_stay_text(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(a_manifest()).replace("name: bytes-lm", "name: bytes-lm\n  creationTimestamp: 2026-11-20T21:00:00Z"))
    assert validate(file).exit_code == 0


def test_json_holds_every_problem(tmp_path: Path) -> None:
    file = written(tmp_path / "job.yaml", a_manifest(pools=[gpu_pool(topology="2x2")], quorum=3))
    result = validate(file, output="json")
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["valid"] is False
    assert {(problem["document"], problem["name"], problem["field"]) for problem in answer["problems"]} == {
        (1, "bytes-lm", "spec.pools[0].topology"),
        (1, "bytes-lm", "spec.training.quorum"),
    }
    assert all(problem["file"] == str(file) and problem["line"] > 0 and problem["message"] for problem in answer["problems"])


def test_json_of_valid_jobs_names_them(tmp_path: Path) -> None:
    file = written(tmp_path / "job.yaml", a_manifest(pools=[tpu_pool()]))
    answer = json.loads(validate(file, output="json").stdout)
    assert answer == {"valid": True, "jobs": [{"file": str(file), "document": 1, "name": "bytes-lm"}], "problems": [], "warnings": []}


@pytest.mark.slow
def test_shipped_examples_are_valid() -> None:
    found = sorted((Path(__file__).parents[3] / "examples").glob("**/*.yaml"))
    examples = [path for path in found if "kind: ComputeDomain" not in path.read_text()]
    jobs = [manifest for manifest in load_manifests(examples, kinds=("DiLoCoJob", "Node")) if manifest.obj["kind"] == "DiLoCoJob"]
    assert jobs
    assert validate_jobs(jobs)


def test_accelerator_of_no_catalogue_is_refused_and_of_the_catalogue_file_is_valid(tmp_path: Path) -> None:
    job = written(tmp_path / "job.yaml", a_manifest(pools=[gpu_pool(accelerator="acme-npu2")]))
    refused = validate(job)
    assert refused.exit_code == 2
    assert "spec.pools[0].accelerator: accelerator 'acme-npu2' is not in the catalogue: tpu-v4, " in refused.stderr
    catalogue = written(tmp_path / "catalogue.yaml", a_file(NPU))
    with restored():
        assert validate("--catalogue", catalogue, job).exit_code == 0
    with restored():  # and in the environment
        assert CliRunner(env={"DILOCO_CATALOGUE": str(catalogue)}).invoke(main, ["validate", str(job)]).exit_code == 0
    bad = written(tmp_path / "bad.yaml", a_file({**NPU, "speed": 1}))
    refused = validate("--catalogue", bad, job)
    assert (refused.exit_code, refused.stderr) == (2, f"{bad}:\n  accelerators[0] (acme-npu2): speed: unknown field\n")


def test_no_file_is_a_usage_error() -> None:
    result = validate()
    assert result.exit_code == 2
    assert "Missing argument 'FILE...'" in result.stderr
