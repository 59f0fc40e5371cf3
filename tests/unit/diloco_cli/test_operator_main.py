"""The `diloco-operator` command: options and configuration that are refused before anything is asked of a cluster."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from builders.catalogues import NPU, a_file
from click.testing import CliRunner, Result
from diloco_operator.operator import RunConfig
from diloco_operator.program.config import BadConfiguration, load_configuration
from diloco_operator.program.main import main
from diloco_operator.reconcile import OperatorConfig

HEAD = "apiVersion: config.diloco.dev/v1alpha1\nkind: OperatorConfiguration\n"


def load(tmp_path: Path, text: str) -> tuple[OperatorConfig, RunConfig]:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return load_configuration(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


def test_without_a_file_everything_is_the_default() -> None:
    assert load_configuration(None) == (OperatorConfig(), RunConfig())


def test_an_empty_configuration_is_the_default(tmp_path: Path) -> None:
    assert load(tmp_path, HEAD) == (OperatorConfig(), RunConfig())


def test_fields_are_in_camel_case_and_durations_as_in_a_job(tmp_path: Path) -> None:
    text = HEAD + 'progressInterval: 1m30s\nreportStaleAfter: 45\nsyncerImage: "x/y:1"\nlearnerGrace: 20\nworkers: 3\njobConcurrency: 8\n'
    config, run_config = load(tmp_path, text + "disruptionTaints: [a, b]\ndisruptionLabels: [[k, v]]\n")
    assert (config.progress_interval, config.report_stale_after) == (90.0, 45.0)
    assert (config.syncer_image, config.learner_grace) == ("x/y:1", 20)
    assert config.disruption_taints == ("a", "b")
    assert config.disruption_labels == (("k", "v"),)
    assert (run_config.workers, run_config.job_concurrency) == (3, 8)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + "progressIntervall: 5s\n", "progressIntervall: unknown field"),
        (HEAD + "progress_interval: 5s\n", "progress_interval: unknown field"),
        (HEAD + "namespaces: [a]\n", "namespaces: unknown field"),
        (HEAD + "progressInterval: soon\n", "progressInterval: 'soon' is not a duration"),
        (HEAD + "progressInterval: -1\n", "progressInterval: Input should be greater than or equal to 0"),
        (HEAD + "disruptionLabels: [[k]]\n", "disruptionLabels[0][1]: Field required"),
        (HEAD + "workers: 0\n", "workers, concurrency and jobConcurrency must be 1 or more, not 0, 64 and 32"),
        ("kind: OperatorConfiguration\n", "apiVersion: Field required"),
        ("apiVersion: v1\nkind: OperatorConfiguration\n", "apiVersion: Input should be 'config.diloco.dev/v1alpha1'"),
        ("- a\n", "must be a map"),
        ("a: [\n", "is not valid YAML"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_path_of_the_field(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        load(tmp_path, text)
    assert problem in str(refused.value)
    assert "config.yaml" in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="cannot be read"):
        load_configuration(tmp_path / "none.yaml")


def test_the_command_ends_with_2_for_a_bad_catalogue_and_names_file_row_and_field(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.yaml"
    file.write_text(yaml.safe_dump(a_file({**NPU, "hostSizes": [3]})))
    refused = run("--catalogue", str(file))
    assert refused.exit_code == 2
    assert str(file) in refused.output
    assert "accelerators[0] (acme-npu2): hostSizes: must be powers of two up to 16, not [3]" in refused.output
    for content, words in (
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"a: [", "is not valid YAML"),
        (b"#" * (2 << 20), "has more than 1 MiB"),
    ):
        file.write_bytes(content)
        assert words in run("--catalogue", str(file)).output
    assert run("--catalogue", str(tmp_path / "none.yaml")).exit_code == 2


def test_the_command_ends_with_2_for_a_bad_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEAD + "typo: 1\n")
    assert run("--config", str(file)).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [("--lease-duration", "soon"), ("--metrics-address", "8080"), ("--log-format", "xml"), ("--watch-namespace",), ("--no-such-option",)],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def a_kubeconfig(folder: Path) -> Path:
    """Write the kubeconfig of a cluster that does not answer."""
    kubeconfig = folder / "config"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a, namespace: x}}]\nusers: [{name: a, user: {token: t}}]\ncurrent-context: a\n"
    )
    return kubeconfig


def test_terms_under_which_two_could_lead_are_refused(tmp_path: Path) -> None:
    assert run("--kubeconfig", str(a_kubeconfig(tmp_path)), "--lease-duration", "5s").exit_code == 2


def test_the_version() -> None:
    result = CliRunner().invoke(main, ["version"])
    assert result.exit_code == 0
    assert result.output.startswith("diloco-operator 0.")
    assert "diloco.dev/v1alpha1" in result.output


def installed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as it is installed."""
    program = Path(sys.executable).parent / "diloco-operator"
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_the_installed_program_shows_its_version() -> None:
    shown = installed("--version")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == f"diloco-operator {version('diloco-operator')} (diloco.dev/v1alpha1)\n"
    assert installed("version").stdout == shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("option", "other"), [("--metrics-address", "--health-address"), ("--health-address", "--metrics-address")])
def test_a_taken_port_is_one_line_that_names_the_option(tmp_path: Path, option: str, other: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = installed(
            *("run", "--kubeconfig", str(a_kubeconfig(tmp_path)), "--no-leader-elect", "--log-format", "text", option, address, other, "0")
        )
    assert ended.returncode == 2
    *_, said = ended.stderr.splitlines()
    assert said.endswith(f"at {address}: address already in use; choose another address with {option}, or 0 for none")
    assert "Traceback" not in ended.stderr
