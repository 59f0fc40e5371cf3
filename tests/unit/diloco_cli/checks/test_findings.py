"""What the doctor finds, in what was read of a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders.dra import a_device_slice, a_dra_node
from builders.facts import NOW, TEAM, a_class, a_deployment, a_lease, a_namespace, a_service, an_election, facts, of, one, the_crd, worst
from builders.job_cases import AT_HOME
from builders.jobs import Obj, a_job
from builders.nodes import a_gpu_node, a_node, a_tpu_node
from click import Context
from diloco_cli.checks import Check, Facts, Level, Reach, Review, Unreadable, examine
from diloco_cli.checks.examination import CHECKS
from diloco_cli.checks.rights import COMMANDS, caller_rights, operator_rights
from diloco_cli.commands.doctor import as_json, as_text
from diloco_cli.diloco import main as diloco_main
from diloco_cli.kubectl import main as kubectl_main
from diloco_operator.api import names
from diloco_operator.kube.client import Resource
from diloco_operator.kube.lease import LEASES
from diloco_operator.reconcile import OperatorConfig

GFD = "nvidia.com/gpu.product"


def a_gpu_job(**pool: Any) -> Obj:
    return (
        a_job()
        .with_learners(1, 1)
        .with_pool("h100", **{"accelerator": "nvidia-h100-80gb", "processesPerHost": 8, "max": 1, **pool})
        .in_namespace(TEAM)
        .build()
    )


def with_job(job: Obj | None = None, objects: dict[Resource, Any] | None = None, **changed: Any) -> Facts:
    return facts(objects, job=job or a_gpu_job(), **changed)


# --- as a whole -----------------------------------------------------------------------------------------------------------
def test_nothing_is_wrong_with_a_good_cluster_and_each_check_says_so() -> None:
    found = examine(facts())
    assert {each.level for each in found} == {Level.OK}, as_text(found)
    of_jobs = {Check.JOB, Check.POOLS, Check.VOLUME, Check.SYNCER}
    assert {each.check for each in found} == set(Check) - of_jobs
    assert {row.check for row in CHECKS} == set(Check)


def test_without_a_namespace_only_the_cluster_is_looked_at() -> None:
    found = {each.check for each in examine(facts(namespace=""))}
    assert found == {row.check for row in CHECKS if row.scope.name == "CLUSTER"}


def test_what_may_not_be_read_is_said_by_each_check_that_needs_it_and_the_others_go_on() -> None:
    hidden = Unreadable("nodes of the cluster", 'User "ana" cannot list resource "nodes"')
    found = [each for each in examine(facts({names.NODES: hidden})) if each.level is not Level.OK]
    assert [each.check for each in found] == [Check.CLOCKS, Check.NODES, Check.DRIVERS, Check.DEVICES, Check.POD_SECURITY]
    assert {each.level for each in found} == {Level.WARNING}
    assert {each.message for each in found} == {'not checked: User "ana" cannot list resource "nodes"'}


def test_the_text_has_a_line_for_each_finding_and_the_json_its_parts() -> None:
    found = examine(facts({names.STORAGE_CLASSES: []}))
    lines = as_text(found).splitlines()
    assert len(lines) == len(found) + 1
    assert lines[-1] == "1 error, 0 warnings"
    [line] = [each for each in lines if each.startswith("error")]
    assert line.startswith(
        "error    storage-class    cluster: no StorageClass is the default: jobs that name none do not start. What helps: "
    )
    read = json.loads(as_json(found))
    assert (read["errors"], read["warnings"]) == (1, 0)
    [bad] = [each for each in read["findings"] if each["level"] == "error"]
    assert (bad["check"], bad["where"]) == ("storage-class", "cluster")


# --- the API server and the operator --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changed", "check", "level", "text"),
    [
        pytest.param(
            {"kubernetes": {"major": "1", "minor": "33+", "gitVersion": "v1.33.2-eks"}},
            Check.KUBERNETES,
            Level.ERROR,
            "v1.33.2-eks, and jobs need 1.34",
            id="old Kubernetes",
        ),
        pytest.param({"ahead": 45.0}, Check.CLOCKS, Level.WARNING, "its clock is 45 s behind the API server's", id="this machine's clock"),
        pytest.param(
            {"groups": frozenset({"security.openshift.io"})}, Check.USERS, Level.ERROR, "OpenShift assigns users to pods", id="OpenShift"
        ),
    ],
)
def test_the_api_server_and_its_clock(changed: dict[str, Any], check: Check, level: Level, text: str) -> None:
    finding = one(facts(**changed), check)
    assert (finding.level, text in finding.message) == (level, True), finding


def test_openshift_is_well_once_the_operator_assigns_no_users() -> None:
    found = facts(groups=frozenset({"security.openshift.io"}), config=OperatorConfig(assign_users=False))
    assert one(found, Check.USERS).level is Level.OK


def test_kubelets_whose_clocks_differ_are_named_and_those_beyond_what_certificates_bear_are_errors() -> None:
    leases = [a_lease("cpu-0", 60.0), a_lease("gpu-0", -4000.0)]
    ahead, behind = of(facts({LEASES: leases}), Check.CLOCKS)
    assert (ahead.level, ahead.where, ahead.message) == (Level.WARNING, "node cpu-0", "its clock is 60 s ahead of the API server's")
    assert (behind.level, behind.where) == (Level.ERROR, "node gpu-0")
    assert "certificates of jobs are not valid there" in behind.message


def test_a_node_that_is_not_ready_is_silent_and_not_behind() -> None:
    found = facts({names.NODES: [a_node("cpu-0", ready=False)], LEASES: [a_lease("cpu-0", -4000.0)]})
    assert one(found, Check.CLOCKS).level is Level.OK


@pytest.mark.parametrize(
    ("deployments", "level", "text"),
    [
        pytest.param([], Level.ERROR, "no Deployment of the operator was found", id="none"),
        pytest.param([a_deployment("--watch-namespace=other")], Level.ERROR, "no operator watches namespace team", id="elsewhere"),
        pytest.param([a_deployment(ready=0)], Level.ERROR, "0 of 1 replicas are ready", id="not ready"),
        pytest.param([a_deployment(version="0.9")], Level.WARNING, "it is of version 0.9, and this program of 1.0", id="another version"),
        pytest.param([a_deployment("--watch-namespace=team")], Level.OK, "1 of 1 replicas are ready, version 1.0", id="watches"),
    ],
)
def test_the_operator(deployments: list[Obj], level: Level, text: str) -> None:
    finding = one(facts({names.DEPLOYMENTS: deployments}), Check.OPERATOR)
    assert (finding.level, text in finding.message) == (level, True), finding


@pytest.mark.parametrize(
    ("elections", "level", "text"),
    [
        pytest.param(
            [an_election()], Level.OK, "diloco-operator-7c9f-x2b4d_1 leads by the lease diloco-system/diloco-operator", id="leads"
        ),
        pytest.param(
            [an_election("b-diloco-operator-7c9f-x2b4d_1")],
            Level.ERROR,
            "the lease diloco-system/diloco-operator is held by b-diloco-operator-7c9f-x2b4d_1, of another Deployment",
            id="of another release",
        ),
        pytest.param([an_election(ago=26)], Level.ERROR, "x2b4d_1 held it last, 26 s ago", id="expired"),
        pytest.param([an_election("")], Level.ERROR, "no replica holds the lease diloco-system/diloco-operator", id="released"),
        pytest.param([], Level.ERROR, "no replica holds the lease diloco-system/diloco-operator", id="none"),
        pytest.param(Unreadable("leases", "forbidden"), Level.WARNING, "not checked: forbidden", id="unreadable"),
    ],
)
def test_the_lease(elections: list[Obj] | Unreadable, level: Level, text: str) -> None:
    finding = one(facts(elections=elections), Check.LEASE)
    assert (finding.level, text in finding.message) == (level, True), finding


def test_the_lease_is_the_one_that_the_operator_names() -> None:
    deployment = a_deployment("--leader-elect-namespace=leases", "--leader-elect-lease-name=elected")
    assert "the lease leases/elected" in one(facts({names.DEPLOYMENTS: [deployment]}), Check.LEASE).message
    alone = facts({names.DEPLOYMENTS: [a_deployment("--no-leader-elect")]}, elections=[])
    assert one(alone, Check.LEASE).message == "its only replica needs no election"
    for deployments in ([], [a_deployment(ready=0)]):  # the check of the operator says what is wrong
        assert one(facts({names.DEPLOYMENTS: deployments}, elections=[]), Check.LEASE).level is Level.OK


def test_two_operators_on_one_namespace_are_told() -> None:
    found = of(facts({names.DEPLOYMENTS: [a_deployment(), a_deployment(namespace="other")]}), Check.OPERATOR)
    assert found[-1].message == "2 operators watch namespace team: both write for every job"


def test_a_definition_of_another_version_is_told_with_what_it_lacks() -> None:
    crd = the_crd()
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["retry"]
    finding = one(facts({names.CUSTOM_RESOURCES: [crd]}), Check.CRD)
    assert (finding.level, "it lacks spec.retry" in finding.message) == (Level.ERROR, True)
    assert "there can be no jobs" in one(facts({names.CUSTOM_RESOURCES: []}), Check.CRD).message


def test_an_address_of_the_other_family_keeps_kubelets_from_the_operator() -> None:
    deployment = a_deployment("--health-address=0.0.0.0:8081")
    finding = one(facts({names.SERVICES: [a_service("IPv6")], names.DEPLOYMENTS: [deployment]}), Check.ADDRESS_FAMILY)
    assert (finding.level, finding.where) == (Level.ERROR, "deployment diloco-system/diloco-operator")
    assert "--health-address=0.0.0.0:8081 is no address of this cluster (IPv6)" in finding.message
    dual = facts({names.SERVICES: [a_service("IPv6", "IPv4")], names.DEPLOYMENTS: [deployment]})
    assert one(dual, Check.ADDRESS_FAMILY).message == "addresses are IPv6, IPv4"
    everywhere = facts({names.SERVICES: [a_service("IPv6")], names.DEPLOYMENTS: [a_deployment("--health-address=:8081")]})
    assert one(everywhere, Check.ADDRESS_FAMILY).level is Level.OK


# --- rights ---------------------------------------------------------------------------------------------------------------
def test_rights_that_are_missing_are_named_one_by_one() -> None:
    operators = [Review(right, str(right) != "update dilocojobs/status") for right in operator_rights(TEAM)]
    finding = one(facts(operator_rights=operators), Check.OPERATOR_RIGHTS)
    assert (finding.level, finding.message) == (Level.ERROR, "the operator may not update dilocojobs/status")
    own = [Review(right, right.subresource not in ("eviction", "exec")) for right in caller_rights(TEAM)]
    drain, *export = of(facts(own_rights=own), Check.YOUR_RIGHTS)
    assert (drain.level, drain.message) == (Level.WARNING, "you may not create pods/eviction: needed for drain")
    assert [each.message for each in export] == [
        f"you may not {verb} pods/exec: needed for export, snapshots" for verb in ("get", "create")
    ]


def test_a_right_of_the_cluster_is_told_as_one() -> None:
    own = [Review(right, right.resource != names.NODES) for right in caller_rights(TEAM)]
    found = {(each.where, each.message) for each in of(facts(own_rights=own), Check.YOUR_RIGHTS)}
    assert ("cluster", "you may not list nodes: needed for explain, plan, submit, init") in found


def test_every_command_that_goes_to_a_cluster_has_its_rights_told() -> None:
    groups = (kubectl_main.main, diloco_main.main)
    commands = [(name, group.get_command(Context(group), name)) for group in groups for name in group.list_commands(Context(group))]
    going = {name for name, command in commands if command is not None and any(each.name == "kubeconfig" for each in command.params)}
    assert {each for each in COMMANDS if not each.startswith("kubectl ")} == going - {"doctor"}


# --- nodes ----------------------------------------------------------------------------------------------------------------
def test_hosts_are_counted_by_kind_and_unknown_products_are_told_together() -> None:
    unknown = [a_node(f"b999-{index}", labels={GFD: "NVIDIA-B999"}, devices={"nvidia.com/gpu": "8"}) for index in range(2)]
    there, odd = of(facts({names.NODES: [a_node("cpu-0"), a_tpu_node("t-0"), a_gpu_node("gpu-0"), *unknown]}), Check.NODES)
    assert there.message == "hosts: 1 of cpu, 1 of nvidia-h100-80gb, 1 of tpu-v5p 2x2x1"
    assert (odd.level, odd.where) == (Level.WARNING, "nodes b999-0 and 1 more")
    assert "2 nodes have nvidia.com/gpu with nvidia.com/gpu.product=NVIDIA-B999, which is not in the catalogue" in odd.message
    assert "a row for nvidia.com/gpu.product=NVIDIA-B999" in odd.remedy


def test_a_device_plugin_that_does_not_run_is_told() -> None:
    node = a_node("gpu-1", labels={GFD: "NVIDIA-H100-80GB-HBM3"})
    finding = one(facts({names.NODES: [node]}), Check.DRIVERS)
    assert finding.message == "1 node is nvidia-h100-80gb by label, but offers no nvidia.com/gpu"


def test_gpus_that_only_dra_offers_need_no_device_plugin() -> None:
    found = facts({names.NODES: [a_dra_node("gpu-1")], names.RESOURCE_SLICES: [a_device_slice("gpu-1")]})
    assert one(found, Check.DRIVERS).message == "1 of 1 hosts with a known accelerator offer it"
    assert one(found, Check.NODES).message == "hosts: 1 of nvidia-h100-80gb"
    assert "1 of cpu" in one(facts({names.NODES: [a_dra_node("gpu-1")]}), Check.NODES).message


def test_without_the_right_to_list_resource_slices_nodes_are_counted_all_the_same() -> None:
    hidden = Unreadable("resourceslices of the cluster", "forbidden")
    found = examine(facts({names.NODES: [a_gpu_node("gpu-1")], names.RESOURCE_SLICES: hidden}))
    told = [(each.level, each.message) for each in found if each.check is Check.NODES]
    assert told == [
        (Level.WARNING, "you may not list resource slices: GPUs that only DRA offers are not seen"),
        (Level.OK, "hosts: 1 of nvidia-h100-80gb"),
    ]


def test_nvlink_domains_want_nvidias_driver() -> None:
    rack = [a_gpu_node(f"gb-{index}", kind="nvidia-gb200", gpus=4, labels={"nvidia.com/gpu.clique": "c.1"}) for index in range(2)]
    told = [(each.level, each.message) for each in examine(facts({names.NODES: rack})) if each.check is Check.DRIVERS]
    (level, message), offered = told
    assert (level, "the cluster has no ComputeDomain" in message) == (Level.WARNING, True)
    assert offered == (Level.OK, "2 of 2 hosts with a known accelerator offer it")
    assert one(facts({names.NODES: rack}, groups=frozenset({"resource.nvidia.com"})), Check.DRIVERS).level is Level.OK


def test_devices_that_nobody_knows_are_told_and_those_of_networks_are_not() -> None:
    node = a_node("n-0", devices={"vpc.amazonaws.com/pod-eni": "9", "acme.com/npu": "4"})
    finding = one(facts({names.NODES: [node]}), Check.DEVICES)
    assert (finding.level, "1 node offers acme.com/npu" in finding.message) == (Level.WARNING, True)
    assert "add it to incidentalResources of the chart: acme.com/npu" in finding.remedy


# --- storage --------------------------------------------------------------------------------------------------------------
def test_a_class_that_a_job_or_the_operator_names_must_exist() -> None:
    config = OperatorConfig(storage_class_name="gp3")
    finding = one(facts({names.STORAGE_CLASSES: [a_class("gp2")]}, config=config), Check.STORAGE_CLASS)
    assert finding.message == "names StorageClass gp3, which the cluster does not have; there are: gp2"
    assert one(facts({names.STORAGE_CLASSES: [a_class("gp3")]}, config=config), Check.STORAGE_CLASS).level is Level.OK
    job = a_gpu_job()
    job["spec"]["syncer"] = {"storage": {"className": "fast"}}
    assert one(with_job(job), Check.STORAGE_CLASS).where == "job bytes-lm"


def test_two_default_classes_are_told() -> None:
    found = facts({names.STORAGE_CLASSES: [a_class("a", default=True), a_class("b", default=True)]})
    assert one(found, Check.STORAGE_CLASS).where == "storageclass a and 1 more"


# --- the namespace --------------------------------------------------------------------------------------------------------
def a_quota(used: Obj | None = None, **more: Any) -> Obj:
    hard = more.pop("hard")
    return {"metadata": {"name": "team"}, "spec": {"hard": hard, **more}, "status": {"used": used or {}}}


def test_a_quota_that_counts_limits_refuses_the_syncer_until_the_chart_sets_some() -> None:
    quotas = {names.QUOTAS: [a_quota(hard={"limits.memory": "1Ti"})]}
    finding = one(facts(quotas), Check.QUOTA)
    assert (finding.level, finding.where) == (Level.ERROR, "resourcequota team")
    assert finding.message == "it counts limits.memory, and the syncer sets none: the API server refuses its pods"
    assert finding.remedy.startswith("set config.syncerMemoryLimit of the chart")
    assert one(facts(quotas, config=OperatorConfig(syncer_memory_limit="8Gi")), Check.QUOTA).level is Level.OK
    defaults = {"metadata": {"name": "d"}, "spec": {"limits": [{"type": "Container", "default": {"memory": "1Gi"}}]}}
    assert one(facts({**quotas, names.LIMIT_RANGES: [defaults]}), Check.QUOTA).level is Level.OK


def test_a_pool_whose_template_sets_no_requests_is_told() -> None:
    found = with_job(objects={names.QUOTAS: [a_quota(hard={"requests.cpu": "100"})]})
    assert one(found, Check.QUOTA).message == "it counts requests.cpu, and pool h100 sets none: the API server refuses its pods"


def test_a_quota_without_room_for_a_unit_is_told() -> None:
    quota = a_quota({"requests.nvidia.com/gpu": "12"}, hard={"requests.nvidia.com/gpu": "16"})
    finding = one(with_job(objects={names.QUOTAS: [quota]}), Check.QUOTA)
    assert (finding.level, finding.message) == (
        Level.WARNING,
        "requests.nvidia.com/gpu: 12 of 16 are used, and a unit of pool h100 takes 8",
    )
    assert one(facts({names.QUOTAS: [a_quota({"pods": "4"}, hard={"pods": "4"})]}), Check.QUOTA).message.startswith("pods: 4 of 4")


def test_quotas_of_some_pods_only_are_left_alone() -> None:
    assert one(facts({names.QUOTAS: [a_quota(hard={"limits.cpu": "1"}, scopes=["BestEffort"])]}), Check.QUOTA).level is Level.OK


def test_a_namespace_that_refuses_programs_on_tpus_is_told() -> None:
    strict = a_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
    finding = one(facts({names.NAMESPACES: [strict], names.NODES: [a_tpu_node("t-0")]}), Check.POD_SECURITY)
    assert (finding.level, finding.message) == (
        Level.WARNING,
        "it enforces restricted, and programs on tpu-v5p need privileged: pods are refused",
    )
    assert one(with_job(objects={names.NAMESPACES: [strict]}), Check.POD_SECURITY).level is Level.OK
    tpu = a_job().with_learners(1, 1).with_pool("v5p").in_namespace(TEAM).build()
    assert one(with_job(tpu, {names.NAMESPACES: [strict]}), Check.POD_SECURITY).level is Level.ERROR
    tpu["spec"]["pools"][0]["template"]["spec"]["securityContext"] = {"runAsNonRoot": True}
    assert one(with_job(tpu, {names.NAMESPACES: [strict]}), Check.POD_SECURITY).level is Level.OK


def test_a_mesh_that_injects_proxies_is_told_until_the_templates_stay_out() -> None:
    istio = {names.NAMESPACES: [a_namespace({"istio-injection": "enabled"})]}
    finding = one(facts(istio), Check.SERVICE_MESH)
    assert (finding.level, finding.remedy) == (Level.WARNING, 'set sidecar.istio.io/inject: "false" in metadata of the templates')
    out = {"labels": {"sidecar.istio.io/inject": "false"}}
    job = a_gpu_job()
    job["spec"]["pools"][0]["template"]["metadata"] = out
    assert one(with_job(job, istio), Check.SERVICE_MESH).level is Level.WARNING, "the syncer's template says nothing"
    job["spec"]["syncer"] = {"template": {"metadata": out, "spec": {}}}
    assert one(with_job(job, istio), Check.SERVICE_MESH).level is Level.OK
    linkerd = a_namespace(annotations={"linkerd.io/inject": "enabled"})
    assert one(facts({names.NAMESPACES: [linkerd]}), Check.SERVICE_MESH).message.startswith("Linkerd")


# --- one job --------------------------------------------------------------------------------------------------------------
def test_a_job_that_no_operator_has_seen() -> None:
    assert one(with_job(), Check.JOB).message == "no operator has seen it: it has no status"


def test_a_jobs_own_words_are_shown() -> None:
    job = a_gpu_job()
    told = {"type": "Training", "status": "False", "reason": "VolumePending", "message": "no class"}
    job["status"] = {
        "state": "Starting",
        "reason": "VolumePending",
        "conditions": [{**told, "observedGeneration": 1, "lastTransitionTime": "2026-11-20T21:00:00Z"}],
    }
    finding = one(with_job(job), Check.JOB)
    assert (finding.level, finding.message) == (Level.WARNING, "Starting: VolumePending: no class")


@pytest.mark.parametrize(
    ("nodes", "level", "text"),
    [
        pytest.param([a_gpu_node("gpu-0")], Level.OK, "the cluster has 1 slice of nvidia-h100-80gb", id="there"),
        pytest.param([a_node("cpu-0")], Level.ERROR, "no node is one of nvidia-h100-80gb", id="none"),
        pytest.param([a_gpu_node("gpu-0", cordoned=True)], Level.WARNING, "1 of 1 slice", id="cordoned"),
        pytest.param(
            [a_node("x", labels={GFD: "NVIDIA-B999"}, devices={"nvidia.com/gpu": "8"})],
            Level.ERROR,
            "(1 with nvidia.com/gpu with",
            id="unknown product",
        ),
    ],
)
def test_nodes_for_a_pool(nodes: list[Obj], level: Level, text: str) -> None:
    finding = one(with_job(objects={names.NODES: nodes}), Check.POOLS)
    assert (finding.level, text in finding.message) == (level, True), finding


def test_a_pool_for_which_an_autoscaler_brings_nodes_needs_none_yet() -> None:
    job = a_gpu_job(provisioning={"mode": "Autoscaler"})
    assert one(with_job(job, {names.NODES: []}), Check.POOLS).level is Level.OK


def a_claim(phase: str, **spec: str) -> Obj:
    return {"metadata": {"name": "bytes-lm-syncer"}, "spec": spec, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("claims", "level", "text"),
    [
        pytest.param([], Level.WARNING, "it does not exist yet", id="none"),
        pytest.param([a_claim("Bound")], Level.OK, "it is bound", id="bound"),
        pytest.param([a_claim("Lost")], Level.ERROR, "its volume is lost", id="lost"),
        pytest.param([a_claim("Pending")], Level.ERROR, "Pending without a StorageClass", id="no class"),
        pytest.param([a_claim("Pending", storageClassName="gp3")], Level.WARNING, "it is Pending: no room", id="pending"),
    ],
)
def test_the_volume_of_the_syncer(claims: list[Obj], level: Level, text: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "no room"}
    pod = {"metadata": {"name": "bytes-lm-syncer"}, "spec": {}, "status": {"phase": "Pending", "conditions": [condition]}}
    finding = one(with_job(objects={names.VOLUME_CLAIMS: claims, names.PODS: [pod]}), Check.VOLUME)
    assert (finding.level, text in finding.message) == (level, True), finding


def test_nothing_of_a_job_that_waits_for_hardware_is_missing() -> None:
    job = a_gpu_job()
    job["status"] = {"state": "Queued", "reason": "WaitingForHardware", "conditions": []}
    for check in (Check.VOLUME, Check.SYNCER):
        finding = one(with_job(job), check)
        assert (finding.level, finding.message) == (Level.OK, "it comes with the first slice of the job")
    assert one(with_job(), Check.SYNCER).level is Level.WARNING


def test_whether_a_learner_reaches_the_syncer() -> None:
    pod = {names.PODS: [{"metadata": {"name": "bytes-lm-syncer"}, "spec": {}, "status": {"phase": "Running"}}]}
    assert one(with_job(objects=pod), Check.SYNCER).message == "pod lm-h100-0-a1-0 reaches it at lm-syncer.lm.team.svc:7077"
    refused = Reach("p", "a:7077", "TimeoutError: timed out")
    finding = one(with_job(objects=pod, reach=refused), Check.SYNCER)
    assert (finding.level, finding.message) == (Level.ERROR, "pod p does not reach it at a:7077: TimeoutError: timed out")
    assert one(with_job(objects=pod, reach=None), Check.SYNCER).level is Level.WARNING
    waits: Obj = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    pod[names.PODS][0]["status"] = {"phase": "Pending", **waits}
    assert one(with_job(objects=pod), Check.SYNCER).message == "it is Pending: ImagePullBackOff"


def test_a_pool_of_another_cluster_is_not_looked_for_here() -> None:
    job = a_job().with_learners(1, 2).with_gpu_pool(max=1, processesPerHost=8).in_namespace(TEAM)
    job = job.with_pool("tokyo", accelerator="tpu-v6e", topology="2x2", cluster="tokyo", max=1)
    strict = a_namespace({"pod-security.kubernetes.io/enforce": "restricted"})  # programs on GPUs may run so, and those on TPUs not
    found = with_job(job.build(), {names.NAMESPACES: [strict]})
    assert [(pool.level, pool.where) for pool in of(found, Check.POOLS)] == [(Level.OK, "pool h100"), (Level.OK, "pool tokyo")]
    assert one(found, Check.POD_SECURITY).level is Level.OK
    short = {"name": "tokyo", "cluster": "tokyo", "reason": "NoFreeSlice", "message": "no slice of tpu-v6e 2x2 is free"}
    of_tokyo = of(with_job(job.with_status(pools=[short]).build()), Check.POOLS)[1]
    assert (of_tokyo.level, of_tokyo.message) == (Level.WARNING, "NoFreeSlice: no slice of tpu-v6e 2x2 is free")


def test_a_part_needs_no_volume_and_no_syncer_here_but_its_learners_reach_the_one_at_home() -> None:
    job = a_gpu_job()
    job["spec"]["syncer"] = {"at": AT_HOME}
    template = job["spec"]["pools"][0]["template"]
    template["metadata"] = {"labels": {"sidecar.istio.io/inject": "false"}}
    template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    objects = {
        names.STORAGE_CLASSES: [],
        names.QUOTAS: [a_quota(hard={"limits.memory": "1Ti"})],
        names.NAMESPACES: [a_namespace({"istio-injection": "enabled"})],
    }
    found = examine(with_job(job, objects))
    assert {each.check for each in found} == set(Check) - {Check.STORAGE_CLASS, Check.VOLUME}
    assert [each for each in found if each.level is not Level.OK and each.check is not Check.JOB] == []
    unreached = one(with_job(job, reach=Reach("p", "syncer.example.com:7077", "TimeoutError: timed out")), Check.SYNCER)
    assert (unreached.level, unreached.where) == (Level.ERROR, "syncer at home")
    assert "extraEgress" in unreached.remedy


def test_only_errors_are_errors() -> None:
    assert worst(facts()) is Level.OK
    assert worst(facts(ahead=45.0)) is Level.WARNING
    assert worst(facts({names.DEPLOYMENTS: []})) is Level.ERROR
    assert facts().now == NOW
