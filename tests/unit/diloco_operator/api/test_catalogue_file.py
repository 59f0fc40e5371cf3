"""The catalogue file: rows that a cluster adds, and every mistake that can be made in them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from builders.catalogues import MESH, NPU, a_file, extended_by
from builders.jobs import a_job, a_manifest, gpu_pool, with_field
from builders.nodes import a_node, an_inventory
from builders.stage import Stage
from diloco_operator.accelerators import ACCELERATOR_LABELS, BUILT_IN, CATALOGUE, Family, extend
from diloco_operator.api.catalogue_file import BadCatalogue, read_catalogue
from diloco_operator.api.job import load
from diloco_operator.api.kinds import kind_problems
from diloco_operator.fleet import Shape, shape_of


def rows(*given: dict[str, Any]) -> Any:
    return read_catalogue(a_file(*given), BUILT_IN).rows


def problems(*given: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(BadCatalogue) as error:
        rows(*given)
    return error.value.problems


def an_npu(name: str, npus: int, **labels: str) -> dict[str, Any]:
    return a_node(name, labels={"acme.com/product": "NPU2", **labels}, devices={"acme.com/npu": str(npus)})


# --- what a row becomes -------------------------------------------------------------------------------------------------
def test_row_of_hosts_with_what_it_needs_alone() -> None:
    (kind,) = rows(NPU)
    assert (kind.name, kind.family, kind.resource, kind.host_sizes) == ("acme-npu2", Family.HOST, "acme.com/npu", (4, 8))
    assert kind.taints == ("acme.com/npu",)  # clusters name the taint like the resource, as for the built-in kinds
    assert (kind.peak_tflops, kind.memory_gb, kind.sources) == (0, 0, ())


def test_row_with_everything() -> None:
    more = {"taints": ["acme.com/only"], "peakTflops": 300, "memoryGb": 96.5, "sources": ["https://acme.example/npu2"]}
    (kind,) = rows({**NPU, **more})
    assert kind.taints == ("acme.com/npu", "acme.com/only")
    assert (kind.peak_tflops, kind.memory_gb, kind.sources) == (300, 96.5, ("https://acme.example/npu2",))


def test_row_of_slices_takes_its_hosts_from_the_topologies() -> None:
    (kind,) = rows(MESH)
    assert (kind.family, kind.topologies, kind.host_options["2x4"], kind.host_sizes) == (Family.TPU, ("2x2", "2x4"), (4, 8), (4, 8))


def test_topologies_of_a_torus_follow_the_rule_of_the_built_in_ones() -> None:
    torus = {**MESH, "torus": {"pod": [16, 20, 28], "maxChips": 6144}}
    del torus["topologies"]
    (kind,) = rows(torus)
    assert kind.host_options == CATALOGUE["tpu-v5p"].host_options
    assert kind.topology_rule == CATALOGUE["tpu-v5p"].topology_rule


def test_key_of_a_dialect_brings_its_topology_count_and_second_label() -> None:
    tpu = {**MESH, "labels": [{"key": "cloud.google.com/gke-tpu-accelerator", "values": ["tpu9"]}]}
    gpu = {
        **NPU,
        "labels": [
            {"key": "karpenter.k8s.aws/instance-gpu-name", "values": ["b999"], "also": {"karpenter.k8s.aws/instance-gpu-memory": "1"}}
        ],
    }
    first, second = rows(tpu, gpu)
    assert first.labels[0].dialect.topology == "cloud.google.com/gke-tpu-topology"
    assert second.labels[0].matches({"karpenter.k8s.aws/instance-gpu-name": "b999", "karpenter.k8s.aws/instance-gpu-memory": "1"})
    assert not second.labels[0].matches({"karpenter.k8s.aws/instance-gpu-name": "b999"})


# --- the catalogue with them ---------------------------------------------------------------------------------------------
def test_nodes_of_a_kind_from_the_file_are_slices_and_pools_get_them() -> None:
    with extended_by(NPU):
        pool = load(a_manifest(pools=[gpu_pool(accelerator="acme-npu2", hosts=2)])).spec.pools[0]
        assert shape_of(pool) == Shape("acme-npu2", "", 8, 2)
        fleet = an_inventory(an_npu("n0", 8), an_npu("n1", 8), an_npu("small", 4))
        assert [slice_.name for slice_ in fleet.free(shape_of(pool))] == ["n0", "n1"]
        assert "acme.com/product" in ACCELERATOR_LABELS
    assert "acme-npu2" not in CATALOGUE
    assert "acme.com/product" not in ACCELERATOR_LABELS
    assert list(an_inventory(an_npu("n0", 8)).free(Shape("cpu"))) == []  # devices that the catalogue does not know


def test_slices_of_a_kind_from_the_file_are_assembled_by_its_own_labels() -> None:
    def host(index: int) -> dict[str, Any]:
        labels = {"acme.com/mesh": "one", "acme.com/topology": "2x4", "acme.com/count": "4", "cloud.google.com/gke-nodepool": "np"}
        return a_node(f"m{index}", labels=labels, devices={"acme.com/mesh": "4"})

    with extended_by(MESH):
        (slice_,) = an_inventory(host(0), host(1)).free(Shape("acme-mesh1", "2x4", 4, 2))
        assert [each.node for each in slice_.hosts] == ["m0", "m1"]


def test_label_of_the_file_decides_before_those_of_clouds() -> None:
    with extended_by(NPU):
        node = a_node("n", labels={"acme.com/product": "NPU2", "nvidia.com/gpu.product": "NVIDIA-L4"}, devices={"acme.com/npu": "8"})
        assert [slice_.kind.accelerator for slice_ in an_inventory(node).free(Shape("acme-npu2", "", 8, 1))] == ["acme-npu2"]


def test_catalogue_is_extended_once_in_a_process() -> None:
    with extended_by(NPU), pytest.raises(RuntimeError, match="extended already"):
        extend(rows(MESH))


def test_job_trains_on_a_kind_of_the_file_and_is_left_alone_by_an_operator_without_it() -> None:
    job = a_job().with_learners(1, 1).with_pools(gpu_pool("npu", accelerator="acme-npu2", max=1))
    with extended_by(NPU):
        taint = [{"key": "acme.com/npu", "value": "present", "effect": "NoSchedule"}]
        stage = Stage(job, a_node("n0", labels={"acme.com/product": "NPU2"}, devices={"acme.com/npu": "8"}, taints=taint)).train()
        (learner,) = stage.pod("npu-0", 1)["spec"]["containers"]
        assert learner["resources"]["requests"] == {"acme.com/npu": "8"}
        assert {"key": "acme.com/npu", "operator": "Exists"} in stage.pod("npu-0", 1)["spec"]["tolerations"]
    stage.restart_operator()
    stage.edit(suspend=False)
    stage.settle()
    accepted = stage.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec.pools[0].accelerator: accelerator 'acme-npu2' is not in the catalogue" in accepted["message"]
    assert stage.learner_pods() == ["bytes-lm-npu-0-a1-0"]


# --- pools of these kinds -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "fields", "field", "words"),
    [
        ("acme-npu3", {}, "accelerator", "'acme-npu3' is not in the catalogue: tpu-v4, "),
        ("acme-npu2", {"acceleratorsPerHost": 16}, "acceleratorsPerHost", "must be at most 8, what a host has, for acme-npu2"),
        ("acme-npu2", {"processesPerHost": 3}, "processesPerHost", "must divide the 8 accelerators of each host"),
        ("acme-npu2", {"topology": "2x2"}, "topology", "is not for acme-npu2"),
        ("acme-npu2", {"chipsPerHost": 4}, "chipsPerHost", "is not for acme-npu2; set acceleratorsPerHost"),
        ("acme-mesh1", {}, "topology", "acme-mesh1 has no topology ''; it has 2x2, 2x4"),
        ("acme-mesh1", {"topology": "2x4"}, "topology", "acme-mesh1 2x4 needs chipsPerHost of 4 or 8"),
        ("acme-mesh1", {"topology": "2x2", "acceleratorsPerHost": 4}, "acceleratorsPerHost", "is not for acme-mesh1"),
        ("acme-mesh1", {"topology": "2x2", "hosts": 2}, "hosts", "is not for acme-mesh1"),
    ],
)
def test_pool_that_its_kind_does_not_allow_is_told_by_the_operator(kind: str, fields: dict[str, Any], field: str, words: str) -> None:
    with extended_by(NPU, MESH):
        pool = {key: value for key, value in gpu_pool(accelerator=kind).items() if key in ("name", "accelerator", "learners", "template")}
        parsed = load(a_manifest(pools=[{**pool, **fields}])).spec.pools[0]
        (problem,) = kind_problems(parsed, "spec.pools[0]")
        assert problem.field == f"spec.pools[0].{field}"
        assert words in problem.message


def test_pool_of_a_built_in_kind_is_the_crds_affair() -> None:
    assert list(kind_problems(load(a_manifest()).spec.pools[0], "spec.pools[0]")) == []


# --- mistakes -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("name", "NPU", "name: String should match pattern"),
        ("name", "nvidia-l4", "name: is built in; rows that are built in cannot be changed, choose another name"),
        ("name", "cpu", "name: is built in"),
        ("family", "GPU", "family: Input should be 'Host' or 'TPU'"),
        ("resource", "npu", "resource: String should match pattern"),
        ("labels", [], "labels: List should have at least 1 item"),
        ("labels[0].key", "a b", "labels[0].key: String should match pattern"),
        ("labels[0].values", [1], "labels[0].values[0]: Input should be a valid string"),
        ("labels[0].topologyKey", "acme.com/t", "labels[0]: labels with a topology are for family TPU"),
        (
            "labels[0]",
            {"key": "nvidia.com/gpu.product", "values": ["NVIDIA-L4"]},
            "labels[0]: nvidia.com/gpu.product=NVIDIA-L4 already stands for nvidia-l4",
        ),
        (
            "labels[0]",
            {"key": "nvidia.com/gpu.product", "values": ["X"], "also": {"a": "b"}},
            "labels[0]: nvidia.com/gpu.product takes no also",
        ),
        ("taints", ["a b"], "taints[0]: String should match pattern"),
        ("hostSizes", [], "hostSizes: is required"),
        ("hostSizes", [3], "hostSizes: must be powers of two up to 16, not [3]"),
        ("hostSizes", "8", "hostSizes: Input should be a valid list"),
        ("topologies", {"2x2": [4]}, "topologies: is for family TPU"),
        ("peakTflops", -1, "peakTflops: Input should be greater than or equal to 0"),
        ("peakTflops", float("inf"), "peakTflops: "),
        ("sources", ["acme"], "sources[0]: String should match pattern"),
        ("speed", 7, "speed: unknown field"),
    ],
)
def test_mistake_in_a_row_of_hosts_names_row_and_field(path: str, value: Any, words: str) -> None:
    row = with_field({"row": copy.deepcopy(NPU)}, f"row.{path}", value)["row"]
    found = problems(MESH, row)
    assert len(found) == 1
    assert found[0].startswith(f"accelerators[1] ({row['name']}): {words}")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("hostSizes", [4], "hostSizes: is for family Host"),
        ("topologies", {}, "topologies: a TPU needs either topologies"),
        ("topologies", {"2x": [4]}, "topologies.2x: '2x' is not a topology"),
        ("topologies", {"2x2": [3]}, "topologies.2x2: needs chips per host that divide its 4 chips, at most 8, not [3]"),
        ("topologies", {"2x2": []}, "topologies.2x2: needs chips per host"),
        ("topologies", {"4x4": [16]}, "topologies.4x4: needs chips per host that divide its 16 chips, at most 8"),
        ("topologies", {"2x2": [4], "2x2x2": [4]}, "topologies: must all have two or all have three dimensions"),
        ("torus", {"pod": [16, 16, 16], "maxChips": 64}, "topologies: a TPU needs either topologies"),
        ("torus", {"pod": [16], "maxChips": 64}, "torus.pod: List should have at least 3 items"),
        ("labels[0]", {"key": "acme.com/mesh", "values": ["one"]}, "labels[0]: a TPU needs the topology of a slice from a label"),
        (
            "labels[0]",
            {"key": "acme.com/m", "values": ["o"], "topologyKey": "t"},
            "labels[0]: a TPU needs the chips of a host from a label",
        ),
    ],
)
def test_mistake_in_a_row_of_slices_names_row_and_field(path: str, value: Any, words: str) -> None:
    row = with_field({"row": copy.deepcopy(MESH)}, f"row.{path}", value)["row"]
    found = problems(row)
    assert len(found) == 1
    assert found[0].startswith(f"accelerators[0] (acme-mesh1): {words}")


def test_every_mistake_of_every_row_is_told_at_once() -> None:
    assert problems({**NPU, "hostSizes": []}, {**NPU, "labels": [{"key": "a", "values": ["b"]}]}, {**NPU, "name": "twin"}) == (
        "accelerators[0] (acme-npu2): hostSizes: is required: how many accelerators hosts of this kind come with, such as [8]",
        "accelerators[1] (acme-npu2): name: stands twice in this file; names are unique",
    )
    assert problems(NPU, {**NPU, "name": "twin"}) == (
        "accelerators[1] (twin): labels[0]: acme.com/product=NPU2 already stands for acme-npu2; a label means one accelerator",
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "must be a map with apiVersion"),
        ([], "must be a map with apiVersion"),
        ({"kind": "AcceleratorCatalogue", "accelerators": []}, "apiVersion: Field required"),
        ({**a_file(), "kind": "OperatorConfiguration"}, "kind: must be AcceleratorCatalogue, not 'OperatorConfiguration'"),
        ({**a_file(), "accelerators": {}}, "accelerators: Input should be a valid list"),
        (a_file(incidental=["net.acme.com"]), "incidentalResources[0]: String should match pattern"),
        (a_file(incidental=["nvidia.com/*"]), "incidentalResources[0]: pods request nvidia-l4 as nvidia.com/gpu, which"),
        (a_file(NPU, incidental=["acme.com/npu"]), "incidentalResources[0]: pods request acme-npu2 as acme.com/npu, which"),
        (a_file("row"), "accelerators[0]: must be a map"),  # type: ignore[arg-type]
        (a_file({}), "accelerators[0] (no name): name: Field required"),
        (a_file(*({**NPU, "name": f"n{i}"} for i in range(101))), "accelerators: List should have at most 100 items"),
    ],
)
def test_file_that_is_no_catalogue_is_told(content: object, words: str) -> None:
    with pytest.raises(BadCatalogue) as error:
        read_catalogue(content, BUILT_IN)
    assert error.value.problems[0].startswith(words)
