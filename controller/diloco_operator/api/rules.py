"""The rules of a DiLoCoJob that types cannot express, in CEL. Pure data.

They are part of the CRD, so `kubectl apply`, `diloco validate` and the in-memory API refuse the same objects with the same words.
Every message names the field and the rule, and says what to do. Rules call only functions that a real API server has. Each list that
a rule iterates over is bounded in the schema, so that the rule's estimated cost stays within the API server's limit.

See docs/decisions/0010-crd-and-limits.md.
See docs/decisions/0052-drain-and-retry.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diloco.contract import MOST_PARTS

from diloco_operator.accelerators import BUILT_IN, Accelerator, Family, of_family
from diloco_operator.api.addresses import ADDRESS_PATTERN
from diloco_operator.api.durations import DURATION_PATTERN
from diloco_operator.api.names import LEARNER_CONTAINER, SYNCER_CONTAINER

MAX_JOB_NAME = 32
MAX_POOL_NAME = 15
MAX_ACCELERATORS_PER_HOST = 16
"""Bound of the field acceleratorsPerHost. A rule bounds it further for kinds whose hosts have fewer."""
MAX_PROCESSES_PER_HOST = 64
"""Bound of the field processesPerHost. A rule allows at most one process for each accelerator of a host."""
MAX_PART_UNITS = 32
"""Units of one part. Its Secret has certificates for many attempts of each, and an API server takes 1 MiB."""
MAX_FAILURES_ON_RECORD = 10_000
"""Times of failures in the status of a job: 27 bytes each, 264 KiB of the 1.5 MiB that etcd takes."""


@dataclass(frozen=True, slots=True)
class ValidationRule:
    rule: str
    """CEL over `self`. With `oldSelf` it is a transition rule, which is checked on updates only."""
    message: str
    field_path: str = ""
    """The field to blame, relative to the place of the rule, such as `.min`. "" for the place itself."""


def _text(value: str) -> str:
    """A CEL string literal. None of our strings contains a quote."""
    return "'" + value.replace("\\", "\\\\") + "'"


def _list(values: Iterable[str]) -> str:
    return "[" + ", ".join(_text(value) for value in values) + "]"


_TPU = _list(of_family(Family.TPU))
_HOST = _list(of_family(Family.HOST))
# The CRD knows only the built-in kinds. `api.kinds` has the same rules for kinds of a catalogue file.
_NO_TPU = _list(of_family(Family.HOST, Family.CPU))
_NO_HOST = _list(of_family(Family.TPU, Family.CPU))
_DURATION = _text(DURATION_PATTERN)
_DNS_LABEL = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_DNS_LABEL_1123 = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_OUTSIDE = "^[a-z]([-a-z0-9]*[a-z])?$"
# A file without a third slash would be relative to where the syncer's process happens to run.
_URI = "self.matches('^[a-z][a-z0-9+.-]*://[^/]*/?.+') && (!self.startsWith('file:') || self.startsWith('file:///'))"
_AWAY = "has(p.cluster) && p.cluster != ''"
"""Whether pool `p` is in another cluster. Clients that write all fields write an empty one for this cluster."""
_SUFFIX = "(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)"
_QUANTITY = f"^([1-9][0-9]{{0,14}}([.][0-9]{{1,3}})?{_SUFFIX}?|0[.][0-9]{{0,2}}[1-9][0-9]{{0,2}}{_SUFFIX})$"


def duration_rule(field: str) -> ValidationRule:
    """The form of every duration."""
    return ValidationRule(
        f"self.matches({_DURATION})",
        f"{field} must be a duration: write numbers with a unit of ms, s, m or h, such as 30s, 10m or 1h30m",
    )


def _at_least_a_second(field: str) -> ValidationRule:
    return ValidationRule(f"!self.matches({_DURATION}) || duration(self) >= duration('1s')", f"{field} must be at least 1s")


def _address(field: str, rule: str) -> ValidationRule:
    examples = "syncer.example.com, 203.0.113.7:7077 or [2001:db8::7]:7077"
    return ValidationRule(rule, f"{field} must be a host name or an IP address, with a port or without: {examples}")


def _topology_rule(kind: Accelerator) -> ValidationRule:
    return ValidationRule(
        f"self.accelerator != {_text(kind.name)} || (has(self.topology) && self.topology in {_list(kind.topologies)})",
        f"topology must be one that {kind.name} has: {kind.topology_rule}",
        ".topology",
    )


def _chips_per_host_rules() -> list[ValidationRule]:
    """A rule for all TPUs, and one for each topology that hosts of several sizes can make."""
    exceptions: dict[str, tuple[int, ...]] = {}
    ambiguous: dict[str, tuple[tuple[int, ...], list[str]]] = {}
    for name in of_family(Family.TPU):
        for topology, options in BUILT_IN[name].host_options.items():
            if options != (4,):
                exceptions[topology] = options
            if len(options) > 1:
                ambiguous.setdefault(topology, (options, []))[1].append(name)
    fitting = "".join(f"self.topology == {_text(topology)} ? {list(options)} : " for topology, options in exceptions.items()) + "[4]"
    words = ", ".join(f"{' or '.join(map(str, options))} for {topology}" for topology, options in exceptions.items())
    rules = [
        ValidationRule(
            f"!has(self.chipsPerHost) || !(self.accelerator in {_NO_TPU})",
            "chipsPerHost is for TPUs only; for other accelerators set acceleratorsPerHost",
            ".chipsPerHost",
        ),
        ValidationRule(
            f"!has(self.chipsPerHost) || !has(self.topology) || !(self.accelerator in {_TPU}) || self.chipsPerHost in ({fitting})",
            f"chipsPerHost must be one that hosts of this topology come with: {words}, else 4; leave it out to get that",
            ".chipsPerHost",
        ),
    ]
    for topology, (options, accelerators) in ambiguous.items():
        hosts = " or ".join(f"{count}" for count in options)
        rules.append(
            ValidationRule(
                f"!has(self.topology) || self.topology != {_text(topology)} || !(self.accelerator in {_list(accelerators)}) "
                "|| has(self.chipsPerHost)",
                f"chipsPerHost is needed, because {topology} exists with {hosts} chips per host; set it to {hosts}",
                ".chipsPerHost",
            )
        )
    return rules


def _accelerators_per_host_rules() -> list[ValidationRule]:
    sizes: dict[int, list[str]] = {}
    for name in of_family(Family.HOST):
        sizes.setdefault(BUILT_IN[name].host_sizes[-1], []).append(name)
    return [
        ValidationRule(
            f"!has(self.acceleratorsPerHost) || !(self.accelerator in {_NO_HOST})",
            "acceleratorsPerHost is for accelerators of single hosts, such as GPUs; a TPU's hosts follow from topology and chipsPerHost, "
            "and cpu has none",
            ".acceleratorsPerHost",
        ),
        *(
            ValidationRule(
                f"!has(self.acceleratorsPerHost) || !(self.accelerator in {_list(accelerators)}) || self.acceleratorsPerHost <= {size}",
                f"acceleratorsPerHost must be at most {size}, what a host has, for {', '.join(accelerators)}; use more hosts instead",
                ".acceleratorsPerHost",
            )
            for size, accelerators in sorted(sizes.items())
            if size < MAX_ACCELERATORS_PER_HOST
        ),
    ]


def _processes_per_host_rules() -> list[ValidationRule]:
    """At most one process for each accelerator, and the same number of accelerators for each process."""
    sizes: dict[int, list[str]] = {}
    for name in of_family(Family.HOST):
        sizes.setdefault(BUILT_IN[name].host_sizes[-1], []).append(name)
    count = "".join(f"self.accelerator in {_list(accelerators)} ? {size} : " for size, accelerators in sorted(sizes.items())) + "1"
    accelerators = f"(has(self.acceleratorsPerHost) ? self.acceleratorsPerHost : {count})"
    return [
        ValidationRule(
            f"!has(self.processesPerHost) || self.processesPerHost == 1 || !(self.accelerator in {_TPU})",
            "processesPerHost is not for TPUs, of which one process has all chips of its host; remove it",
            ".processesPerHost",
        ),
        ValidationRule(
            f"!has(self.processesPerHost) || !(self.accelerator in {_HOST}) || {accelerators} % self.processesPerHost == 0",
            "processesPerHost must divide acceleratorsPerHost (default: all of a host), so that each process gets as many accelerators; "
            "one process for each accelerator is usual",
            ".processesPerHost",
        ),
    ]


_POOL = [
    *(_topology_rule(kind) for kind in BUILT_IN.values() if kind.family is Family.TPU),
    ValidationRule(
        f"!has(self.topology) || self.topology == '' || !(self.accelerator in {_NO_TPU})",
        "topology is for TPUs only; for other hardware remove it and set hosts",
        ".topology",
    ),
    ValidationRule(
        f"!has(self.hosts) || !(self.accelerator in {_TPU})",
        "hosts is not for TPUs: the hosts of a TPU slice follow from its topology, so remove it",
        ".hosts",
    ),
    *_chips_per_host_rules(),
    *_accelerators_per_host_rules(),
    *_processes_per_host_rules(),
    ValidationRule(
        "!has(self.capacity) || self.capacity != 'Scavenged' || self.provisioning.mode == 'Existing'",
        "provisioning.mode must be Existing where capacity is Scavenged: such a pool takes what no other job wants, and no node is made "
        "for that; set another capacity",
        ".provisioning.mode",
    ),
    ValidationRule(
        "self.spares == 0 || (self.provisioning.mode == 'Existing' && (!has(self.capacity) || self.capacity != 'Scavenged'))",
        "spares keeps slices that are there, for as long as the job wants them: it needs provisioning.mode Existing, and a capacity other "
        "than Scavenged; remove it, or change these",
        ".spares",
    ),
    ValidationRule(
        "(has(self.cluster) ? self.cluster : '') == (has(oldSelf.cluster) ? oldSelf.cluster : '')",
        "cluster of a pool is immutable, because its units' names belong to one cluster; add a pool with another name",
        ".cluster",
    ),
    ValidationRule(
        "self.accelerator == oldSelf.accelerator",
        "accelerator of a pool is immutable; add a pool with another name for other hardware and remove this one",
        ".accelerator",
    ),
]


# --- changes of a job that has ended ----------------------------------------------------------------------------------
FREE_AFTER_END = ("managedBy", "podLabels", "ttlSecondsAfterFinished", "retry")
"""Fields of spec that may change after the end: they still have an effect, have a rule of their own, or change nothing. `_AS_BEFORE`
compares all other fields."""


def _same(field: str) -> str:
    """The field has its old value. Only for fields that are always present."""
    return f"self.spec.{field} == oldSelf.spec.{field}"


def _number_or_0(owner: str, field: str) -> str:
    return f"(has({owner}.{field}) ? {owner}.{field} : 0)"


def _is_true(condition: str) -> str:
    return f"oldSelf.status.conditions.exists(c, c.type == '{condition}' && c.status == 'True')"


_SAME_START = f"has(self.spec.startFrom) == has(oldSelf.spec.startFrom) && (!has(self.spec.startFrom) || {_same('startFrom')})"
_RETRY, _OLD_RETRY = _number_or_0("self.spec", "retry"), _number_or_0("oldSelf.spec", "retry")
_AS_BEFORE = " && ".join(
    (
        *map(_same, ("suspend", "priorityClassName", "queueName", "learners", "pools", "placement", "training")),
        # The other fields of the syncer have rules of their own.
        "has(self.spec.syncer.template) == has(oldSelf.spec.syncer.template)",
        f"(!has(self.spec.syncer.template) || {_same('syncer.template')})",
        "has(self.spec.syncer.externalAddress) == has(oldSelf.spec.syncer.externalAddress)",
        f"(!has(self.spec.syncer.externalAddress) || {_same('syncer.externalAddress')})",
        "has(self.spec.syncer.loadBalancer) == has(oldSelf.spec.syncer.loadBalancer)",
        "has(self.spec.syncer.at) == has(oldSelf.spec.syncer.at)",
        f"(!has(self.spec.syncer.at) || {_same('syncer.at')})",
        "has(self.spec.parts) == has(oldSelf.spec.parts)",
        f"(!has(self.spec.parts) || {_same('parts')})",
        _SAME_START,
        f"{_RETRY} <= {_OLD_RETRY}",
    )
)


_DONE = "oldSelf.status.progress"
_COMMITTED = f"(has({_DONE}.tokens) ? {_DONE}.tokens : 0)"
_HAS_MORE_TO_DO = (
    f"has({_DONE}) && has({_DONE}.steps) && "
    f"(!has(self.spec.training.tokens) || self.spec.training.tokens > {_COMMITTED}) && "
    f"(self.spec.training.steps > {_DONE}.steps || (has({_DONE}.tokenBudget) && {_COMMITTED} >= {_DONE}.tokenBudget && "
    f"self.spec.training.steps > {_number_or_0(_DONE, 'step')}))"
)
"""A complete job has more to do: more steps than before, or more tokens if its token budget ended it. `reconcile.status.starting_again`
decides the same way."""


def _takes_changes(ended: str, unless: str, message: str) -> ValidationRule:
    """A job whose condition `ended` is True may change only `FREE_AFTER_END`, or anything if `unless` holds."""
    return ValidationRule(
        f"!has(oldSelf.status) || !has(oldSelf.status.conditions) || !{_is_true(ended)} || ({unless}) || ({_AS_BEFORE})", message, ".spec"
    )


_POOL_NAME = ValidationRule(
    f"self.matches({_text(_DNS_LABEL_1123)}) && size(self) <= {MAX_POOL_NAME}",
    f"name must be a DNS label of at most {MAX_POOL_NAME} characters (a-z, 0-9 and -), because pod names are made from "
    "it; choose a shorter or simpler name",
)


RULES: Mapping[str, list[ValidationRule]] = {
    "": [
        _takes_changes(
            "Failed",
            f"{_RETRY} > {_number_or_0('oldSelf.status', 'retry')}",
            "the job has failed, and this change alone has no effect; set spec.retry above status.retry (absent is 0) in the same change: "
            "the job then starts again from its last snapshot. Without another change: kubectl diloco retry NAME",
        ),
        _takes_changes(
            "Complete",
            _HAS_MORE_TO_DO,
            "the job is complete, and this change has no effect; to train on from its final snapshot, raise spec.training.steps above "
            "status.progress.steps in the same change, or spec.training.tokens above status.progress.tokens if its token budget has ended "
            "it; else create a new job",
        ),
        ValidationRule(
            f"!has(oldSelf.status) || !has({_DONE}) || {_number_or_0(_DONE, 'step')} == 0 || ({_SAME_START})",
            "startFrom is immutable once the job has taken a step, because it says what the job began with; create a new job to begin with "
            "another model",
            ".spec.startFrom",
        ),
        ValidationRule(
            f"self.metadata.name.matches({_text(_DNS_LABEL)}) && size(self.metadata.name) <= {MAX_JOB_NAME}",
            f"metadata.name must be a DNS label of at most {MAX_JOB_NAME} characters (a-z, 0-9 and -, beginning with a letter), because "
            "pod names are made from it; choose a shorter or simpler name",
            ".metadata.name",
        ),
    ],
    "spec": [
        ValidationRule(
            "self.managedBy == oldSelf.managedBy",
            "managedBy is immutable; create a new job to hand it to another controller",
            ".managedBy",
        ),
        ValidationRule(
            "self.queueName == oldSelf.queueName || self.suspend || oldSelf.suspend",
            "queueName can be changed only in a job that is suspended before or after the change, because its pods have their quota from "
            "the queue that they began in; set spec.suspend to true in the same change, and to false once its pods have ended",
            ".queueName",
        ),
        ValidationRule(
            "self.queueName == '' || self.pools.all(p, p.spares == 0)",
            "pools[].spares is not for a job with queueName: Kueue gives quota to pods only, and would give that of the spares to others; "
            "remove it",
            ".pools",
        ),
        ValidationRule(
            "has(self.syncer.at) || self.training.quorum <= self.learners.min",
            "training.quorum must not exceed learners.min: with only learners.min learners placed, outer steps would wait for ever; lower "
            "training.quorum or raise learners.min",
            ".training.quorum",
        ),
        ValidationRule(
            "self.pools.map(p, p.learners.min).sum() <= self.learners.max",
            "the sum of pools[].learners.min must not exceed learners.max; lower the pools' minima or raise learners.max",
            ".pools",
        ),
        ValidationRule(
            "self.pools.map(p, p.learners.max).sum() >= self.learners.min",
            "the sum of pools[].learners.max must reach learners.min, else the minimum can never be placed; raise the pools' maxima or "
            "lower learners.min",
            ".pools",
        ),
        ValidationRule(
            "!has(self.syncer.at) || (!has(self.parts) && !has(self.learners.outside) && !has(self.startFrom))",
            "a job with syncer.at is a part of the job at home, where parts, learners.outside and startFrom are said; remove them here",
            ".syncer.at",
        ),
        ValidationRule(
            "has(self.syncer.at) == has(oldSelf.syncer.at)",
            "syncer.at can be neither added nor removed, because the syncer's state does not move between clusters; create another job",
            ".syncer.at",
        ),
        ValidationRule(
            f"!has(self.syncer.at) || !self.pools.exists(p, {_AWAY})",
            "pools[].cluster is for the job at home: a part with syncer.at runs its own pools here; remove it",
            ".pools",
        ),
        ValidationRule(
            f"!self.pools.exists(p, {_AWAY}) || (has(self.syncer.externalAddress) && self.syncer.externalAddress != '') "
            "|| has(self.syncer.loadBalancer)",
            "units of pools with cluster reach the syncer from another cluster: set syncer.externalAddress or syncer.loadBalancer",
            ".syncer",
        ),
        ValidationRule(
            f"self.pools.all(p, !({_AWAY}) || self.pools.filter(q, has(q.cluster) && q.cluster == p.cluster)"
            f".map(q, q.learners.max).sum() <= {MAX_PART_UNITS})",
            f"the pools of one cluster have at most {MAX_PART_UNITS} units together, as their certificates share one Secret; lower "
            "learners.max of these pools",
            ".pools",
        ),
        ValidationRule(
            "!has(self.parts) || self.parts.all(p, self.pools.all(q, !has(q.cluster) || q.cluster != p.name))",
            "a part in spec.parts is made by hand, and a cluster of pools[].cluster by the operator: give one of them another name",
            ".parts",
        ),
        ValidationRule(
            f"!has(self.parts) || self.parts.size() + self.pools.filter(p, {_AWAY}).size() <= {MOST_PARTS}",
            f"a job has at most {MOST_PARTS} parts: spec.parts and the pools with a cluster together; remove some",
            ".parts",
        ),
        ValidationRule(
            "!has(self.parts) || self.parts.all(p, p.pools.all(q, !self.pools.exists(r, r.name == q.name) && "
            "self.parts.exists_one(o, o.pools.exists(r, r.name == q.name))))",
            "a pool is in one cluster: no two parts, and no part and spec.pools, may have a pool of the same name; rename one of the pools",
            ".parts",
        ),
    ],
    "spec.pools[].cluster": [
        ValidationRule(
            f"self == '' || self.matches({_text(_DNS_LABEL_1123)})",
            "cluster must be a DNS label (a-z, 0-9 and -): a cluster of the operator's configuration",
        )
    ],
    "spec.parts": [
        ValidationRule(
            "self.all(p, self.exists_one(o, o.name == p.name))", "names of parts must be unique: each is a cluster; rename one of the parts"
        )
    ],
    "spec.parts[].name": [
        ValidationRule(
            f"self.matches({_text(_DNS_LABEL_1123)})",
            "name of a part must be a DNS label (a-z, 0-9 and -), because the name of its Secret is made from it",
        )
    ],
    "spec.parts[].pools": [
        ValidationRule(
            "self.all(p, self.exists_one(q, q.name == p.name))",
            "pool names must be unique, units are named after them; rename one of the pools",
        ),
        ValidationRule(
            f"self.map(p, p.units).sum() <= {MAX_PART_UNITS}",
            f"the pools of a part have at most {MAX_PART_UNITS} units together, as their certificates share one Secret; make two parts",
        ),
    ],
    "spec.parts[].pools[].name": [_POOL_NAME],
    "spec.queueName": [
        ValidationRule(
            f"self == '' || self.matches({_text(_DNS_LABEL_1123)})",
            "queueName must be the name of a LocalQueue of Kueue in the job's namespace: at most 63 characters of a-z, 0-9 and -; "
            "kubectl get localqueues lists them",
        )
    ],
    "spec.learners": [
        ValidationRule("self.min <= self.max", "learners.min must not exceed learners.max; lower min or raise max", ".min"),
        ValidationRule(
            f"self.restart.limit * self.max <= {MAX_FAILURES_ON_RECORD}",
            f"learners.restart.limit times learners.max must not exceed {MAX_FAILURES_ON_RECORD}: status keeps the time of each failure "
            "within the window, and an API server stores 1.5 MiB at most; lower one of the two",
            ".restart.limit",
        ),
    ],
    "spec.learners.outside": [
        ValidationRule(
            "self.all(name, self.exists_one(other, other == name))",
            "names of learners.outside must be unique: each is a learner of its own; rename one",
        ),
        ValidationRule(
            f"self.all(name, name.matches({_text(_OUTSIDE)}))",
            "names of learners.outside must be of a-z, 0-9 and -, begin with a letter and end with one, because names that end with a "
            "number are those of pools' units; rename it",
        ),
    ],
    "spec.learners.timeouts.schedule": [_at_least_a_second("schedule")],
    "spec.learners.timeouts.pull": [_at_least_a_second("pull")],
    "spec.learners.timeouts.start": [_at_least_a_second("start")],
    "spec.learners.timeouts.firstStep": [_at_least_a_second("firstStep")],
    "spec.learners.timeouts.join": [_at_least_a_second("join")],
    "spec.learners.stallTimeout": [_at_least_a_second("stallTimeout")],
    "spec.learners.restart.window": [_at_least_a_second("window")],
    "spec.learners.restart.backoff": [
        ValidationRule(
            f"!self.initial.matches({_DURATION}) || !self.max.matches({_DURATION}) || duration(self.initial) <= duration(self.max)",
            "backoff.initial must not exceed backoff.max; lower initial or raise max",
            ".initial",
        )
    ],
    "spec.placement.horizon": [_at_least_a_second("horizon")],
    "spec.pools": [
        ValidationRule(
            "self.all(p, self.exists_one(q, q.name == p.name))",
            "pool names must be unique, units are named after them; rename one of the pools",
        )
    ],
    "spec.pools[]": _POOL,
    "spec.pools[].name": [_POOL_NAME],
    "spec.pools[].sharedMemory": [
        ValidationRule(
            f"self == '0' || self.matches({_text(_QUANTITY)})",
            "sharedMemory must be 0 or a positive Kubernetes quantity such as 500Mi or 16Gi",
        )
    ],
    "spec.pools[].learners": [
        ValidationRule("self.min <= self.max", "min must not exceed max of the pool's learners; lower min or raise max", ".min"),
    ],
    "spec.pools[].template": [
        ValidationRule(
            f"has(self.spec) && has(self.spec.containers) && self.spec.containers.exists_one(c, c.name == {_text(LEARNER_CONTAINER)})",
            f'template.spec.containers must have one container named "{LEARNER_CONTAINER}", the training program; add it or rename yours',
            ".spec.containers",
        )
    ],
    "spec.pools[].provisioning.timeout": [_at_least_a_second("timeout")],
    "spec.training": [
        ValidationRule(
            "self.fragments == oldSelf.fragments",
            "fragments is immutable, because the syncer's state is cut into fragments; create a new job for another number",
            ".fragments",
        ),
        ValidationRule(
            "self.fragments <= self.syncInterval",
            "fragments must not exceed syncInterval: each fragment needs an outer step of its own within an interval; lower fragments or "
            "raise syncInterval",
            ".fragments",
        ),
        ValidationRule(
            "self.overlapSteps < self.syncInterval",
            "overlapSteps must be less than syncInterval, or a fragment would leave again before it arrived; lower overlapSteps or raise "
            "syncInterval",
            ".overlapSteps",
        ),
    ],
    "spec.training.checkpoint": [
        ValidationRule(
            "self.learners != 'Always' || self.uri != ''",
            "learners: Always needs a uri: learners store their states below it. Give s3://bucket/folder, or file:///path of a volume "
            "that the syncer's and the pools' templates mount",
            ".uri",
        )
    ],
    "spec.training.checkpoint.uri": [
        ValidationRule(
            f"self == '' || ({_URI})",
            "uri must be empty or have a scheme and a path, such as s3://bucket/folder or file:///mnt/snapshots",
        )
    ],
    "spec.startFrom.uri": [
        ValidationRule(
            _URI,
            "startFrom.uri must have a scheme and a path, such as s3://bucket/model.safetensors or file:///mnt/models/base",
        )
    ],
    "spec.syncer": [
        ValidationRule("self.shards == oldSelf.shards", "shards is immutable; create a new job for another number", ".shards"),
        ValidationRule("self.shards == 1", "shards above 1 is not supported yet; leave it out or set it to 1", ".shards"),
        ValidationRule(
            "!has(self.loadBalancer) || !has(oldSelf.loadBalancer) || self.loadBalancer == oldSelf.loadBalancer",
            "loadBalancer cannot be changed: its address would be lost; remove it, and add it again in another change",
            ".loadBalancer",
        ),
        ValidationRule(
            "!has(self.at) || (!has(self.template) && !has(self.externalAddress) && !has(self.loadBalancer))",
            "with syncer.at no syncer runs in this cluster; remove template, externalAddress and loadBalancer",
            ".at",
        ),
    ],
    "spec.syncer.externalAddress": [_address("externalAddress", f"self == '' || self.matches({_text(ADDRESS_PATTERN)})")],
    "spec.syncer.at.address": [_address("address", f"self.matches({_text(ADDRESS_PATTERN)})")],
    "spec.syncer.at.partTimeout": [_at_least_a_second("partTimeout")],
    "spec.syncer.storage": [
        ValidationRule(
            "self.size == oldSelf.size",
            "size is immutable; create a new job for another volume, or enlarge the volume claim itself if its storage class allows it",
            ".size",
        ),
        ValidationRule(
            "self.className == oldSelf.className",
            "className is immutable, because the volume exists already; create a new job for another volume",
            ".className",
        ),
    ],
    "spec.syncer.storage.size": [
        ValidationRule(
            f"self.matches({_text(_QUANTITY)})",
            "size must be a positive Kubernetes quantity such as 500Mi or 10Gi",
        )
    ],
    "spec.syncer.template": [
        ValidationRule(
            f"!has(self.spec) || !has(self.spec.containers) || self.spec.containers.exists_one(c, c.name == {_text(SYNCER_CONTAINER)})",
            f'template.spec.containers must have one container named "{SYNCER_CONTAINER}" if it has any; rename yours, or leave containers '
            "out to get the operator's own",
            ".spec.containers",
        )
    ],
}
"""Place in the schema -> its rules. `[]` stands for the items of an array."""
