"""The pools of a job in few words, `--pool v5p=1x2x2x2`, and from the nodes that there are. Pure.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diloco_local.preview.nodes import Addition, new_nodes
from diloco_operator.accelerators import CATALOGUE, CPU, Accelerator, Family
from diloco_operator.api.names import NODE_HOSTNAME, NODE_POOL
from diloco_operator.api.spec import MAX_LEARNERS, MAX_POOLS
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.slice_kinds import kind_of, slice_hosts
from diloco_operator.fleet.slices import SliceKind
from diloco_operator.kube.client import Obj

MAX_POOL_NAME = 15
_ADDED = "added-"
"""Beginning of the names of nodes that a preview adds."""
_POOL = re.compile(r"(?P<kind>[a-z0-9][-a-z0-9]*)=(?P<units>[1-9][0-9]{0,3})(x(?P<size>[0-9]+(x[0-9]+)*))?", re.ASCII)


class BadPool(ValueError):
    """A pool that cannot be; the message says what to write."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A pool whose units have one host, or one TPU slice."""

    name: str
    kind: Accelerator
    units: int
    topology: str = ""
    """TPU only."""
    per_host: int = 0
    """Accelerators of a host; 0 for cpu, and for all that a host of the kind has."""

    @property
    def gpus(self) -> int:
        """Return how many accelerators of a host have a process each: those of single hosts."""
        return (self.per_host or self.kind.host_sizes[-1]) if self.kind.family is Family.HOST else 0

    def fields(self) -> Obj:
        """Return the pool's fields of hardware and number."""
        found: Obj = {"name": self.name, "accelerator": self.kind.name}
        if self.kind.family is Family.TPU:
            found["topology"] = self.topology
            if len(self.kind.host_options[self.topology]) > 1:
                found["chipsPerHost"] = self.per_host
        elif self.per_host:
            found["acceleratorsPerHost"] = self.per_host
        return {**found, "learners": {"max": self.units}}


def slices_of(nodes: Iterable[NodeView]) -> Counter[SliceKind]:
    """Return how many slices there are of each kind that a pool can name, whole ones."""
    found = (kind for node in nodes if (kind := kind_of(node)) is not None and not kind.devices)
    hosts = Counter(kind for kind in found if kind.chips_per_host or kind.accelerator == CPU)
    return Counter({kind: count // slice_hosts(kind) for kind, count in hosts.items() if count >= slice_hosts(kind)})


def read_pool(text: str, there: Mapping[SliceKind, int] | None) -> PoolRequest:
    """Read `KIND=UNITS`, `KIND=UNITSxTOPOLOGY` for TPUs, `KIND=UNITSxDEVICES` for hosts with fewer accelerators than the largest.

    `there`: the slices of the cluster, which decide what the text leaves open. None: there is no cluster, and the first of the catalogue
    does. Raises BadPool.
    """
    found = _POOL.fullmatch(text)
    if found is None:
        raise BadPool(f"--pool {text}: write KIND=UNITS, such as h100=2, or for TPUs KIND=UNITSxTOPOLOGY, such as v5p=1x2x2x2")
    kind = _kind(text, found["kind"], there)
    size, units = found["size"] or "", int(found["units"])
    if kind.family is Family.TPU:
        topology, per_host = _slice(text, found["kind"], kind, size, there)
        return PoolRequest(pool_name(found["kind"]), kind, units, topology, per_host)
    if size and (not size.isdecimal() or int(size) not in kind.host_sizes):
        sizes = ", ".join(map(str, kind.host_sizes))
        what = f"hosts of {kind.name} come with {sizes} accelerators, not {size}" if sizes else f"{kind.name} has no accelerators to count"
        raise BadPool(f"--pool {text}: {what}; write {found['kind']}={units}")
    return PoolRequest(pool_name(found["kind"]), kind, units, per_host=int(size) if size else 0)


def of_slices(there: Mapping[SliceKind, int]) -> list[PoolRequest]:
    """Return a pool for each kind of accelerator that is there, the fastest first; of hosts without accelerators if there is no other."""
    pools = []
    for slices, count in sorted(there.items()):
        kind = CATALOGUE[slices.accelerator]
        pools.append(PoolRequest("", kind, min(count, MAX_LEARNERS), slices.topology, slices.chips_per_host))
    accelerated = [each for each in pools if each.kind.family is not Family.CPU]
    chosen = sorted(accelerated or pools, key=lambda each: -each.kind.peak_tflops)[:MAX_POOLS]
    names = _distinct([pool_name(_short(each.kind.name)) for each in chosen])
    return [PoolRequest(name, each.kind, each.units, each.topology, each.per_host) for name, each in zip(names, chosen, strict=True)]


def simulated_nodes(pools: Iterable[PoolRequest], capacity: Mapping[str, str]) -> list[Obj]:
    """Return as many nodes as the units of the pools take, and one for the syncer. `capacity`: of each, besides its accelerators."""
    found: list[Obj] = [_node("syncer", {}, [], capacity)]
    for pool in pools:
        for node in new_nodes(Addition(pool.kind, pool.units, pool.topology, pool.per_host, pool.name), (), ()):
            name, slices = (str(text).removeprefix(_ADDED) for text in (node["metadata"]["name"], node["metadata"]["labels"][NODE_POOL]))
            labels = {**node["metadata"]["labels"], NODE_HOSTNAME: name, NODE_POOL: slices}
            found.append(_node(name, labels, node["spec"].get("taints") or [], {**capacity, **node["status"]["capacity"]}))
    return found


def _node(name: str, labels: Mapping[str, str], taints: list[Obj], capacity: Mapping[str, str]) -> Obj:
    spec = {"taints": taints} if taints else {}
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"capacity": dict(capacity)}}


