"""All grantors, and what they say together. Pure.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from diloco_operator.api import names
from diloco_operator.api.spec import Pool, Spec
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.kube.fields import Fields
from diloco_operator.plan import Patch
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.autoscaler import Autoscaler
from diloco_operator.reconcile.grantors.interface import Grantor
from diloco_operator.reconcile.grantors.kueue import Kueue
from diloco_operator.reconcile.observe import pods as observed_pods
from diloco_operator.reconcile.observe.pod_marks import PodGroup, PodMarks
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import WriteKey
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord

GRANTORS: Sequence[Grantor] = (
    Kueue(),  # first: with a queue it gives quota to every unit of the job, whatever brings the nodes
    Autoscaler(),
)
WATCHES = tuple(watched for grantor in GRANTORS for watched in grantor.watches)
_BY_NAME = {grantor.name: grantor for grantor in GRANTORS}


# --- which one --------------------------------------------------------------------------------------------------------
def grantor_of(spec: Spec, pool: Pool) -> Grantor | None:
    """Return who is asked for nodes for units of the pool. None if they run on free slices only."""
    return next((grantor for grantor in GRANTORS if grantor.grants(spec, pool)), None)


def grantor_named(name: str) -> Grantor | None:
    """Return the grantor that a delegated pod names. None if the name is "" or unknown: the pod is not delegated."""
    return _BY_NAME.get(name)


def chooser_of(spec: Spec) -> Grantor | None:
    """Return the grantor that chooses the place of every unit of the job. None if placement does, among free slices."""
    grantors = (grantor_of(spec, pool) for pool in spec.pools)
    return next((grantor for grantor in grantors if grantor is not None and grantor.chooses), None)


def cannot_ask(spec: Spec, pool: Pool, unreadable: Mapping[Resource, str]) -> str:
    """Return why the pool's grantor cannot be asked for nodes. "" if it can, or there is none."""
    grantor = grantor_of(spec, pool)
    # Units wait for a grantor that chooses their places even while it is missing.
    return grantor.missing(unreadable) if grantor is not None and not grantor.chooses else ""


# --- all of them ------------------------------------------------------------------------------------------------------
def grantor_patches(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> list[Patch]:
    """See `Grantor.patches`."""
    return [patch for grantor in GRANTORS for patch in grantor.patches(context, records)]


def orphan_patches(
    pods: Iterable[PodView], unreachable: Callable[[str], bool], owner: str = "", rejected: Callable[[WriteKey], bool] = lambda _: False
) -> list[Patch]:
    """See `Grantor.orphan_patches`. `owner`: uid of the job that has the name now and whose pods are left out, or "" if there is none."""
    foreign = [pod for pod in pods if pod.component == names.COMPONENT_LEARNER and pod.owner != owner and pod.deletion is not None]
    return [patch for grantor in GRANTORS for patch in grantor.orphan_patches(foreign, unreachable, rejected)] if foreign else []


def holds(pod: PodView) -> bool:
    """See `Grantor.holds`."""
    return any(grantor.holds(pod) for grantor in GRANTORS)


# --- what they leave on pods ------------------------------------------------------------------------------------------
def project_pod(obj: Obj) -> PodView:
    """Project the raw Pod object, with what grantors left on it. Raises `MalformedField`."""
    return observed_pods.project_pod(obj, _MARKS)


def _group(meta: Fields, labels: Fields, annotations: Fields) -> PodGroup | None:
    groups = (grantor.group(meta, labels, annotations) for grantor in GRANTORS)
    return next((group for group in groups if group is not None), None)


_MARKS = PodMarks(
    grantors=frozenset(_BY_NAME),
    group=_group,
    evictions=tuple(kind for grantor in GRANTORS for kind in grantor.evictions),
)
