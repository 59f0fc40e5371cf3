"""`diloco local nodes` before it reaches a cluster; tests/cluster/test_kube_nodes.py and test_kube_jobs.py have it at work."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from diloco_cli.diloco.main import main

FLEET = Path(__file__).parents[3] / "examples" / "fleet.yaml"


def run(*options: str, **environment: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["local", "nodes", *options], env=environment)
    return done.exit_code, done.output


def kubeconfig(folder: Path, server: str) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(json.dumps(content))
    return str(folder / "kubeconfig")


def test_without_a_cluster_it_says_where_it_looked(tmp_path: Path) -> None:
    code, said = run("--fleet", str(FLEET), HOME=str(tmp_path), KUBECONFIG="", KUBERNETES_SERVICE_HOST="")
    assert code == 2
    assert "no Kubernetes cluster is configured" in said
    assert "--kubeconfig" in said


def test_a_context_that_the_kubeconfig_does_not_have_is_refused(tmp_path: Path) -> None:
    code, said = run("--kubeconfig", kubeconfig(tmp_path, "https://127.0.0.1:1"), "--context", "other")
    assert code == 2
    assert "other" in said


def test_a_priority_that_there_is_not_is_refused() -> None:
    code, said = run("--priority", "high")
    assert code == 2
    assert "'high' is not one of 'low', 'normal'" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod\nmetadata: {name: x}", "kind: must be Node"),
        ("kind: Node\nmetadata: {name: x, annotations: {local.diloco.dev/relative-speed: '7'}}", "relative-speed"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "fleet.yaml").write_text(text)
    code, said = run("--fleet", str(tmp_path / "fleet.yaml"), "--kubeconfig", kubeconfig(tmp_path, "https://127.0.0.1:1"))
    assert code == 2
    assert "fleet.yaml" in said
    assert message in said


@pytest.mark.slow
def test_an_api_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: no answer, and no other process gets the port
        taken.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{taken.getsockname()[1]}"
        code, said = run("--kubeconfig", kubeconfig(tmp_path, url), "--fleet", str(FLEET), "--state-dir", str(tmp_path / "state"))
    assert code == 1
    assert "Cannot connect" in said
