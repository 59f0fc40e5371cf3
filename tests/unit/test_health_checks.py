"""What Argo CD and Flux make of a job's state, by the rules that the guide gives them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from builders.documents import fences
from builders.jobs import Obj
from cel import cel
from diloco_operator.api import names
from diloco_operator.api.state import JobState
from lupa import LuaRuntime

# State -> health for Argo CD, result for Flux. A Kustomization does not wait for hardware.
HEALTH = {
    JobState.NOT_ACCEPTED: ("Degraded", "failed"),
    JobState.QUEUED: ("Progressing", "current"),
    JobState.STARTING: ("Progressing", "current"),
    JobState.TRAINING: ("Healthy", "current"),
    JobState.DEGRADED: ("Degraded", "current"),
    JobState.SUSPENDED: ("Suspended", "current"),
    JobState.COMPLETE: ("Healthy", "current"),
    JobState.FAILED: ("Degraded", "failed"),
}


def in_state(state: JobState, seen: int = 3) -> Obj:
    """A job of generation 3. `seen`: the generation that its status was decided on."""
    return {"metadata": {"generation": 3}, "status": {"state": state.value, "reason": "Why", "observedGeneration": seen}}


def blocks() -> tuple[Obj, Obj]:
    """What the guide gives to Argo CD and to Flux."""
    found = [yaml.safe_load(text) for language, text, heading, _ in fences("docs/guide/status.md") if heading == "argo-cd-and-flux"]
    argo_cd, flux = found
    return argo_cd, flux


def in_argo_cd(job: Obj) -> tuple[str, str]:
    """Health and message. Argo CD gives a script the object as `obj`."""
    [(key, script)] = blocks()[0]["data"].items()
    assert key == f"resource.customizations.health.{names.GROUP}_{names.KIND}"
    lua: Any = LuaRuntime()
    lua.globals().obj = lua.table_from(job, recursive=True)
    found = lua.execute(script)
    return found.status, found.message


def in_flux(job: Obj) -> str:
    """The first expression that holds, in Flux's order."""
    [check] = blocks()[1]["spec"]["healthCheckExprs"]
    assert (check.pop("apiVersion"), check.pop("kind")) == (names.API_VERSION, names.KIND)
    return next((result for result in ("inProgress", "failed", "current") if cel.compile(check[result]).execute(job)), "")


def test_every_state_has_a_health() -> None:
    assert HEALTH.keys() == set(JobState)


@pytest.mark.parametrize("state", JobState)
def test_state_is_read_as_the_guide_says(state: JobState) -> None:
    health, result = HEALTH[state]
    assert in_argo_cd(in_state(state)) == (health, "Why")
    assert in_flux(in_state(state)) == result


@pytest.mark.parametrize("state", JobState)
def test_state_of_an_earlier_spec_is_no_health(state: JobState) -> None:
    assert in_argo_cd(in_state(state, seen=2))[0] == "Progressing"
    assert in_flux(in_state(state, seen=2)) == "inProgress"


def test_job_that_the_operator_has_not_seen_is_in_progress() -> None:
    unseen = {"metadata": {"generation": 1}}
    assert in_argo_cd(unseen) == ("Progressing", "the operator has not seen this spec yet")
    assert in_flux(unseen | {"status": {}}) == "inProgress"
