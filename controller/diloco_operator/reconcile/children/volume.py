"""The syncer's volume: whether its claim can be bound. Asked before learners take hardware, which would wait for the volume. Pure.

See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

from typing import NamedTuple

from diloco_operator.api import names
from diloco_operator.api.spec import Spec
from diloco_operator.reconcile.children import syncer_words
from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.children import Child
from diloco_operator.timeouts import RECONCILE

_OF_VOLUMES = ("persistentvolume", "persistent volume", "storageclass", "free storage", "binding volumes")
"""Parts of kube-scheduler's message about a pod whose volumes keep it from every node:
https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/framework/plugins/volumebinding/volume_binding.go."""


class Volume(NamedTuple):
    """What the syncer's claim means for the job's start."""

    wait: str | None = None
    """Why no learner may start. None if they may."""
    problem: str | None = None
    """What is wrong with the claim, and what to do. None if nothing is known to be wrong."""
    certain: bool = False
    """The problem does not end by itself."""
    certain_at: float | None = None
    """When the problem will be certain, if it lasts."""


def names_class(spec: Spec, config: OperatorConfig) -> bool:
    """Whether the syncer's claim names its StorageClass, and so needs no default one."""
    return bool(spec.syncer.storage.class_name or config.storage_class_name)


def lacks_class(claim: Child) -> bool:
    """Whether nothing binds the claim, because it names no StorageClass and the cluster has no default one."""
    return claim.phase == "Pending" and not claim.storage_class


def syncer_volume(context: ReconcileContext) -> Volume:
    """A bound claim stays bound. An unbound one is no reason to wait while it may still be bound in time: some classes bind it only once
    the syncer's pod has a node."""
    claim, named = context.observed.children.volume_claim, context.spec.syncer.storage.class_name
    name = names.volume_claim_name(context.observed.job.name)
    if claim is None:
        # The API server fills in the default class when it creates the claim, so the claim shows at once whether there is a default.
        known = not named and (context.observed.config.storage_class_name or context.observed.default_class)
        return Volume() if known else Volume(syncer_words.claim_is_created(name))
    if claim.phase != "Pending":
        return Volume()
    if lacks_class(claim):
        problem = syncer_words.no_storage_class(name)
        return Volume(syncer_words.waits_for_volume(problem), problem, certain=True)
    syncer = context.syncer
    if syncer is not None and any(part in syncer.unschedulable.lower() for part in _OF_VOLUMES):
        problem = syncer_words.claim_not_bound(name, claim.storage_class, syncer.unschedulable)
        # The scheduler says the same while a volume is being made, so the problem is certain only after a while.
        due = syncer.created + RECONCILE.hold_in_vain
        return Volume(syncer_words.waits_for_volume(problem), problem, certain=context.now >= due, certain_at=due)
    # The user may have mistyped the class. It exists if a scheduler has found a node for the claim.
    class_exists = not named or claim.taken_up or (syncer is not None and syncer.node)
    return Volume() if class_exists else Volume(syncer_words.waits_for_volume(syncer_words.class_is_tried(name, claim.storage_class)))
