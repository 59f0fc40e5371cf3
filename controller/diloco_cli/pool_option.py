"""Pools of a job from a few words, `--pool v5p=1x2x2x2` or `--pool h100=2,hosts=4,spot`, and from the nodes of a cluster. Pure.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

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
"""Prefix of the names of nodes that a preview adds."""
_CAPACITIES = {re.sub(r"(?<=.)(?=[A-Z])", "-", each.value).lower(): each for each in Capacity}
"""Capacities by their words in the option: spot, flex-start."""
_NUMBERS = {"hosts": 1, "min": 0, "spares": 0, "chips": 1}
"""Words with a number, and its least value."""
_AUTOSCALER = "autoscaler"
_NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{MAX_POOL_NAME - 2}}}[a-z0-9])?", re.ASCII)
_POOL = re.compile(r"(?P<kind>[a-z0-9][-a-z0-9]*)=(?P<units>[1-9][0-9]{0,3})(x(?P<size>[0-9]+(x[0-9]+)*))?", re.ASCII)


class BadPool(ValueError):
    """The option names no possible pool. The message says what to write."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A pool whose units have one host or several, or one TPU slice."""

    name: str
    kind: Accelerator
    units: int
    topology: str = ""
    """Topology of TPUs, or ""."""
    per_host: int = 0
    """Accelerators of a host. 0 for cpu, and for all that a host of the kind has."""
    hosts: int | None = None
    """Hosts of a unit. None for TPUs, whose topology determines them, and if nothing is said of them, which means one."""
    least: int = 0
    """learners.min."""
    spares: int = 0
    capacity: Capacity | None = None
    """None if the pool takes any."""
    autoscaler: bool = False
    """An autoscaler brings nodes for units for which no slice is free."""

    def processes(self, wanted: int | None = None) -> Obj:
        """The field `processesPerHost`: `wanted`, by default one for each GPU of a host. Empty for one, which is the API's default, and for
        TPUs and cpu."""
        if self.kind.family is not Family.HOST:
            return {}
        count = wanted or self.per_host or self.kind.host_sizes[-1]
        return {"processesPerHost": count} if count > 1 else {}

    def held_as(self, capacity: Capacity) -> PoolRequest:
        """The same pool, with this capacity if it names none."""
        return self if self.capacity else replace(self, capacity=capacity)

    def fields(self) -> Obj:
        """Fields of the pool in `spec.pools`, all but its template."""
        pool: Obj = {"name": self.name, "accelerator": self.kind.name}
        if self.kind.family is Family.TPU:
            pool["topology"] = self.topology
            # The API wants it only for a topology that comes with hosts of several sizes.
            if len(self.kind.host_options[self.topology]) > 1:
                pool["chipsPerHost"] = self.per_host
        elif self.per_host:
            pool["acceleratorsPerHost"] = self.per_host
        if self.hosts is not None:
            pool["hosts"] = self.hosts
        if self.capacity:
            pool["capacity"] = self.capacity.value
        if self.autoscaler:
            pool["provisioning"] = {"mode": ProvisioningMode.AUTOSCALER.value}
        if self.spares:
            pool["spares"] = self.spares
        return {**pool, "learners": {**({"min": self.least} if self.least else {}), "max": self.units}}


