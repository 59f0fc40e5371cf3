"""One control plane for all tests here, with the chart in it, a real autoscaler, and the real Kueue for those who ask for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from builders.control_plane import ControlPlane
from builders.growing_cluster import GrowingCluster, growing_cluster
from builders.karpenter import Karpenter, h100, karpenter, v5p, v6e
from builders.kube_jobs import install_chart
from builders.kueue import Kueue, kueue

MACHINES = (h100(price=10.0), h100("h100-cheap", price=2.0, limit=0), v6e(price=5.0), v5p(price=6.0))
"""There are no cheap ones until a test raises the limit."""


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("growth-plane")) as running:
        install_chart(running, progressInterval="500ms", deadNodeForceDelete="1s")
        yield running


@pytest.fixture(scope="session")
def autoscaler(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Karpenter]:
    """Karpenter with a node pool for each of `MACHINES`; none of them is there."""
    with karpenter(plane, tmp_path_factory.mktemp("karpenter"), MACHINES) as running:
        yield running


@pytest.fixture(scope="session")
def queues(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    """Kueue without any queue."""
    with kueue(plane, tmp_path_factory.mktemp("kueue")) as running:
        yield running


@pytest.fixture
async def cluster(plane: ControlPlane, autoscaler: Karpenter, tmp_path: Path) -> AsyncIterator[GrowingCluster]:
    """Empty but for the node for syncers. Karpenter's machines run what is bound to them."""
    async with growing_cluster(plane, tmp_path, autoscaler) as found:
        yield found
