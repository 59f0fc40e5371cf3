"""An autoscaler that brings nodes for pods that wait: the cluster autoscaler, Karpenter, node auto-provisioning. Pure.

Waiting pods are all that it needs to be asked. It answers in Events about them (`operator.grantor_events`).

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from diloco_operator.api.spec import Pool, ProvisioningMode, Spec
from diloco_operator.reconcile.grantors.interface import NODES, Grantor


class Autoscaler(Grantor):
    name, asked, gives = "Autoscaler", "the autoscaler", NODES

    def grants(self, spec: Spec, pool: Pool) -> bool:
        return pool.provisioning.mode is ProvisioningMode.AUTOSCALER
