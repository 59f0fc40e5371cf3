"""The pools of a job in few words, `--pool v5p=1x2x2x2` or `--pool h100=2,hosts=4,spot`, and from the nodes that there are. Pure.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from diloco_local.preview.nodes import Addition, new_nodes
from diloco_operator.accelerators import CATALOGUE, CPU, Accelerator, Family
from diloco_operator.api.names import NODE_HOSTNAME, NODE_POOL
from diloco_operator.api.rules import MAX_POOL_NAME
from diloco_operator.api.spec import MAX_LEARNERS, MAX_POOLS, Capacity, ProvisioningMode
from diloco_operator.fleet.capacity import CapacityType, values_of
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.slice_kinds import kind_of, slice_hosts
from diloco_operator.fleet.slices import SliceKind
from diloco_operator.kube.client import Obj

_ADDED = "added-"
"""Beginning of the names of nodes that a preview adds."""
_CAPACITIES = {re.sub(r"(?<=.)(?=[A-Z])", "-", each.value).lower(): each for each in Capacity}
"""By the words for them: spot, flex-start."""
_NUMBERS = ("hosts", "min", "spares")
_AUTOSCALER = "autoscaler"
_NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{MAX_POOL_NAME - 2}}}[a-z0-9])?", re.ASCII)
_POOL = re.compile(r"(?P<kind>[a-z0-9][-a-z0-9]*)=(?P<units>[1-9][0-9]{0,3})(x(?P<size>[0-9]+(x[0-9]+)*))?", re.ASCII)


class BadPool(ValueError):
    """A pool that cannot be; the message says what to write."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A pool whose units have one host or several, or one TPU slice."""

    name: str
    kind: Accelerator
    units: int
    topology: str = ""
    """TPU only."""
    per_host: int = 0
    """Accelerators of a host; 0 for cpu, and for all that a host of the kind has."""
    hosts: int = 1
    """Hosts of a unit; 1 for TPUs, whose topology says it."""
    least: int = 0
    """learners.min."""
    spares: int = 0
    capacity: Capacity | None = None
    """None: any."""
    autoscaler: bool = False
    """An autoscaler brings nodes for units for which no slice is free."""

    @property
    def gpus(self) -> int:
        """Return how many accelerators of a host have a process each; 0 for TPUs and cpu."""
        return (self.per_host or self.kind.host_sizes[-1]) if self.kind.family is Family.HOST else 0

    def held_as(self, capacity: Capacity) -> PoolRequest:
        """Return the same with this capacity where the pool names none."""
        return self if self.capacity else replace(self, capacity=capacity)

    def fields(self) -> Obj:
        """Return the pool's fields of hardware and number."""
        found: Obj = {"name": self.name, "accelerator": self.kind.name}
        if self.kind.family is Family.TPU:
            found["topology"] = self.topology
            # Elsewhere it follows from the topology; here the API refuses a pool without it.
            if len(self.kind.host_options[self.topology]) > 1:
                found["chipsPerHost"] = self.per_host
        elif self.per_host:
            found["acceleratorsPerHost"] = self.per_host
        if self.hosts > 1:
            found["hosts"] = self.hosts
        if self.capacity:
            found["capacity"] = self.capacity.value
        if self.autoscaler:
            found["provisioning"] = {"mode": ProvisioningMode.AUTOSCALER.value}
        if self.spares:
            found["spares"] = self.spares
        return {**found, "learners": {**({"min": self.least} if self.least else {}), "max": self.units}}


