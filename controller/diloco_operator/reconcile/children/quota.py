"""What a pod needs so that Kueue gives it quota: it belongs to the pod group of its unit, and no scheduler may bind it before. Pure.

The operator sets the scheduling gate itself. Kueue's webhook would set it, too, but where Kueue does not manage pods, or not those of the
namespace, nothing would hold the pods back, and they would run past every quota.

See docs/decisions/0174-kueue.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from diloco_operator.api import names
from diloco_operator.reconcile.children.places import PodPlace

_ROLE = "learner"
"""All pods of a group have one role. Kueue would tell roles apart by affinity and ports, of which a unit's pods and attempts have different
ones, and would take no pod in the place of one with another role."""


def in_group(places: Sequence[PodPlace], *, group: str, queue: str, priority: str) -> list[PodPlace]:
    """The places of an attempt, whose pods wait for the quota of their group. `priority`: the WorkloadPriorityClass; "": none."""
    labels = {names.KUEUE_QUEUE: queue, names.KUEUE_GROUP: group, **({names.KUEUE_PRIORITY: priority} if priority else {})}
    annotations = {names.KUEUE_GROUP_COUNT: str(len(places)), names.KUEUE_ROLE: _ROLE}
    return [
        place._replace(annotations={**place.annotations, **annotations}, labels=labels, gates=({"name": names.KUEUE_GATE},))
        for place in places
    ]
