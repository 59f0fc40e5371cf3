"""Changes of a fleet that a preview tries: pools are removed, slices are added, nodes are drained. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diloco.wording import and_more
from diloco_operator.accelerators import CATALOGUE, Accelerator, Family
from diloco_operator.api.job import InvalidJob, load
from diloco_operator.api.names import NODE_POOL
from diloco_operator.api.spec import Pool
from diloco_operator.fleet.node import project_node
from diloco_operator.fleet.slice_kinds import kind_of, kinds_for, shape_of
from diloco_operator.fleet.slices import SliceKind
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import MalformedField

from diloco_local.preview.nodes import Addition, new_nodes

_ADDITION = re.compile(r"(?P<pool>[^=]+)=(?P<count>[1-9][0-9]{0,3})(x(?P<size>[0-9]+(x[0-9]+)*))?")
_NODE_POOLS = (NODE_POOL, "karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool")
"""Labels with the name of the node pool that a node belongs to."""
_NAMED = 12


class BadChange(ValueError):
    """A change that the fleet does not allow; the message names the option."""


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """The values of the options --without, --add and --drain, as given."""

    without: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        options = (("--without", self.without), ("--add", self.add), ("--drain", self.drain))
        return tuple(f"{option} {value}" for option, values in options for value in values)


@dataclass(frozen=True, slots=True)
class Changes:
    """What becomes of the fleet."""

    removed: tuple[str, ...] = ()
    """Names of nodes."""
    drained: tuple[str, ...] = ()
    """Names of nodes."""
    added: tuple[Obj, ...] = ()

    def of(self, nodes: Sequence[Obj]) -> list[Obj]:
        """The nodes after the change: without removed and drained ones, with added ones."""
        gone = {*self.removed, *self.drained}
        return [*(node for node in nodes if node["metadata"]["name"] not in gone), *self.added]

    def __bool__(self) -> bool:
        return bool(self.removed or self.drained or self.added)


def changes_of(options: ChangeOptions, nodes: Sequence[Obj], jobs: Sequence[Obj]) -> Changes:
    """Read the options. They may name pools of these jobs. Raises `BadChange`."""
    pools = _pools(jobs)
    node_names = [node["metadata"]["name"] for node in nodes]
    removed = sorted({name for pool in options.without for name in _nodes_of(pool, nodes, pools)})
    for name in options.drain:
        if name not in node_names:
            raise _unknown(f"--drain {name}: there is no node of this name", name, node_names, "nodes")
        if name in removed:
            raise BadChange(f"--drain {name}: the node goes with --without already; leave out one of the two")
    added: list[Obj] = []
    for text in options.add:
        # The nodes of earlier --add too: two additions of one kind would otherwise make the same names.
        taken = {node["metadata"]["name"] for node in (*nodes, *added)}
        added += new_nodes(_addition(text, nodes, pools), nodes, taken)
    return Changes(tuple(removed), tuple(dict.fromkeys(options.drain)), tuple(added))


def _pools(jobs: Iterable[Obj]) -> dict[str, list[Pool]]:
    """Name -> the pools of all jobs with this name. Jobs that cannot be read are left out."""
    by_name: dict[str, list[Pool]] = {}
    for job in jobs:
        try:
            spec = load(job).spec
        except InvalidJob:
            continue
        for pool in spec.pools:
            by_name.setdefault(pool.name, []).append(pool)
    return by_name


# --- nodes that go -----------------------------------------------------------------------------------------------------
def _nodes_of(name: str, nodes: Sequence[Obj], pools: Mapping[str, Sequence[Pool]]) -> list[str]:
    """Names of the nodes that `--without NAME` removes: the node pool with this name; if there is none, the nodes with an accelerator of
    this name; if there is no such accelerator, the nodes that a job's pool with this name can use."""
    by_label = [node for node in nodes if name in _node_pools(node)]
    if by_label:
        return [node["metadata"]["name"] for node in by_label]
    # A pool of a job may have the same name as a kind. Then its user means the pool.
    kind = _kind_named(f"--without {name}", name, nodes) if name not in pools else None
    if kind is not None:
        node_names = [node["metadata"]["name"] for node in nodes if _accelerator(node) == kind.name]
        if node_names:
            return node_names
        raise BadChange(f"--without {name}: the fleet has no node of {kind.name}")
    if name not in pools:
        known = sorted({pool for node in nodes for pool in _node_pools(node)} | pools.keys())
        raise _unknown(f"--without {name}: there is no node pool, pool of a job or accelerator of this name", name, known, "pools")
    node_names = sorted({node for pool in pools[name] for node in _usable(pool, nodes)})
    if not node_names:
        raise BadChange(f"--without {name}: the fleet has no node that pool {name} can use")
    return node_names