def slices_of(nodes: Iterable[NodeView]) -> Counter[SliceKind]:
    """Return how many slices there are of each kind that a pool can name, whole ones."""
    found = (kind for node in nodes if (kind := kind_of(node)) is not None and not kind.devices)
    hosts = Counter(kind for kind in found if kind.chips_per_host or kind.accelerator == CPU)
    return Counter({kind: count // slice_hosts(kind) for kind, count in hosts.items() if count >= slice_hosts(kind)})


def read_pool(text: str, there: Mapping[SliceKind, int] | None) -> PoolRequest:
    """Read `KIND=UNITS`, `KIND=UNITSxTOPOLOGY` for TPUs, `KIND=UNITSxDEVICES` for hosts with fewer accelerators than the largest, and the
    words behind it: `h100=2,hosts=4,spot`.

    `there`: the slices of the cluster, which decide what the text leaves open. None: there is no cluster, and the first of the catalogue
    does. Raises BadPool.
    """
    beginning, *words = text.split(",")
    found = _POOL.fullmatch(beginning)
    if found is None:
        raise BadPool(
            f"--pool {text}: write KIND=UNITS, such as h100=2, or for TPUs KIND=UNITSxTOPOLOGY, such as v5p=1x2x2x2; words come behind it, "
            "as in h100=2,hosts=4,spot"
        )
    kind = _kind(text, found["kind"], there)
    size, units = found["size"] or "", int(found["units"])
    topology, per_host = "", 0
    if kind.family is Family.TPU:
        topology, per_host = _slice(text, found["kind"], kind, size, there)
    elif size:
        per_host = _devices(text, found["kind"], kind, size, units)
    return _with_words(text, PoolRequest(pool_name(found["kind"]), kind, units, topology, per_host), words)


def _devices(text: str, word: str, kind: Accelerator, size: str, units: int) -> int:
    """Return the accelerators of a host."""
    if size.isdecimal() and int(size) in kind.host_sizes:
        return int(size)
    sizes = ", ".join(map(str, kind.host_sizes))
    what = f"hosts of {kind.name} come with {sizes} accelerators, not {size}" if sizes else f"{kind.name} has no accelerators to count"
    raise BadPool(f"--pool {text}: {what}; write {word}={units}")


def _with_words(text: str, pool: PoolRequest, words: Iterable[str]) -> PoolRequest:
    """Return the pool as the words behind it say."""
    said: dict[str, str] = {}
    for word in words:
        field, value = _word(text, word)
        if field in said:
            what = f"a pool has one capacity, and {said[field]} and {value} are two" if field == "capacity" else f"{field} is there twice"
            raise BadPool(f"--pool {text}: {what}; leave one out")
        said[field] = value
    numbers = {field: _number(text, field, said[field]) for field in _NUMBERS if field in said}
    if "hosts" in numbers and pool.kind.family is Family.TPU:
        raise BadPool(
            f"--pool {text}: the hosts of a TPU slice follow from its topology; leave hosts out, and write another topology for more: "
            f"{pool.kind.topology_rule}"
        )
    if "name" in said and not _NAME.fullmatch(said["name"]):
        raise BadPool(f"--pool {text}: name must be of at most {MAX_POOL_NAME} characters of a-z, 0-9 and -, and begin with a letter")
    return replace(
        pool, name=said.get("name", pool.name), hosts=numbers.get("hosts", 1), least=numbers.get("min", 0), spares=numbers.get("spares", 0),
        capacity=_CAPACITIES[said["capacity"]] if "capacity" in said else None, autoscaler=_AUTOSCALER in said,
    )  # fmt: skip


def _word(text: str, word: str) -> tuple[str, str]:
    """Return the field that the word sets, and its value."""
    key, equals, value = word.partition("=")
    if equals and key in (*_NUMBERS, "name"):
        return key, value
    if word in _CAPACITIES:
        return "capacity", word
    if word == _AUTOSCALER:
        return word, word
    raise BadPool(
        f"--pool {text}: {word!r} says nothing of a pool; write hosts=N, min=N, spares=N, name=NAME, {_AUTOSCALER}, or one of "
        f"{', '.join(_CAPACITIES)}"
    )


def _number(text: str, field: str, value: str) -> int:
    least = 1 if field == "hosts" else 0
    # Not by int() alone, which takes "1_0", " 3" and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,4}", value, re.ASCII) or int(value) < least:
        raise BadPool(f"--pool {text}: {field}={value} is no number from {least}; write {field}={max(least, 1)}, for example")
    return int(value)


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
    """Return as many nodes as the units and spares of the pools take, and one for the syncer. `capacity`: of each, besides its
    accelerators."""
    found: list[Obj] = [_node("syncer", {}, [], capacity)]
    for pool in pools:
        slices = (pool.units + pool.spares) * pool.hosts
        for node in new_nodes(Addition(pool.kind, slices, pool.topology, pool.per_host, pool.name), (), ()):
            name, node_pool = (str(text).removeprefix(_ADDED) for text in (node["metadata"]["name"], node["metadata"]["labels"][NODE_POOL]))
            labels = {**node["metadata"]["labels"], NODE_HOSTNAME: name, NODE_POOL: node_pool, **_held_as(pool.capacity)}
            found.append(_node(name, labels, node["spec"].get("taints") or [], {**capacity, **node["status"]["capacity"]}))
    return found


def _held_as(capacity: Capacity | None) -> dict[str, str]:
    """Return the label of a node that is held so; none where a node without labels is: on demand."""
    if capacity is None or capacity is Capacity.SCAVENGED:
        return {}
    said = values_of(CapacityType(capacity.value))
    # One label is enough: others that say the same would only look like a node of several clouds.
    return {} if capacity is Capacity.ON_DEMAND else {key: values[0] for key, values in list(said.items())[:1]}


def _node(name: str, labels: Mapping[str, str], taints: list[Obj], capacity: Mapping[str, str]) -> Obj:
    spec = {"taints": taints} if taints else {}
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"capacity": dict(capacity)}}


def pool_name(word: str) -> str:
    """Return a pool's name: the word, or as much of it as a pool's name may have."""
    # Without the maker, which stands first: cut at the end instead, the kinds of one maker could have one name.
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
    # No default for a cluster: with the other kind of hosts the pool would wait for slices that it never gets.
    if size and there is not None and len(kind.host_options[size]) > 1:
        sizes = " or ".join(map(str, kind.host_options[size]))
        has = "both" if fitting else "none of these"
        raise BadPool(f"--pool {text}: hosts of such a slice have {sizes} chips, and the cluster has {has}; write chipsPerHost into a job")
    if not size and there is not None and len(topologies) != 1:
        has = f"the cluster has slices of {' and '.join(sorted(topologies))}" if topologies else f"the cluster has no slices of {kind.name}"
        raise BadPool(f"--pool {text}: {kind.name} comes in slices, and {has}; write the topology, such as {word}=1x{kind.topologies[0]}")
    topology = size or next(iter(topologies), kind.topologies[0])
    return topology, kind.host_options[topology][0]
