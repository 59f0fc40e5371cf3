"""What a pool requires of the hardware of its units, as placement reads it. Pure."""

from __future__ import annotations

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api.spec import Capacity, Locality, Pool
from diloco_operator.fleet.admission import tolerations_of
from diloco_operator.fleet.affinity import node_terms
from diloco_operator.placement.request import PoolWords
from diloco_operator.placement.requirements import SliceRequirements, with_accelerators
from diloco_operator.reconcile.context import ReconcileContext


def pool_requirements(context: ReconcileContext, pool: Pool) -> SliceRequirements:
    """Return what slices must have for this pool's units: what the template asks for, and what the API server is known to add to its
    pods."""
    template, shape = pool.template.spec, context.shapes[pool.name]
    labels = dict(template.get("nodeSelector") or {})
    tolerations = tolerations_of(template)
    needs = context.needs[pool.name]
    if (known := context.admissions.get(pool.name)) is not None:
        needs = known.pod.requests
        labels |= _added_labels(context, pool)
        tolerations = (*tolerations, *known.pod.added_tolerations(tolerations))
    return SliceRequirements(
        shape,
        capacity="" if pool.capacity in (None, Capacity.SCAVENGED) else str(pool.capacity),
        node_selector=frozenset(labels.items()),
        affinity=node_terms(template.get("affinity")),
        tolerations=tolerations,
        locality=pool.locality if shape.slots > 1 else Locality.ANY,
        avoided=frozenset(context.hosts.avoided),
        needs=with_accelerators(needs, shape),
    )


def pool_words(context: ReconcileContext, pool: Pool, given_up: int) -> PoolWords:
    """Return what messages about the pool say besides its requirements. `given_up`: how many of its units were given up."""
    known = context.admissions.get(pool.name)
    return PoolWords(
        added_labels=frozenset(_added_labels(context, pool)),
        needs_added=known is not None and known.pod.requests != context.needs[pool.name],
        avoided=context.hosts.avoided,
        given_up=given_up,
        switched_off=pool.learners.max == 0,
    )


def _added_labels(context: ReconcileContext, pool: Pool) -> dict[str, str]:
    """Return the node labels that the API server adds to the node selector of the pool's pods."""
    known = context.admissions.get(pool.name)
    if known is None:
        return {}
    labels = pool.template.spec.get("nodeSelector") or {}
    return dict(known.pod.added_labels({**labels, **CATALOGUE[pool.accelerator].node_selector(pool.topology)}))
