"""What actionlint cannot know of .github/workflows: the targets, versions and folders of this repository that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from diloco_cli.checks.server import OLDEST_MINOR
from versions import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def steps() -> Iterator[Any]:
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            for step in job["steps"]:
                yield pytest.param(step, id=f"{path.stem}-{name}-{step.get('name', step.get('uses', step.get('run')))}")


@pytest.mark.parametrize("step", [*steps()])
def test_a_step_runs_targets_that_exist_and_actions_pinned_by_their_commit(step: dict[str, Any]) -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))} <= {*targets}
    assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", "owner/name@" + "0" * 40))


def test_ci_tests_the_oldest_kubernetes_that_the_chart_installs_on_and_the_newest() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())["jobs"]
    oldest = re.search(r'^kubeVersion: ">=([0-9]+\.[0-9]+)\.', (ROOT / "helm/diloco-operator/Chart.yaml").read_text(), re.MULTILINE)
    assert oldest is not None
    assert jobs["cluster"]["strategy"]["matrix"]["kubernetes"] == ["", oldest[1]]
    assert (ROOT / "hack" / "kube" / f"kubernetes-{oldest[1]}" / "go.mod").exists()
    assert oldest[1] == f"1.{OLDEST_MINOR}", "doctor refuses what the chart refuses"


def test_ci_runs_what_a_landing_runs() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
    landing = re.search(r"set -- (.+?);", (ROOT / ".ci" / "run").read_text())
    assert landing is not None
    assert {*landing[1].split()} <= {*re.findall(r"run: make ([a-z-]+)", text)}
