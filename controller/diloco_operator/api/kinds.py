"""Checks pools whose kind is from a catalogue file, which the CRD does not know, by the same rules as the CRD has for built-in kinds. Pure.

See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from diloco_operator.accelerators import BUILT_IN, CATALOGUE, Family
from diloco_operator.api.spec import Pool
from diloco_operator.kube.client import Cause


def has_shape(pool: Pool) -> bool:
    """Whether the hardware of a unit of this pool is known."""
    try:
        return bool(pool.shape)
    except ValueError:
        return False


def kind_problems(pool: Pool, where: str) -> Iterator[Cause]:
    """Yield what is wrong with a pool: its kind is unknown, or does not have its shape. `where`: the pool's path in the job."""
    kind = CATALOGUE.get(pool.accelerator)
    try:
        shape = pool.shape
    except ValueError as error:
        yield Cause(f"{where}.{'accelerator' if kind is None else 'topology'}", str(error))
        return
    if kind is None or pool.accelerator in BUILT_IN:
        return  # the CRD's rules have checked the rest
    processes = pool.processes_per_host or 1
    if kind.family is Family.TPU:
        given = {
            "hosts": pool.hosts,
            "acceleratorsPerHost": pool.accelerators_per_host,
            "processesPerHost": processes if processes > 1 else None,
        }
        for field, value in given.items():
            if value is not None:
                yield Cause(f"{where}.{field}", f"is not for {kind.name}, whose hosts follow from topology and chipsPerHost; remove it")
        return
    if pool.topology:
        yield Cause(f"{where}.topology", f"is not for {kind.name}; remove it and set hosts")
    if pool.chips_per_host is not None:
        yield Cause(f"{where}.chipsPerHost", f"is not for {kind.name}; set acceleratorsPerHost")
    most = kind.host_sizes[-1]
    if shape.accelerators_per_host > most:
        yield Cause(f"{where}.acceleratorsPerHost", f"must be at most {most}, what a host has, for {kind.name}; use more hosts instead")
    elif shape.accelerators_per_host % processes:
        text = f"must divide the {shape.accelerators_per_host} accelerators of each host, so that each process gets as many"
        yield Cause(f"{where}.processesPerHost", text)
