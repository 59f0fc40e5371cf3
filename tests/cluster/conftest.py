"""A control plane with the chart in it, on which jobs train."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders.control_plane import ControlPlane
from builders.kube_jobs import install_chart


@pytest.fixture(scope="session")
def jobs_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a plane for tests of jobs alone: the chart is in it, its API server is stopped, and nodes fail. These count as lost after 25 s,
    which is half of the usual time and more than two heartbeats. Tests that use it are in the xdist group "many-learners", so one process
    has it."""
    with ControlPlane(tmp_path_factory.mktemp("jobs-plane"), audit=True, node_grace="25s") as running:
        install_chart(running, progressInterval="500ms", deadNodeForceDelete="1s")
        yield running


@pytest.fixture
def namespaces(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Three of them."""
    plane = control_plane
    made = [plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "contended-"}}) for _ in range(3)]
    found = [each["metadata"]["name"] for each in made]
    for name in found:
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=180s")
    yield found
    plane.kubectl("delete", "namespace", *found, "--wait=false")