def slices_of(nodes: Iterable[NodeView]) -> Counter[SliceKind]:
    """Count the whole slices of each kind that a pool can name."""
    kinds = (kind for node in nodes if (kind := kind_of(node)) is not None and not kind.devices)
    hosts = Counter(kind for kind in kinds if kind.chips_per_host or kind.accelerator == CPU)
    return Counter({kind: count // slice_hosts(kind) for kind, count in hosts.items() if count >= slice_hosts(kind)})


def read_pool(
    text: str,
    slices: Collection[SliceKind] | None,
    default_name: Callable[[str], str] | None = None,
    *,
    owner: str = "the cluster",
) -> PoolRequest:
    """Read `KIND=UNITS`, `KIND=UNITSxTOPOLOGY` for TPUs, or `KIND=UNITSxDEVICES` for hosts with fewer accelerators than the largest, and
    the words behind it: `h100=2,hosts=4,spot`. Raises BadPool.

    Args:
        slices: decide what the text leaves open. If None, the catalogue's first entry decides
        default_name: makes the name of a pool that the text does not name, from the kind in the text
        owner: who has these slices, for messages
    """
    beginning, *words = text.split(",")
    parts = _POOL.fullmatch(beginning)
    if parts is None:
        raise BadPool(
            f"--pool {text}: write KIND=UNITS, such as h100=2, or for TPUs KIND=UNITSxTOPOLOGY, such as v5p=1x2x2x2; words come behind it, "
            "as in h100=2,hosts=4,spot"
        )
    there = None if slices is None else _Slices(owner, slices)
    kind = _kind(text, parts["kind"], there)
    size, units = parts["size"] or "", int(parts["units"])
    values, numbers = _words(text, kind, words)
    topology, per_host = "", 0
    if kind.family is Family.TPU:
        topology, per_host = _slice(text, parts["kind"], kind, size, numbers.get("chips", 0), there)
    elif size:
        per_host = _devices(text, parts["kind"], kind, size, units)
    return PoolRequest(
        name=values.get("name") or (default_name or pool_name)(parts["kind"]), kind=kind, units=units, topology=topology,
        per_host=per_host, hosts=numbers.get("hosts"), least=numbers.get("min", 0), spares=numbers.get("spares", 0),
        capacity=_CAPACITIES[values["capacity"]] if "capacity" in values else None, autoscaler=_AUTOSCALER in values,
    )  # fmt: skip


class _Slices(NamedTuple):
    """Slices that decide what a text leaves open, and who has them."""

    owner: str
    kinds: Collection[SliceKind]


def _devices(text: str, word: str, kind: Accelerator, size: str, units: int) -> int:
    if size.isdecimal() and int(size) in kind.host_sizes:
        return int(size)
    sizes = ", ".join(map(str, kind.host_sizes))
    what = f"hosts of {kind.name} come with {sizes} accelerators, not {size}" if sizes else f"{kind.name} has no accelerators to count"
    raise BadPool(f"--pool {text}: {what}; write {word}={units}")


def _words(text: str, kind: Accelerator, words: Iterable[str]) -> tuple[dict[str, str], dict[str, int]]:
    """The fields that the words set, and the values of those that are numbers."""
    values: dict[str, str] = {}
    for word in words:
        field, value = _word(text, word)
        if field in values:
            what = f"a pool has one capacity, and {values[field]} and {value} are two" if field == "capacity" else f"{field} is there twice"
            raise BadPool(f"--pool {text}: {what}; leave one out")
        values[field] = value
    numbers = {field: _number(text, field, values[field]) for field in _NUMBERS if field in values}
    if "hosts" in numbers and kind.family is Family.TPU:
        raise BadPool(
            f"--pool {text}: the hosts of a TPU slice follow from its topology; leave hosts out, and write another topology for more: "
            f"{kind.topology_rule}"
        )
    if "chips" in numbers and kind.family is not Family.TPU:
        raise BadPool(f"--pool {text}: chips are those of a TPU's host, and {kind.name} is no TPU; leave chips out")
    if "name" in values and not _NAME.fullmatch(values["name"]):
        raise BadPool(f"--pool {text}: name must be of at most {MAX_POOL_NAME} characters of a-z, 0-9 and -, and begin with a letter")
    return values, numbers


def _word(text: str, word: str) -> tuple[str, str]:
    """The field that the word sets, and its value."""
    key, equals, value = word.partition("=")
    if equals and key in (*_NUMBERS, "name"):
        return key, value
    if word in _CAPACITIES:
        return "capacity", word
    if word == _AUTOSCALER:
        return word, word
    raise BadPool(
        f"--pool {text}: {word!r} says nothing of a pool; write {'=N, '.join(_NUMBERS)}=N, name=NAME, {_AUTOSCALER}, or one of "
        f"{', '.join(_CAPACITIES)}"
    )


def _number(text: str, field: str, value: str) -> int:
    least = _NUMBERS[field]
    # int() alone would take "1_0", " 3" and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,4}", value, re.ASCII) or int(value) < least:
        raise BadPool(f"--pool {text}: {field}={value} is no number from {least}; write {field}={max(least, 1)}, for example")
    return int(value)


def of_slices(cluster_slices: Mapping[SliceKind, int]) -> list[PoolRequest]:
    """A pool for each kind of accelerator, the fastest first. Hosts without accelerators get one only if there are no others."""
    pools = []
    for slice_kind, count in sorted(cluster_slices.items()):
        kind = CATALOGUE[slice_kind.accelerator]
        pools.append(PoolRequest("", kind, min(count, MAX_LEARNERS), slice_kind.topology, slice_kind.chips_per_host))
    accelerated = [pool for pool in pools if pool.kind.family is not Family.CPU]
    chosen = sorted(accelerated or pools, key=lambda pool: -pool.kind.peak_tflops)[:MAX_POOLS]
    names = _distinct([pool_name(_short(pool.kind.name)) for pool in chosen])
    return [PoolRequest(name, pool.kind, pool.units, pool.topology, pool.per_host) for name, pool in zip(names, chosen, strict=True)]


def simulated_nodes(pools: Iterable[PoolRequest], capacity: Mapping[str, str]) -> list[Obj]:
    """Nodes for all units and spares, and one for the syncer. `capacity` is what each node has besides accelerators."""
    nodes: list[Obj] = [_node("syncer", {}, [], capacity)]
    for pool in pools:
        slices = (pool.units + pool.spares) * (pool.hosts or 1)
        for node in new_nodes(Addition(pool.kind, slices, pool.topology, pool.per_host, pool.name), (), ()):
            name, node_pool = (str(text).removeprefix(_ADDED) for text in (node["metadata"]["name"], node["metadata"]["labels"][NODE_POOL]))
            labels = {**node["metadata"]["labels"], NODE_HOSTNAME: name, NODE_POOL: node_pool, **_held_as(pool.capacity)}
            nodes.append(_node(name, labels, node["spec"].get("taints") or [], {**capacity, **node["status"]["capacity"]}))
    return nodes


def _held_as(capacity: Capacity | None) -> dict[str, str]:
    """The label of nodes with this capacity. Empty for on-demand, which a node without a label is, and for a pool that takes any."""
    if capacity is None or capacity is Capacity.SCAVENGED:
        return {}
    labels = values_of(CapacityType(capacity.value))
    # One label is enough: with the labels of all clouds the node would seem to be in several.
    return {} if capacity is Capacity.ON_DEMAND else {key: values[0] for key, values in list(labels.items())[:1]}


def _node(name: str, labels: Mapping[str, str], taints: list[Obj], capacity: Mapping[str, str]) -> Obj:
    spec = {"taints": taints} if taints else {}
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"capacity": dict(capacity)}}


