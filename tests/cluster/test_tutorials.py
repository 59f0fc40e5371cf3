"""The tutorials for clusters, typed as they stand on a real control plane with simulated nodes.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from builders.control_plane import ControlPlane
from builders.document_reader import Reader, a_checkout, environment_of, last, reading, write_files
from builders.jobs import Obj
from builders.kube_jobs import nodes_command, operator
from builders.nodes import a_fleet_gpu_node, a_fleet_node, a_fleet_tpu_node
from diloco_operator.api.names import NODE_POOL

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("many-learners")]


@contextlib.contextmanager
def following(tutorial: str, plane: ControlPlane, folder: Path, fleet: Sequence[Obj], page: str) -> Iterator[Reader]:
    """A reader with these nodes, the operator of the chart, and the files of the page on which the program stands."""
    write_files(page, a_checkout(folder))
    try:
        with (
            nodes_command(folder / "nodes", plane.kubeconfig, [a_fleet_node("cpu-0", cpu=32, memory="64Gi", pods=110), *fleet]),
            operator(plane, folder),
            reading(tutorial, folder, environment_of(plane, activated=True)) as reader,
        ):
            yield reader
    finally:
        plane.kubectl("delete", "dlj,pods,configmaps,secrets,services,pvc", "--all", "--wait=false")
        plane.kubectl("delete", "nodes", "--all", "--wait=false")  # those of a command that a failure has ended


def test_a_script_trains_on_gpus_as_the_tutorial_says(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    fleet = [a_fleet_gpu_node(f"gpu-{index}") for index in range(2)]
    with following("gpus", jobs_plane, tmp_path, fleet, "docs/your-program.md") as reader:
        reader.type("docs/tutorials/gpus.md#what-the-cluster-has")
        assert "accelerator: nvidia-h100-80gb" in (tmp_path / "checkout" / "starter.yaml").read_text()
        shown = list(reader.type("docs/tutorials/gpus.md#train").values())
        assert shown[0].startswith("dilocojob.diloco.dev/train created in namespace default")
        assert re.search(r"h100-0 .*Training", shown[2])
        assert last(reader.type("docs/tutorials/gpus.md#lose-a-unit")).strip() == "dilocojob.diloco.dev/train condition met"
        reader.type("docs/tutorials/gpus.md#get-the-model")
        assert (tmp_path / "checkout" / "my-training.safetensors").exists()


def test_a_program_in_jax_trains_on_slices_of_several_hosts_as_the_tutorial_says(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    fleet = []
    for name in ("np-a", "np-b"):
        for host in range(2):
            node = a_fleet_tpu_node(f"{name}-{host}", topology="2x2x2")
            node["metadata"]["labels"][NODE_POOL] = name
            fleet.append(node)
    with following("tpus", jobs_plane, tmp_path, fleet, "docs/tutorials/maxtext.md") as reader:
        page = "docs/tutorials/tpus.md#tpu-slices-of-several-hosts"
        _, _, pods, units = reader.type(page).values()
        placed = dict(re.findall(r"slices-(v5p-\d-a1-\d) .* (np-[ab]-\d)\b", pods))
        of_unit = {unit: {node[:-2] for pod, node in placed.items() if pod.startswith(unit)} for unit in ("v5p-0", "v5p-1")}
        assert all(len(slices) <= 1 for slices in of_unit.values()), f"a unit has the hosts of one slice: {pods}"
        assert re.search(r"v5p-0 .*Training", units)
        reader.type(f"{page}/2")
        assert (tmp_path / "checkout" / "slices.safetensors").exists()