def pool_name(word: str) -> str:
    """Return a pool's name: the word, or as much of it as a pool's name may have."""
    own = word if len(word) <= MAX_POOL_NAME else word.partition("-")[2] or word
    return own[:MAX_POOL_NAME].strip("-") if own[0].isalpha() else f"p{own}"[:MAX_POOL_NAME].strip("-")


def _short(kind: str) -> str:
    """Return the part of the name that no other kind has, such as v5p; else the name."""
    for part in kind.split("-"):
        if [name for name in CATALOGUE if part in name.split("-")] == [kind]:
            return part
    return kind


def _distinct(names: list[str]) -> list[str]:
    """Tell names that occur more than once apart by a letter."""
    again = {name for name, count in Counter(names).items() if count > 1}
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        suffix = f"-{'abcdefghijklmnopqrstuvwxyz'[(seen[name] - 1) % 26]}"
        found.append(f"{name[: MAX_POOL_NAME - len(suffix)]}{suffix}" if name in again else name)
    return found


def _kind(text: str, word: str, there: Mapping[SliceKind, int] | None) -> Accelerator:
    if word in CATALOGUE:
        return CATALOGUE[word]
    kinds = [kind for kind in CATALOGUE.values() if word in kind.name.split("-")]
    if not kinds:
        raise BadPool(f"--pool {text}: {word} is no kind of accelerator; the kinds are {', '.join(CATALOGUE)}")
    if len(kinds) == 1 or there is None:
        return kinds[0]
    present = {each.accelerator for each in there}
    chosen = [kind for kind in kinds if kind.name in present]
    if len(chosen) != 1:
        why = "the cluster has nodes of several of them" if chosen else "the cluster has nodes of none of them"
        raise BadPool(f"--pool {text}: {word} may be {' or '.join(kind.name for kind in kinds)}, and {why}; write one of these")
    return chosen[0]


def _slice(text: str, word: str, kind: Accelerator, size: str, there: Mapping[SliceKind, int] | None) -> tuple[str, int]:
    """Return topology and chips per host."""
    if size and size not in kind.host_options:
        raise BadPool(
            f"--pool {text}: {kind.name} has no topology {size}; it has {kind.topology_rule}. The first number is that of the units: "
            f"{word}=1x{kind.topologies[0]}"
        )
    present = sorted(
        {(each.topology, each.chips_per_host) for each in there or () if each.accelerator == kind.name and each.chips_per_host}
    )
    fitting = [each for each in present if not size or each[0] == size]
    if len(fitting) == 1:
        return fitting[0]
    topologies = {topology for topology, _ in fitting}
    if size and there is not None and len(kind.host_options[size]) > 1:
        sizes = " or ".join(map(str, kind.host_options[size]))
        has = "both" if fitting else "none of these"
        raise BadPool(f"--pool {text}: hosts of such a slice have {sizes} chips, and the cluster has {has}; write chipsPerHost into a job")
    if not size and there is not None and len(topologies) != 1:
        has = f"the cluster has slices of {' and '.join(sorted(topologies))}" if topologies else f"the cluster has no slices of {kind.name}"
        raise BadPool(f"--pool {text}: {kind.name} comes in slices, and {has}; write the topology, such as {word}=1x{kind.topologies[0]}")
    topology = size or next(iter(topologies), kind.topologies[0])
    return topology, kind.host_options[topology][0]
