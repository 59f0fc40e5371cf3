"""Snapshots as a syncer writes them, of any model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from builders.core import InlineCore, a_job
from diloco.algorithm.fragments import pack
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.state import FORMAT as CORE_FORMAT
from diloco.contract import JobFile
from diloco.data.ledger import Ledger
from diloco.snapshots.store import SnapshotStore
from diloco.snapshots.tensor_file import TensorParts
from diloco.syncer.job.restore import META_FORMAT, StateBesideCore, snapshot_data
from diloco.syncer.job.version_checksums import VersionChecksums
from diloco.syncer.job.work import JobWork
from diloco.syncer.reporting.loss_history import LossHistory
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco.syncer.streams.sessions import StoredSessions
from diloco.tape.writer import Position
from numpy.typing import NDArray

type Arrays = Mapping[str, NDArray[Any]]

MODEL = Layout([TensorSpec("w", (4, 3))])


def save_snapshot(root: Path, t: int, arrays: Arrays, *, job: str = "bytes-lm", uid: str = "uid", fragments: int = 1) -> Path:
    """The folder of a snapshot of step `t` below `root`, in which these are the parameters. None before it is removed."""
    training = a_job(fragments=fragments, sync_interval=max(2, fragments))
    core = InlineCore(Layout(TensorSpec(name, array.shape) for name, array in arrays.items()), training)
    assert core.begin([pack(fragment, arrays) for fragment in core.fragments]) is None
    file = JobFile(name=job, namespace="default", uid=uid, training=training)
    beside = StateBesideCore(
        work=JobWork(Ledger(), fragments),
        sessions=StoredSessions(),
        tokens=[0] * fragments,
        unit_stats=UnitStatsTable(),
        fences={},
        evaluations={},
        losses=LossHistory(),
        checksums=VersionChecksums(),
    )
    data = snapshot_data(core, beside, file, Position(1, 1))
    return SnapshotStore(root, keep=100).save(t, data.tensors, data.meta)


def a_model(value: float = 1.0, **more: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Three tensors; one is a scalar."""
    return {
        "layers.0.weight": np.arange(12, dtype=np.float32).reshape(4, 3) + value,
        "layers.0.bias": np.full(3, value, np.float32),
        "scale": np.array(value, np.float32),
        **more,
    }


def save_large_snapshot(root: Path, t: int, tensors: int, elements: int, *, job: str = "bytes-lm") -> Path:
    """A snapshot with so many equal tensors of random values, of which memory holds one at a time; with momentum of the same size."""
    array = np.random.default_rng(t).standard_normal(elements, np.float32)
    names = [f"layers.{index:03d}" for index in range(tensors)]
    meta: dict[str, Any] = {
        "format": META_FORMAT,
        "job": {"uid": "uid", "name": job, "namespace": "default"},
        "core": {"format": CORE_FORMAT, "layout": [[name, [elements], False, 0] for name in names]},
    }
    return SnapshotStore(root, keep=100).save(
        t, TensorParts([{f"{kind}/{name}": array for kind in ("value", "momentum") for name in names}]), meta
    )
