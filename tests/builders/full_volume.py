"""A volume that says how much room it has."""

from __future__ import annotations

import os

import pytest


def with_free_bytes(monkeypatch: pytest.MonkeyPatch, free: int, *, blocks: int = 1 << 40) -> None:
    """Let every file system have so many free bytes. `blocks`: of the whole; 0: it does not say."""
    found = os.statvfs_result((1, 1, blocks, free, free, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: found)
