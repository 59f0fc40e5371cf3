"""Input that people make by mistake, or strangers on purpose: each command says what is wrong, and none hangs or ends with a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.jobs import a_manifest
from click.testing import CliRunner, Result
from diloco_cli.diloco.main import main
from diloco_operator.program.yaml_reader import BadYaml, documents

ROOT = Path(__file__).parents[3]
JOB, FLEET = str(ROOT / "examples" / "quickstart.yaml"), str(ROOT / "examples" / "fleet.yaml")
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))


def diloco(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(done: Result, says: str, status: int = 2) -> None:
    assert (done.exit_code, says in done.output) == (status, True), (done.output, done.exception)


def written(folder: Path, *objects: Any) -> Path:
    file = folder / "input.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return file


# --- YAML -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(BOMB, "has more than 2,000,000 values, with what aliases repeat", id="ten levels of ten"),
        pytest.param("kind: DiLoCoJob\nspec: \0", ":2: is not valid YAML: the character U+0000 may not be in it", id="NUL"),
        pytest.param("at: !!timestamp soon", "contains a value that JSON does not have", id="no time"),
        pytest.param("steps: 1e999", "must be DiLoCoJob", id="a text that looks like a number"),
        pytest.param("steps: .inf", "contains a value that JSON does not have", id="infinity"),
        pytest.param(f"steps: {'9' * 5000}", "contains a value that JSON does not have", id="many digits"),
    ],
)
def test_text_that_is_no_object_is_refused_before_it_is_made(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    refused(diloco("validate", file), says)
    refused(diloco("simulate", JOB, "--fleet", file), says.replace("DiLoCoJob", "Node"))


def test_a_file_without_an_end_is_read_to_a_limit() -> None:
    refused(diloco("validate", "/dev/zero"), "/dev/zero: has more than 64 MiB")
    refused(diloco("validate", JOB, "--catalogue", "/dev/zero"), "/dev/zero has more than 1 MiB")


def test_values_are_counted_and_those_behind_aliases_too() -> None:
    [(_, found)] = documents("a: &a [1, 2]\nb: *a", most_nodes=9)  # the mapping, 2 keys, and twice a list of 2: 1 + 2 + 3 + 3
    assert found == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(BadYaml, match="more than 8 values"):
        list(documents("a: &a [1, 2]\nb: *a", most_nodes=8))


def test_of_many_unknown_fields_the_first_hundred_are_shown(tmp_path: Path) -> None:
    job = a_manifest()
    job["spec"].update({f"field{n}": n for n in range(150)})
    done = diloco("validate", written(tmp_path, job))
    refused(done, "has more than 100 unknown fields, of which these are the first")
    assert done.output.count("unknown field;") == 100


def test_what_a_file_says_reaches_no_terminal_as_control_characters(tmp_path: Path) -> None:
    job = a_manifest("x\x1b[2J")
    job["spec"]["colour\x1b[31m"] = "red\r"
    done = diloco("validate", written(tmp_path, job))
    refused(done, "metadata.name must be a DNS label")
    assert not set(done.output) & {"\x1b", "\r"}


# --- numbers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1"])
@pytest.mark.parametrize("option", ["--failure-rate", "--reclaims", "--slowdowns", "--slow-factor", "--loss"])
def test_rates_and_shares_are_finite_numbers(option: str, value: str) -> None:
    refused(diloco("simulate", JOB, "--fleet", FLEET, f"{option}={value}"), f"Invalid value for '{option}'")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((["simulate", JOB, "--fleet", FLEET], option) for option in ("--step=0s", "--time=0s", "--time=nan", "--step=-8s", "--seed=-1")),
        *((["simulate", JOB, "--fleet", FLEET], f"--parameters={value}") for value in ("8XB", "nan", "-8", "0", "9" * 400 + "B")),
        *((["simulate", JOB, "--fleet", FLEET], f"--bandwidth={value}") for value in ("infbit/s", "0Gbit/s", "9" * 400 + "Gbit/s")),
        *((["submit", __file__, "--pool", "cpu=1", "--image", "i"], f"--{name}={value}")
          for name in ("cpu", "memory", "storage") for value in ("8XB", "nan", "-8", "0")),
        (["plan", JOB], "--syncer=nan"),
        (["up", JOB], "--timeout=0s"),
    ],
)  # fmt: skip
def test_a_number_that_is_none_or_out_of_range_is_refused(command: list[str], option: str) -> None:
    refused(diloco(*command, option), f"Invalid value for '{option.partition('=')[0]}'")


@pytest.mark.parametrize(
    ("amount", "says"), [("8XB", "'8XB' is not a quantity"), ("nan", "'nan' is not a quantity"), (-8, "cpu: -8 is below 0")]
)
def test_a_node_of_a_fleet_has_quantities(tmp_path: Path, amount: object, says: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "status": {"capacity": {"cpu": amount}}}
    refused(diloco("simulate", JOB, "--fleet", written(tmp_path, node)), says)


# --- names ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["a/b", "../a", "a\nb", "a\x1b[2J", "A"])
def test_a_name_is_one_that_kubernetes_takes(tmp_path: Path, name: str) -> None:
    refused(diloco("validate", written(tmp_path, a_manifest(name))), "metadata.name must be a DNS label")
    elsewhere = a_manifest()
    elsewhere["metadata"]["namespace"] = name
    refused(diloco("validate", written(tmp_path, elsewhere)), "metadata.namespace: must be at most 63 lower-case letters")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    refused(diloco("simulate", JOB, "--fleet", written(tmp_path, node)), "metadata.name: must be of lower-case letters")


@pytest.mark.parametrize(("name", "image"), [("my-training", "registry/a:1"), ("true", "a: b"), ("null", "a\nb # c")])
def test_init_writes_what_validate_takes(tmp_path: Path, name: str, image: str) -> None:
    file = tmp_path / "job.yaml"
    done = diloco("init", "--fleet", FLEET, "-o", file, "--name", name, "--image", image)
    assert done.exit_code == 0, done.output
    job = yaml.safe_load(file.read_text())
    containers = [pool["template"]["spec"]["containers"][0] for pool in job["spec"]["pools"]]
    assert (job["metadata"]["name"], {each["image"] for each in containers}) == (name, {image})
    assert diloco("validate", file).exit_code == 0


def test_init_writes_nothing_for_a_name_that_validate_refuses(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    refused(diloco("init", "--fleet", FLEET, "-o", file, "--name", "a/b"), "metadata.name must be a DNS label")
    assert not file.exists()


# --- places -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("source", ["ftp://127.0.0.1:1/x", "github://main/x", "zip://x::/no/archive.zip", "no-such-scheme://x"])
@pytest.mark.parametrize("command", ["export", "snapshots"])
def test_a_source_that_cannot_be_opened_is_named(command: str, source: str) -> None:
    refused(diloco(command, source), f"{source} cannot be read: ", status=1)