def pool_name(word: str) -> str:
    # A long name loses the maker, which stands first: without their end, several kinds of a maker could have one name.
    short = word if len(word) <= MAX_POOL_NAME else word.partition("-")[2] or word
    return short[:MAX_POOL_NAME].strip("-") if short[0].isalpha() else f"p{short}"[:MAX_POOL_NAME].strip("-")


def _short(kind: str) -> str:
    """The part of the name that no other kind has, such as v5p, or the whole name."""
    for part in kind.split("-"):
        if [name for name in CATALOGUE if part in name.split("-")] == [kind]:
            return part
    return kind


def _distinct(names: list[str]) -> list[str]:
    """Append a letter to names that occur more than once."""
    repeated = {name for name, count in Counter(names).items() if count > 1}
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        suffix = f"-{'abcdefghijklmnopqrstuvwxyz'[(seen[name] - 1) % 26]}"
        distinct.append(f"{name[: MAX_POOL_NAME - len(suffix)]}{suffix}" if name in repeated else name)
    return distinct


def _kind(text: str, word: str, there: _Slices | None) -> Accelerator:
    if word in CATALOGUE:
        return CATALOGUE[word]
    kinds = [kind for kind in CATALOGUE.values() if word in kind.name.split("-")]
    if not kinds:
        raise BadPool(f"--pool {text}: {word} is no kind of accelerator; the kinds are {', '.join(CATALOGUE)}")
    if len(kinds) == 1 or there is None:
        return kinds[0]
    present = {slice_kind.accelerator for slice_kind in there.kinds}
    chosen = [kind for kind in kinds if kind.name in present]
    if len(chosen) != 1:
        why = f"{there.owner} has {'several' if chosen else 'none'} of them"
        raise BadPool(f"--pool {text}: {word} may be {' or '.join(kind.name for kind in kinds)}, and {why}; write one of these")
    return chosen[0]


def _slice(text: str, word: str, kind: Accelerator, size: str, chips: int, there: _Slices | None) -> tuple[str, int]:
    """Topology and chips per host of a TPU slice. `chips`: of a host, as the text says, or 0."""
    if size and size not in kind.host_options:
        raise BadPool(
            f"--pool {text}: {kind.name} has no topology {size}; it has {kind.topology_rule}. The first number is that of the units: "
            f"{word}=1x{kind.topologies[0]}"
        )
    present = sorted(
        {
            (option.topology, option.chips_per_host)
            for option in (there.kinds if there is not None else ())
            if option.accelerator == kind.name and option.chips_per_host
        }
    )
    fitting = [option for option in present if size in ("", option[0]) and chips in (0, option[1])]
    if len(fitting) == 1:
        return fitting[0]
    topologies = {topology for topology, _ in fitting or present}
    # No default where slices are known: a pool with others would wait for some that it never gets.
    if not size and there is not None and len(topologies) != 1:
        has = f"has slices of {' and '.join(sorted(topologies))}" if topologies else f"has no slices of {kind.name}"
        raise BadPool(
            f"--pool {text}: {kind.name} comes in slices, and {there.owner} {has}; write the topology, such as "
            f"{word}=1x{kind.topologies[0]}"
        )
    # The first of the catalogue whose hosts may have so many chips.
    first = next((each for each in kind.topologies if chips in (0, *kind.host_options[each])), kind.topologies[0])
    topology = size or next(iter(topologies), first)
    options = kind.host_options[topology]
    sizes = " or ".join(map(str, options))
    if chips and chips not in options:
        raise BadPool(f"--pool {text}: hosts of a slice of {topology} have {sizes} chips, not {chips}; write chips={options[0]}")
    if not chips and there is not None and len(options) > 1:
        has = "both" if fitting else "none of these"
        raise BadPool(
            f"--pool {text}: hosts of a slice of {topology} have {sizes} chips, and {there.owner} has {has}; write which behind it, such "
            f"as chips={options[0]}"
        )
    return topology, chips or options[0]
