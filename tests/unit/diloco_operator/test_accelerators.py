from __future__ import annotations

import math

import pytest
from diloco_operator.accelerators import ACCELERATOR_NAMES, CATALOGUE, Family, chip_count, identify, of_family, parse_topology, unit_shape


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips_per_host", "hosts"),
    [
        # The table of the GKE documentation: hosts = chips / chips per host.
        ("tpu-v5p", "2x2x1", None, 1),
        ("tpu-v5p", "2x2x2", None, 2),
        ("tpu-v5p", "4x4x4", None, 16),
        ("tpu-v4", "2x2x4", None, 4),
        ("tpu-v6e", "1x1", None, 1),
        ("tpu-v6e", "2x2", None, 1),
        ("tpu-v6e", "2x4", 8, 1),
        ("tpu-v6e", "2x4", 4, 2),
        ("tpu-v6e", "4x4", None, 4),
        ("tpu-v5e", "16x16", None, 64),
        ("tpu7x", "2x2x1", None, 1),
    ],
)
def test_hosts_of_a_tpu_slice_follow_from_its_topology(accelerator: str, topology: str, chips_per_host: int | None, hosts: int) -> None:
    shape = unit_shape(accelerator, topology=topology, chips_per_host=chips_per_host)
    assert shape.hosts == hosts
    assert shape.accelerators == chip_count(topology)
    assert shape.resource == "google.com/tpu"


def test_gpu_hosts_are_as_given_and_whole_by_default() -> None:
    shape = unit_shape("nvidia-h100-80gb", hosts=2)
    assert (shape.hosts, shape.accelerators_per_host, shape.resource) == (2, 8, "nvidia.com/gpu")
    assert unit_shape("nvidia-gb200").accelerators_per_host == 4
    assert unit_shape("nvidia-h100-80gb", accelerators_per_host=2).accelerators == 2


def test_cpu_needs_no_accelerators() -> None:
    shape = unit_shape("cpu", hosts=3)
    assert (shape.hosts, shape.accelerators, shape.resource, shape.peak_tflops) == (3, 0, "", 0)


def test_peak_of_a_unit_is_that_of_its_accelerators() -> None:
    # 8 chips of 459 and 16 GPUs of 989 TFLOP/s.
    assert unit_shape("tpu-v5p", topology="2x2x2").peak_tflops == 8 * 459
    assert unit_shape("nvidia-h100-80gb", hosts=2).peak_tflops == 16 * 989


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"accelerator": "tpu-v9"}, "is not in the catalogue: tpu-v4"),
        ({"accelerator": "tpu-v5p"}, "has no topology ''"),
        ({"accelerator": "tpu-v5p", "topology": "2x4"}, "it has 2x2x1"),
        ({"accelerator": "tpu-v6e", "topology": "2x4"}, "needs chipsPerHost of 4 or 8"),
        ({"accelerator": "tpu-v6e", "topology": "4x4", "chips_per_host": 8}, "needs chipsPerHost of 4, not 8"),
    ],
)
def test_impossible_unit_is_refused(arguments: dict[str, object], words: str) -> None:
    accelerator = str(arguments.pop("accelerator"))
    with pytest.raises(ValueError, match=words):
        unit_shape(accelerator, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "2", "2x", "x2", "2x2x2x2", "0x2", "2X2", "-1x2", "2x2\n", "1000x1"])
def test_what_is_no_topology_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a topology"):
        parse_topology(text)


@pytest.mark.parametrize("name", of_family(Family.TPU))
def test_every_topology_is_made_of_whole_hosts(name: str) -> None:
    kind = CATALOGUE[name]
    assert len({len(parse_topology(topology)) for topology in kind.topologies}) == 1
    for topology, options in kind.host_options.items():
        for size in options:
            assert size in kind.host_sizes
            assert chip_count(topology) % size == 0


@pytest.mark.parametrize(("name", "chips"), [("tpu-v4", 4096), ("tpu-v5p", 6144), ("tpu7x", 9216)])
def test_large_3d_topologies_are_whole_cubes_up_to_the_largest_slice(name: str, chips: int) -> None:
    sizes = [parse_topology(topology) for topology in CATALOGUE[name].topologies]
    large = [size for size in sizes if math.prod(size) >= 64]
    assert all(part % 4 == 0 for size in large for part in size)
    assert all(a <= b <= c for a, b, c in large)
    assert max(map(math.prod, sizes)) == chips


def test_a_node_label_means_one_kind() -> None:
    for kind in CATALOGUE.values():
        for entry in kind.labels:
            for value in entry.values:
                assert identify({**entry.on_node(), entry.key: value}) == (kind, entry)


def test_the_kinds_of_the_specification_are_there() -> None:
    expected = "tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu7x nvidia-a100-80gb nvidia-h100-80gb nvidia-h200-141gb nvidia-b200 cpu"
    assert set(expected.split()) <= set(ACCELERATOR_NAMES)