def _usable(pool: Pool, nodes: Sequence[Obj]) -> list[str]:
    try:
        shape = shape_of(pool)
    except ValueError:
        return []
    kinds = {node["metadata"]["name"]: kind for node in nodes if (kind := _slice_kind(node)) is not None}
    return [name for name, kind in kinds.items() if kinds_for(shape, {kind})]


def _slice_kind(node: Obj) -> SliceKind | None:
    try:
        return kind_of(project_node(node))
    except MalformedField:
        return None


def _accelerator(node: Obj) -> str:
    kind = _slice_kind(node)
    return kind.accelerator if kind is not None else ""


def _node_pools(node: Obj) -> list[str]:
    labels = node["metadata"].get("labels") or {}
    return [labels[key] for key in _NODE_POOLS if key in labels]


# --- nodes that come ---------------------------------------------------------------------------------------------------
def _addition(text: str, nodes: Sequence[Obj], pools: Mapping[str, Sequence[Pool]]) -> Addition:
    match = _ADDITION.fullmatch(text)
    if match is None:
        raise BadChange(
            f"--add {text}: write POOL=COUNTxTOPOLOGY, such as v6e=4x2x2 for four slices of 2x2, or POOL=COUNT for hosts, such as h100=2"
        )
    name, count, size = match["pool"], int(match["count"]), match["size"] or ""
    kind = _kind_for(text, name, nodes, pools)
    if kind.family is not Family.TPU:
        if size and not size.isdecimal():
            raise BadChange(f"--add {text}: {kind.name} has no topologies; write {name}=COUNT, or {name}=COUNTxDEVICES for smaller hosts")
        per_host = int(size) if size else 0
        if per_host and per_host not in kind.host_sizes:
            sizes = ", ".join(map(str, kind.host_sizes))
            raise BadChange(f"--add {text}: hosts of {kind.name} come with {sizes or 'no'} accelerators, not {per_host}")
        return Addition(kind, count, "", per_host, name)
    if size not in kind.host_options:
        missing = f"topology {size!r}" if size else "slice without a topology"
        example = kind.topologies[min(1, len(kind.topologies) - 1)]
        raise BadChange(
            f"--add {text}: {kind.name} has no {missing}; it has {kind.topology_rule}. The first number is the count: {name}=1x{example}"
        )
    options = kind.host_options[size]
    asked = {pool.chips_per_host for each in pools.values() for pool in each if (pool.accelerator, pool.topology) == (kind.name, size)}
    per_host = next((option for option in options if option in asked), options[0])
    return Addition(kind, count, size, per_host, name)


def _kind_for(text: str, name: str, nodes: Sequence[Obj], pools: Mapping[str, Sequence[Pool]]) -> Accelerator:
    """The kind that `name` means: the kind that a pool of a job with this name asks for; if there is none, the kind with this name; if
    there is none, the kind of the nodes in a node pool with this name."""
    asked = sorted({pool.accelerator for pool in pools.get(name, ())})
    if len(asked) > 1:
        raise BadChange(f"--add {text}: pools of this name ask for {' and for '.join(asked)}; write the kind instead, such as {asked[0]}=1")
    if asked and asked[0] in CATALOGUE:
        return CATALOGUE[asked[0]]
    if (kind := _kind_named(f"--add {text}", name, nodes)) is not None:
        return kind
    in_node_pool = sorted({_accelerator(node) for node in nodes if name in _node_pools(node)} - {""})
    if len(in_node_pool) == 1:
        return CATALOGUE[in_node_pool[0]]
    raise _unknown(f"--add {text}: there is no pool or accelerator {name}", name, [*pools, *CATALOGUE], "pools and accelerators")


def _kind_named(option: str, name: str, nodes: Sequence[Obj]) -> Accelerator | None:
    """Find a kind by its name or by a part of it, such as v6e. If several kinds have that part, such as h100, take the one that the fleet
    has. None if no kind has it. Raises `BadChange` if the fleet does not decide."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    kinds = [kind for kind in CATALOGUE.values() if name in kind.name.split("-")]
    in_fleet = {_accelerator(node) for node in nodes} if len(kinds) > 1 else set()
    chosen = [kind for kind in kinds if kind.name in in_fleet] if len(kinds) > 1 else kinds
    if kinds and len(chosen) != 1:
        raise BadChange(f"{option}: {name} may be {' or '.join(kind.name for kind in kinds)}; write one of these")
    return chosen[0] if chosen else None


def _unknown(what: str, name: str, known: Sequence[str], of: str) -> BadChange:
    near = difflib.get_close_matches(name, known, 1)
    listed = list(dict.fromkeys(known))
    if near:
        hint = f"did you mean {near[0]}?"
    elif listed:
        hint = f"the {of} are {and_more(listed[:_NAMED], len(listed))}"
    else:
        hint = f"there are no {of}"
    return BadChange(f"{what}; {hint}")
