"""Which definitions of DiLoCoJob this operator can work with."""

from __future__ import annotations

import asyncio
import copy

import pytest
from builders.virtual_time import run_virtual, until
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import CRD_NAME, build_crd
from diloco_operator.kube.client import Forbidden, Obj, Resource
from diloco_operator.operator.crd_check import CrdCheck, missing_parts, problem_of


def installed() -> Obj:
    crd = copy.deepcopy(build_crd())
    crd["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    return crd


def schema(crd: Obj) -> Obj:
    found: Obj = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return found


def test_the_one_that_belongs_to_it() -> None:
    assert problem_of(installed()) == ""


def test_a_newer_one_with_more_fields() -> None:
    crd = installed()
    schema(crd)["spec"]["properties"]["later"] = {"type": "string"}
    crd["spec"]["versions"].insert(0, {"name": "v1", "served": True, "schema": {}})
    assert problem_of(crd) == ""


def test_an_older_one_without_a_field_is_named_with_the_field_and_what_to_do() -> None:
    crd = installed()
    del schema(crd)["status"]["properties"]["units"]["items"]["properties"]["endedAttempt"]
    del schema(crd)["spec"]["properties"]["training"]["properties"]["grace"]
    assert sorted(missing_parts(crd)) == ["spec.training.grace", "status.units[].endedAttempt"]
    assert "crds.enabled=true" in problem_of(crd)


def test_an_older_one_without_a_value_of_an_enumeration() -> None:
    crd = installed()
    capacity = schema(crd)["spec"]["properties"]["pools"]["items"]["properties"]["capacity"]
    capacity["enum"] = [value for value in capacity["enum"] if value != "Spot"]
    assert list(missing_parts(crd)) == ["the value Spot of spec.pools[].capacity"]


def test_one_without_the_status_subresource() -> None:
    crd = installed()
    del crd["spec"]["versions"][0]["subresources"]["status"]
    assert list(missing_parts(crd)) == ["the subresource status"]


@pytest.mark.parametrize("field", ["name", "served"])
def test_one_that_does_not_serve_the_version(field: str) -> None:
    crd = installed()
    crd["spec"]["versions"][0][field] = {"name": "v1", "served": False}[field]
    assert list(missing_parts(crd)) == ["version v1alpha1"]


def test_one_that_is_not_served_yet() -> None:
    crd = installed()
    crd["status"]["conditions"][0]["status"] = "False"
    assert "Established" in problem_of(crd)


def test_many_missing_fields_are_cut_short() -> None:
    crd = installed()
    schema(crd)["status"]["properties"].clear()
    assert "more; install" in problem_of(crd)


@pytest.mark.slow
def test_it_checks_until_the_definition_exists_and_logs_each_problem_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        forbidden = True

        def before(verb: str, resource: Resource, namespace: str, name: str) -> None:
            if forbidden and resource == names.CUSTOM_RESOURCES and verb == "get":
                raise Forbidden(403, "Forbidden", "no")

        api = MemoryApi(before=before)
        check = CrdCheck(api)
        assert check.problem
        task = asyncio.create_task(check.run())
        await asyncio.sleep(60)
        assert "may not read" in check.problem
        forbidden = False
        await asyncio.sleep(60)
        assert f"no CustomResourceDefinition {CRD_NAME}" in check.problem
        await api.create(names.CUSTOM_RESOURCES, build_crd())
        await check.wait_good()
        assert check.problem == ""
        await api.delete(names.CUSTOM_RESOURCES, "", CRD_NAME)
        await until(lambda: check.problem, within=400)  # it continues to check
        task.cancel()

    run_virtual(scenario())
    assert len([record for record in caplog.records if "not ready" in record.message]) == 3


def test_a_definition_that_goes_is_noticed_at_once_when_something_else_shows_it() -> None:
    async def scenario() -> None:
        api = MemoryApi()
        await api.create(names.CUSTOM_RESOURCES, build_crd())
        check = CrdCheck(api)
        task = asyncio.create_task(check.run())
        await check.wait_good()
        await api.delete(names.CUSTOM_RESOURCES, "", CRD_NAME)
        check.check_soon()
        await until(lambda: "no CustomResourceDefinition" in check.problem, within=1)
        await api.create(names.CUSTOM_RESOURCES, build_crd())
        check.check_soon()
        await until(lambda: check.problem == "", within=1)
        task.cancel()

    run_virtual(scenario())
