"""The operator over the in-memory API with pods as processes: everything but training. Learners here only sleep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.jobs import a_manifest, cpu_pool, tpu_pool
from builders.local import condition, is_true, local_control_plane
from builders.nodes import a_fleet_node, a_fleet_tpu_node
from diloco_local.control_plane import Listeners
from diloco_local.faults import Fault
from diloco_local.nodes import BadNode
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile import OperatorConfig

_TPU_LABELS = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice", "cloud.google.com/gke-tpu-topology": "2x2x2"}


def sleeping(name: str = "sleeps", max: int = 1, backoff: str = "1ms", **fields: Any) -> Obj:
    pool = cpu_pool(max=max)
    pool["template"]["spec"]["containers"][0]["command"] = ["sleep", "1000"]
    learners = {"min": 1, "max": max, "restart": {"limit": 5, "window": "1h", "backoff": {"initial": backoff, "max": "1s"}}}
    return a_manifest(name, pools=[pool], spec={"learners": learners, **fields}, steps=10)


def in_state(state: str, attempt: int = 1) -> Callable[[Obj], bool]:
    return lambda unit: (unit.get("state"), unit.get("attempt")) == (state, attempt)


@pytest.mark.slow
async def test_unit_of_a_dead_node_moves_to_another(tmp_path: Path) -> None:
    home = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "home"}}}}  # of the syncer, which is never force-deleted
    prompt = OperatorConfig(unheard_tolerance=0.2)
    async with local_control_plane(tmp_path, [a_fleet_node("a"), a_fleet_node("b"), a_fleet_node("home")], config=prompt) as cluster:
        await cluster.apply(sleeping(syncer=home))
        await cluster.unit("sleeps", "cpu-0", in_state("Joining"))
        assert await cluster.node_of("sleeps", "cpu-0") == "a"
        await cluster.fail_node("a")
        unit = await cluster.unit("sleeps", "cpu-0", in_state("Joining", attempt=2))
    assert unit["slice"] == "b"


@pytest.mark.slow
async def test_units_go_only_where_the_node_affinity_of_their_template_lets_them(tmp_path: Path) -> None:
    """Placement and scheduler read it the same way, or the unit would wait for ever on a node that its pod may not have."""
    slow = {"key": "disk", "operator": "NotIn", "values": ["slow"]}
    named = {"key": "metadata.name", "operator": "In", "values": ["b", "c", "d"]}
    terms = [{"matchExpressions": [slow], "matchFields": [named]}]
    wanted = sleeping(max=3)
    wanted["spec"]["pools"][0]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    home = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "home"}}}}
    nodes = [
        a_fleet_node("a"),
        a_fleet_node("b", labels={"disk": "slow"}),
        a_fleet_node("c"),
        a_fleet_node("d", labels={"disk": "fast"}),
        a_fleet_node("home"),
    ]
    async with local_control_plane(tmp_path, nodes) as cluster:
        await cluster.apply(wanted | {"spec": {**wanted["spec"], "syncer": home}})
        for unit in ("cpu-0", "cpu-1"):
            await cluster.unit("sleeps", unit, in_state("Joining"))
        assert {await cluster.node_of("sleeps", unit) for unit in ("cpu-0", "cpu-1")} == {"c", "d"}
        placed = condition(await cluster.job("sleeps"), "Placed")["message"]
        assert placed.endswith("3 free, but not fitting: the pool asks for the node affinity of its template")


@pytest.mark.slow
async def test_node_with_unknown_devices_runs_only_units_whose_template_requests_them(tmp_path: Path) -> None:
    devices: dict[str, Any] = {"example.com/npu": 4}
    async with local_control_plane(tmp_path, [a_fleet_node("npu-node", **devices)]) as cluster:
        await cluster.apply(sleeping("plain"))
        waiting = await cluster.job("plain", lambda obj: condition(obj, "Placed").get("status") == "False")
        assert "1 host has other devices than the template requests: example.com/npu" in condition(waiting, "Placed")["message"]
        wanted = sleeping("npu")
        wanted["spec"]["pools"][0]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"example.com/npu": 4}}
        await cluster.apply(wanted)
        await cluster.unit("npu", "cpu-0", in_state("Joining"))
        assert await cluster.node_of("npu", "cpu-0") == "npu-node"


@pytest.mark.slow
async def test_programs_of_a_slice_read_the_names_of_all_its_hosts(tmp_path: Path) -> None:
    slice_ = [a_fleet_node(f"tpu-{host}", labels={**_TPU_LABELS, "cloud.google.com/gke-nodepool": "np"}, tpu=4) for host in range(2)]
    wanted = sleeping("lm", backoff="1h")
    pool = tpu_pool(max=1)
    say = 'echo "$TPU_WORKER_HOSTNAMES $TPU_PROCESS_ADDRESSES" > /dev/termination-log; exit 1'
    pool["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", say]
    wanted["spec"]["pools"] = [pool]
    wanted["spec"]["learners"]["restart"]["backoff"]["max"] = "1h"
    async with local_control_plane(tmp_path, [a_fleet_node("cpu"), *slice_]) as cluster:
        await cluster.apply(wanted)
        unit = await cluster.unit("lm", "v5p-0", in_state("BackingOff", attempt=2))
    hosts = ["lm-v5p-0-a2-0.lm", "lm-v5p-0-a2-1.lm"]  # the first failure has no pause
    assert f"{','.join(hosts)} {','.join(f'{host}:8476' for host in hosts)}" in unit["message"]


@pytest.mark.slow
async def test_job_without_hardware_says_so_and_starts_when_it_comes(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, [a_fleet_node("cpu"), a_fleet_tpu_node("tpu")]) as cluster:
        await cluster.remove_node("tpu")
        await cluster.apply(a_manifest("waits", min=1, pools=[tpu_pool(topology="2x2x1", max=1)], steps=10))
        waiting = await cluster.job("waits", lambda obj: condition(obj, "Placed").get("status") == "False")
        assert condition(waiting, "Placed")["reason"] == "InsufficientCapacity"
        await cluster.restore_nodes()
        await cluster.job("waits", is_true("Placed"))


@pytest.mark.slow
async def test_suspended_job_runs_nothing_and_deleted_one_leaves_nothing(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, [a_fleet_node("a")]) as cluster:
        await cluster.apply(sleeping())
        await cluster.unit("sleeps", "cpu-0", in_state("Joining"))
        await cluster.change("sleeps", {"suspend": True})
        await cluster.job("sleeps", is_true("Suspended"))
        assert await cluster.pods("sleeps") == []
        await cluster.change("sleeps", {"suspend": False})
        await cluster.unit("sleeps", "cpu-0", lambda unit: unit.get("state") == "Joining")
        await cluster.delete_and_wait("sleeps")
        assert await cluster.pods("sleeps") == []


@pytest.mark.slow
async def test_fault_fires_once_and_is_remembered(tmp_path: Path) -> None:
    fault = Fault("cpu-0", 0)
    on_fired: list[Any] = []
    listeners = Listeners(on_fault=on_fired.append)
    async with local_control_plane(tmp_path, [a_fleet_node("a")], faults=[fault, Fault("cpu-9", 5)], listeners=listeners) as cluster:
        await cluster.apply(sleeping())
        await cluster.unit("sleeps", "cpu-0", in_state("Joining", attempt=2))
        injector = cluster.plane.injector
        assert [fired.fault for fired in injector.fired] == [fault]
        assert injector.waiting == [Fault("cpu-9", 5)]
    assert on_fired == injector.fired


async def test_bad_node_leaves_the_state_directory_free(tmp_path: Path) -> None:
    with pytest.raises(BadNode):
        async with local_control_plane(tmp_path, [a_fleet_node("a", speed="7")]):
            pass
    async with local_control_plane(tmp_path, [a_fleet_node("a")]):
        pass
