"""Grantors are adapters behind one interface: what all of them keep to, and that nobody else knows which one it is."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import diloco_operator
import grantor_docs
import pytest
from builders.jobs import a_job, gpu_pool
from builders.pods import a_learner_pod
from diloco_operator.api.job import load
from diloco_operator.api.spec import ProvisioningMode
from diloco_operator.reconcile import project_pod
from diloco_operator.reconcile.grantors.interface import Grantor
from diloco_operator.reconcile.grantors.registry import GRANTORS, chooser_of, grantor_named, grantor_of

PACKAGE = Path(diloco_operator.__file__).parent
OWN = {"queue_name", "ProvisioningMode", "WORKLOADS"}
"""What only the adapter of a grantor may read, beside names that begin with KUEUE."""


def outside() -> Iterator[tuple[str, ast.Module]]:
    """Every module but the adapters and the API that they are chosen by."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(("api/", "reconcile/grantors/")):
            yield name, ast.parse(path.read_text())


@pytest.mark.slow
def test_no_other_module_reads_what_belongs_to_one_grantor() -> None:
    # The reasons of conditions are API, and are read as such.
    found = {
        (name, word)
        for name, tree in outside()
        for node in ast.walk(tree)
        if (word := node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "") in OWN
        or (word.startswith("KUEUE") and not word.endswith("MISSING"))
    }
    assert found == set()


@pytest.mark.parametrize("grantor", GRANTORS, ids=lambda each: each.name)
def test_grantor_is_found_by_the_name_that_its_pods_carry(grantor: Grantor) -> None:
    pod = a_learner_pod()
    pod["metadata"]["annotations"]["diloco.dev/grantor"] = grantor.name
    assert grantor_named(project_pod(pod).grantor) is grantor
    assert not inspect.isabstract(type(grantor))


def test_pod_that_names_no_grantor_that_there_is_counts_as_pinned() -> None:
    pod = a_learner_pod()
    pod["metadata"]["annotations"]["diloco.dev/grantor"] = "Somebody"
    assert project_pod(pod).grantor == ""
    assert grantor_named("") is None


@pytest.mark.parametrize("grantor", GRANTORS, ids=lambda each: each.name)
def test_grantor_whose_objects_can_be_read_is_not_missing_and_says_why_when_they_cannot(grantor: Grantor) -> None:
    assert grantor.missing({}) == ""
    for watched in grantor.watches:
        assert "no such kind" in grantor.missing({watched.resource: "no such kind"})


@pytest.mark.parametrize("mode", ProvisioningMode)
def test_each_mode_but_existing_nodes_has_one_grantor(mode: ProvisioningMode) -> None:
    spec = load(a_job().with_pools(gpu_pool(provisioning={"mode": mode.value})).build()).spec
    grants = [grantor.name for grantor in GRANTORS if grantor.grants(spec, spec.pools[0])]
    assert grants == ([] if mode is ProvisioningMode.EXISTING else [mode.value])


def test_queue_outweighs_the_mode_of_a_pool_and_chooses_the_places() -> None:
    job = a_job().with_pools(gpu_pool(provisioning={"mode": "Autoscaler"}))
    spec, queued = load(job.build()).spec, load(job.with_spec(queueName="team-a").build()).spec
    chosen, chooser = grantor_of(queued, queued.pools[0]), chooser_of(queued)
    assert chosen is chooser
    assert chosen is not None
    assert chosen.name == "Kueue"
    assert chooser_of(spec) is None


def test_table_of_rights_is_that_of_the_adapters() -> None:
    page = grantor_docs.PAGE.read_text()
    assert page == grantor_docs.written(page), "run `make docs`"
