"""An in-memory API server. tests/contract tests it with the same contract suite as a real one."""

from diloco_local.memory.api import WRITE_VERBS, Hook, MemoryApi

__all__ = ["WRITE_VERBS", "Hook", "MemoryApi"]
