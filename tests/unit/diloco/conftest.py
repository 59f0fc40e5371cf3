"""Fixtures of the runtime's tests."""

from builders.poisoned_memory import poisoned_memory

__all__ = ["poisoned_memory"]
