"""An in-memory API server that keeps Kubernetes' promises; tests/kube holds it to the same contract as a real one."""

from diloco_operator.kube.memory.api import WRITE_VERBS, Hook, MemoryApi

__all__ = ["WRITE_VERBS", "Hook", "MemoryApi"]
