"""What a pool asks of the hardware of its units, as placement reads it. Pure."""

from __future__ import annotations

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api.spec import Capacity, Pool
from diloco_operator.fleet.admission import tolerations_of
from diloco_operator.fleet.affinity import node_terms
from diloco_operator.placement import PoolRequest
from diloco_operator.placement.requirements import SliceRequirements, slice_requirements
from diloco_operator.reconcile.context import ReconcileContext


def hardware_request(context: ReconcileContext, pool: Pool) -> PoolRequest:
    """Return a request of this pool for no unit yet."""
    template = pool.template.spec
    labels = template.get("nodeSelector") or {}
    tolerations = tolerations_of(template)
    needs, added = context.needs[pool.name], {}
    if (known := context.admissions.get(pool.name)) is not None:
        needs = known.pod.requests
        added = known.pod.added_labels({**labels, **CATALOGUE[pool.accelerator].node_selector(pool.topology)})
        tolerations = (*tolerations, *known.pod.added_tolerations(tolerations))
    return PoolRequest(
        name=pool.name,
        shape=context.shapes[pool.name],
        min=0,
        max=0,
        units=(),
        capacity="" if pool.capacity in (None, Capacity.SCAVENGED) else str(pool.capacity),
        node_selector={**labels, **added},
        added_labels=frozenset(added),
        affinity=node_terms(template.get("affinity")),
        tolerations=tolerations,
        avoided=context.hosts.avoided,
        locality=pool.locality,
        needs=needs,
        needs_added=needs != context.needs[pool.name],
    )


def pool_requirements(context: ReconcileContext, pool: Pool) -> SliceRequirements:
    """Return the requirements of the slices of this pool's units."""
    return slice_requirements(hardware_request(context, pool))
