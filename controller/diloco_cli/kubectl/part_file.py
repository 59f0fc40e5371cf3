"""The DiLoCoJob of a part in `job.yaml`: its pools by the options and the job at home, and what home changes in a file that is there. Pure.

See docs/decisions/0284-parts-in-other-clusters.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diloco_operator.api.job import InvalidJob, load
from diloco_operator.api.rules import MAX_POOL_NAME
from diloco_operator.fleet.slices import SliceKind
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.children.part_manifest import part_manifest

from diloco_cli.cluster import CommandError
from diloco_cli.pool_option import BadPool, PoolRequest, pool_name, read_pool

_OF_PROGRAM = ("acceleratorsPerHost", "processesPerHost", "hosts", "sharedMemory", "locality")
"""Fields of a pool at home that its program needs elsewhere too. The others are circumstances of the cluster."""
_HARDWARE = ("accelerator", "topology", "chipsPerHost")


def read_pools(texts: Sequence[str], home: Obj, cluster: str) -> list[PoolRequest]:
    """The pools of the part by the values of --pool. The pools of the job at home decide what these leave open. Raises `CommandError`."""
    slices = set(_slices(home))

    def name(kind: str) -> str:
        return _pool_name(kind, cluster, alone=len(texts) == 1)

    try:
        return [read_pool(text, slices, name, owner="the job") for text in texts]
    except BadPool as error:
        raise CommandError(str(error)) from error


def _slices(home: Obj) -> Iterator[SliceKind]:
    for pool in load(home).spec.pools:
        try:
            shape = pool.shape
        except ValueError:
            continue  # a kind of the operator's catalogue file, which --pool cannot name
        yield SliceKind(shape.accelerator, shape.topology, shape.accelerators_per_host)


def _pool_name(kind: str, cluster: str, *, alone: bool) -> str:
    """A name that no pool of another cluster has: `tokyo`, or `tokyo-v6e` if the part has several pools."""
    own = pool_name(kind)
    name = cluster if alone else f"{cluster[: max(1, MAX_POOL_NAME - 1 - len(own))].rstrip('-')}-{own}"
    return name[:MAX_POOL_NAME].rstrip("-")


# --- as home has it ---------------------------------------------------------------------------------------------------
def manifest_of(home: Obj, training: Obj, pools: Sequence[PoolRequest], at: Obj, template: str) -> Obj:
    """The part's DiLoCoJob. `training`: as the job file of home says it. `template`: the pool of home with the pod template, "": one of the
    same hardware, else the first. Raises `CommandError`."""
    spec = home["spec"]
    entries = [_entry(spec["pools"], pool, template) for pool in pools]
    return part_manifest(home["metadata"]["name"], spec, entries, training, at)


def _entry(of_home: Sequence[Obj], pool: PoolRequest, template: str) -> Obj:
    same = [each for each in of_home if each["accelerator"] == pool.kind.name]
    with_template = _named(of_home, template) if template else (same or of_home)[0]
    like = with_template if with_template in same else next(iter(same), {})
    return {**_of_program(like, pool), **pool.fields(), "template": with_template["template"]}


def _of_program(model: Mapping[str, Any], pool: PoolRequest) -> Obj:
    """Fields by a pool of the same hardware at home; empty `model` if it has none."""
    kept = {key: model[key] for key in _OF_PROGRAM if key in model}
    # At home the program runs with so many processes on so many accelerators, one process for all of them too.
    if not model or (pool.per_host and pool.per_host != _per_host(model, pool)):
        kept.pop("processesPerHost", None)
        kept |= pool.processes()
    return kept


def _per_host(model: Mapping[str, Any], pool: PoolRequest) -> int:
    """Accelerators of a host in a pool of the same hardware."""
    return int(model.get("acceleratorsPerHost") or (pool.kind.host_sizes or (0,))[-1])


def _named(of_home: Sequence[Obj], name: str) -> Obj:
    for pool in of_home:
        if pool["name"] == name:
            return pool
    raise CommandError(f"the job has no pool {name}; its pools are {', '.join(each['name'] for each in of_home)}")


# --- a file that is there ---------------------------------------------------------------------------------------------
def check_part(there: Obj, name: str, pools: Sequence[PoolRequest]) -> None:
    """Raises `ValueError` with the reason if the object is no part of a job of this name, or one of its pools has other hardware than is
    wanted now."""
    try:
        job = load(there)
    except InvalidJob as error:
        raise ValueError(str(error)) from error
    if job.metadata.name != name:
        raise ValueError(f"it has the DiLoCoJob {job.metadata.name}, not {name}")
    if job.spec.syncer.at is None:
        raise ValueError("its DiLoCoJob has no spec.syncer.at, so it is no part")
    known = {pool["name"]: pool for pool in there["spec"]["pools"]}
    for fields in (pool.fields() for pool in pools if pool.name in known):
        for key in (key for key in _HARDWARE if key in fields):
            has = known[fields["name"]].get(key, "not set")
            if has != fields[key]:
                raise ValueError(
                    f"{key} of its pool {fields['name']} is {has}, and --pool says {fields[key]}; a pool of other hardware needs another "
                    "name (name=NAME)"
                )


def updated(there: Obj, fresh: Obj) -> Obj:
    """Return the part `there` with what home decides, as it is in `fresh`: the training, where the syncer is, which pools there are, and
    how many units they have."""
    spec, wanted = there["spec"], fresh["spec"]
    known = {pool["name"]: pool for pool in spec["pools"]}
    return {
        **there,
        "spec": {
            **spec,
            "learners": _with_max(spec, wanted),
            "pools": [
                {**known[pool["name"]], "learners": _with_max(known[pool["name"]], pool)} if pool["name"] in known else pool
                for pool in wanted["pools"]
            ],
            "training": wanted["training"],
            "syncer": {**spec["syncer"], "at": {**spec["syncer"]["at"], **wanted["syncer"]["at"]}},
        },
    }


def _with_max(there: Obj, fresh: Obj) -> Obj:
    return {**there["learners"], "max": fresh["learners"]["max"]}
