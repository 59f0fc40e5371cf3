"""What kind of slice a node belongs to, and which kinds a unit can be made of."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import Obj, cpu_pool, gpu_pool, template, tpu_pool
from builders.nodes import a_gpu_node, a_node, a_tpu_node
from diloco_operator.accelerators.labels import GKE_TPU
from diloco_operator.api.spec import Pool
from diloco_operator.fleet import Shape, project_node, shape_of
from diloco_operator.fleet.slice_kinds import kind_of, kinds_for, kinds_with_other_devices, silent_kinds, slice_hosts, uses_ports_of_host
from diloco_operator.fleet.slices import SliceKind

H100 = "nvidia-h100-80gb"
NPU, FPGA = ("example.com/npu", 4), ("example.com/fpga", 1)


def kinds(accelerator: str, *sizes: int) -> list[SliceKind]:
    return [SliceKind(accelerator, "", size) for size in sizes]


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (a_node("n"), SliceKind("cpu", "", 0)),
        (a_node("n", devices={"example.com/npu": "4", "rdma/hca": "1"}), SliceKind("cpu", devices=(NPU,))),
        (a_node("n", labels={"kubernetes.azure.com/accelerator": "nvidia"}), None),
        # With its devices a pool can ask for them, whatever they are.
        (a_node("n", labels={"kubernetes.azure.com/accelerator": "x"}, devices={"example.com/npu": "4"}), SliceKind("cpu", devices=(NPU,))),
        (a_tpu_node("n", topology="2x2x2"), SliceKind("tpu-v5p", "2x2x2", 4)),
        (a_tpu_node("n", topology="9x9x9"), None),
        (a_tpu_node("n", topology=""), None),
        # The label outweighs the devices, which come and go with their plugin.
        (a_tpu_node("n", chips=4, labels={GKE_TPU.count: "1"}), SliceKind("tpu-v5p", "2x2x1", 1)),
        (a_tpu_node("n", chips=4, labels={GKE_TPU.count: ""}), SliceKind("tpu-v5p", "2x2x1", 4)),
        (a_gpu_node("n", gpus=4), SliceKind(H100, "", 4)),
        (a_gpu_node("n", gpus=0), SliceKind(H100, "", 0)),
    ],
)
def test_kind_of_a_node_follows_from_its_labels_and_devices(node: Obj, kind: SliceKind | None) -> None:
    assert kind_of(project_node(node)) == kind


@pytest.mark.parametrize(
    ("kind", "hosts"),
    [
        (SliceKind("tpu-v5p", "4x4x4", 4), 16),
        (SliceKind("tpu-v5p", "2x2x1", 4), 1),
        (SliceKind("tpu-v6e", "2x4", 4), 2),
        (SliceKind("tpu-v6e", "2x4", 8), 1),
        (SliceKind("tpu-v6e", "2x2", 8), 1),  # more chips than the topology has
        (SliceKind("tpu-v5p", "4x4x4", 0), 1),
        (SliceKind(H100, "", 8), 1),
        (SliceKind("cpu"), 1),
    ],
)
def test_slice_has_the_chips_of_its_topology(kind: SliceKind, hosts: int) -> None:
    assert slice_hosts(kind) == hosts


CPUS = [SliceKind("cpu"), SliceKind("cpu", devices=(NPU,)), SliceKind("cpu", devices=(FPGA, NPU))]
TPUS = [SliceKind("tpu-v5p", "2x2x2", 4), SliceKind("tpu-v5p", "2x2x1", 4), SliceKind("tpu-v6e", "2x4", 8), SliceKind("tpu-v5p", "2x2x2")]
GPUS = [*kinds(H100, 8, 1, 4, 0), *kinds("nvidia-l4", 8)]


@pytest.mark.parametrize(
    ("shape", "fitting", "others", "silent"),
    [
        (Shape("tpu-v5p", "2x2x2", 4, 2), [TPUS[0]], [], [TPUS[3]]),
        (Shape("tpu-v6e", "2x4", 4, 2), [], [], []),
        (Shape(H100, "", 4), kinds(H100, 4, 8), [], kinds(H100, 0)),
        (Shape(H100, "", 8, 2), kinds(H100, 8), [], kinds(H100, 0)),
        (Shape("nvidia-l4", "", 1), kinds("nvidia-l4", 8), [], []),
        (Shape("cpu"), CPUS[:1], CPUS[1:], []),
        (Shape("cpu", devices=(NPU,)), CPUS[1:2], [CPUS[0], CPUS[2]], []),
        (Shape("cpu", devices=(("example.com/npu", 5),)), [], CPUS, []),
        (Shape("cpu", devices=(FPGA, ("example.com/npu", 1))), CPUS[2:], CPUS[:2], []),
    ],
)
def test_unit_is_made_of_slices_that_have_what_it_needs_the_tightest_fit_first(
    shape: Shape, fitting: list[SliceKind], others: list[SliceKind], silent: list[SliceKind]
) -> None:
    there = [*GPUS, *CPUS, *TPUS]
    assert kinds_for(shape, there) == fitting
    assert kinds_with_other_devices(shape, there) == others
    assert silent_kinds(shape, there) == silent


# --- pools ------------------------------------------------------------------------------------------------------------
def asks(**limits: str) -> Obj:
    made = template()
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    return made


@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (tpu_pool(topology="2x2x2"), Shape("tpu-v5p", "2x2x2", 4, 2)),
        (tpu_pool(template=template(hostNetwork=True)), Shape("tpu-v5p", "2x2x2", 4, 2)),
        (gpu_pool(), Shape(H100, "", 8)),
        (gpu_pool(acceleratorsPerHost=2), Shape(H100, "", 2)),
        (gpu_pool(acceleratorsPerHost=2, template=template(hostNetwork=True)), Shape(H100, "", 2, alone=True)),
        (gpu_pool(hosts=2, template=template(hostNetwork=True)), Shape(H100, "", 8, 2)),  # whole hosts anyway
        (gpu_pool(template=asks(**{"example.com/npu": "4"})), Shape(H100, "", 8)),
        (cpu_pool(hosts=2), Shape("cpu", hosts=2)),
        (cpu_pool(template=asks(**{"example.com/npu": "4", "rdma/hca": "1", "cpu": "2"})), Shape("cpu", devices=(NPU,))),
        (cpu_pool(template=template(hostNetwork=True)), Shape("cpu")),
    ],
)
def test_unit_needs_what_its_pool_names_and_without_accelerators_the_devices_of_its_template(pool: Obj, shape: Shape) -> None:
    assert shape_of(Pool.model_validate(pool)) == shape


def learner(*ports: Any) -> dict[str, Any]:
    return {"containers": [{"name": "learner", "ports": list(ports)}]}


@pytest.mark.parametrize(
    ("spec", "used"),
    [
        ({"hostNetwork": True}, True),
        (learner({"containerPort": 1}, {"containerPort": 1, "hostPort": 8080}), True),
        ({"hostNetwork": False, "containers": [{"name": "learner", "ports": [{"containerPort": 1, "hostPort": 0}]}, None]}, False),
        ({"hostNetwork": "yes", "containers": 1}, False),
        (learner(None, 8080), False),
        ({"containers": [{"ports": 8080}]}, False),
    ],
)
def test_pods_that_use_ports_of_their_host_share_it_with_nobody(spec: dict[str, Any], used: bool) -> None:
    assert uses_ports_of_host(spec) is used
