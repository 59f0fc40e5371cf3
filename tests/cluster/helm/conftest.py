"""A control plane of the chart's own: releases install and delete the CRD, under which no other test's jobs could live."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders.control_plane import ControlPlane


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the controller manager, which aggregates roles and owns what controllers write; without the scheduler: no pod runs here."""
    with ControlPlane(tmp_path_factory.mktemp("chart-plane"), scheduler=False) as running:
        yield running
