"""What only simulated nodes of a real API server carry."""

from __future__ import annotations

from diloco_operator.api.names import LOCAL_PREFIX

FIELD_MANAGER = "diloco-simulated-nodes"
ANNOTATION_SIMULATE = f"{LOCAL_PREFIX}/simulate"
"""How the node fails, `stopped` or `partitioned`; without it the node is healthy."""
ANNOTATION_LEAVING = f"{LOCAL_PREFIX}/leaving"
"""The command that serves the node has cordoned it because it ends."""
LABEL_SERVER = f"{LOCAL_PREFIX}/server"
"""On nodes, volumes and the StorageClass: the command that serves them, by the identity of its state directory."""
STORAGE_CLASS = "diloco-local"
PROVISIONER = f"{LOCAL_PREFIX}/folders"
"""The StorageClass that the command offers, and its provisioner."""
