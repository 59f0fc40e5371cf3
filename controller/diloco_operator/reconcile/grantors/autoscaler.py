"""An autoscaler that brings nodes for pods that wait: the cluster autoscaler, Karpenter, node auto-provisioning. Pure.

The pods are the demand. What it says of them stands in Events (`operator.grantor_events`).

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from diloco_operator.api.spec import Pool, ProvisioningMode, Spec
from diloco_operator.reconcile.grantors.interface import NODES, Grantor


class Autoscaler(Grantor):
    """It needs nothing but the pods."""

    name, asked, gives = "Autoscaler", "the autoscaler", NODES

    def grants(self, spec: Spec, pool: Pool) -> bool:
        return pool.provisioning.mode is ProvisioningMode.AUTOSCALER
