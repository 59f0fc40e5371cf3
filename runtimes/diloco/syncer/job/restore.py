"""What a syncer finds on its volume: the newest usable snapshot as core, ledger, unit statistics and fences, or nothing yet.

See docs/decisions/0002-snapshots-and-rollback.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco.algorithm.core import Core
from diloco.algorithm.layout import LayoutError
from diloco.algorithm.state import CoreState, StateError
from diloco.contract import JobFile, remote_snapshots
from diloco.data.ledger import Ledger, LedgerError
from diloco.syncer.config import SyncerConfig
from diloco.syncer.reporting.loss_history import LossHistory
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco.syncer.snapshots.ending import EndError, Ending, is_over, load_ending
from diloco.syncer.snapshots.fences import load_fences
from diloco.syncer.snapshots.remote import RemoteSnapshots
from diloco.syncer.snapshots.store import Loaded, SnapshotError, SnapshotStore
from diloco.syncer.snapshots.tensor_file import Array, TensorParts
from diloco.syncer.snapshots.writer import DurableSnapshot, SnapshotData

_log = logging.getLogger(__name__)

META_FORMAT = 1
"""Version of what `snapshot_data` stores besides the core's state."""


class BadState(Exception):
    """The volume holds state that this job cannot continue from. The message says what is wrong and what to do."""


@dataclass(slots=True)
class RestoredState:
    """Everything that a snapshot holds and a process continues from."""

    core: Core | None
    """None: the job has no parameters yet."""
    ledger: Ledger
    unit_stats: UnitStatsTable
    fences: dict[str, int]
    evaluations: dict[str, tuple[float, int]]
    """Per unit: held-out loss of the final parameters, and over how many tokens."""
    losses: LossHistory
    snapshot: DurableSnapshot | None
    ending: Ending | None
    """What a training program has said of the job's end."""
    message: str
    """A remark for status, e.g. that an older snapshot was used; empty: none."""


def snapshot_data(
    core: Core,
    ledger: Ledger,
    unit_stats: UnitStatsTable,
    job: JobFile,
    fences: Mapping[str, int],
    evaluations: Mapping[str, Any],
    losses: LossHistory,
) -> SnapshotData:
    """The state at this moment. The arrays are shared with the core, which never writes to them."""
    state = core.state()
    meta = {
        "format": META_FORMAT,
        "job": {"uid": job.uid, "name": job.name, "namespace": job.namespace},
        "core": state.meta(),
        "ledger": ledger.to_json(),
        "accounts": unit_stats.to_json(),
        "fences": dict(fences),
        "evaluations": {unit: list(one) for unit, one in evaluations.items()},
        "losses": losses.to_json(),
    }
    return SnapshotData(core.t, TensorParts(state.parts()), meta)


def snapshot_places(config: SyncerConfig) -> tuple[SnapshotStore, RemoteSnapshots | None]:
    """The volume, and the remote copy in a folder of this job alone. Raises BadState if there is no driver for its URI."""
    checkpoint = config.job.training.checkpoint
    store = SnapshotStore(config.state_dir / "snapshots", checkpoint.keep)
    if not checkpoint.uri:
        return store, None
    try:
        folder = remote_snapshots(checkpoint.uri, config.job.namespace, config.job.name, config.job.uid)
        return store, RemoteSnapshots(folder, checkpoint.keep)
    except SnapshotError as error:
        raise BadState(str(error)) from error


def restore(config: SyncerConfig, store: SnapshotStore, remote: RemoteSnapshots | None) -> RestoredState:
    """Read the newest usable state. Blocking. Raises BadState; FencesError for a damaged fences file."""
    fences = load_fences(config.state_dir, config.job.uid)
    try:
        ending = load_ending(config.state_dir, config.job.uid, config.job.training)
    except EndError as error:
        raise BadState(str(error)) from error
    tried: list[CoreState] = []

    def arrays(path: Path, meta: Mapping[str, Any]) -> Mapping[str, Array]:
        """Of a new state, into which the snapshot is read: it is in memory once."""
        tried.clear()
        with _naming(config, store, path):
            state = _allocate(config, meta)
        tried.append(state)
        return {name: array for part in state.parts() for name, array in part.items()}

    try:
        if remote is not None:
            remote.restore(store)
        loaded = store.load_newest(arrays)
    except SnapshotError as error:
        raise BadState(str(error)) from error
    if loaded is None:
        return RestoredState(None, Ledger(), UnitStatsTable(), fences, {}, LossHistory(), None, ending, "")
    with _naming(config, store, loaded.path):
        restored = _restored(config, loaded, tried.pop().checked(), fences, ending, copied=_is_copied(remote, loaded))
    store.drop_old()  # what a crash left between a save and this
    return restored


@contextlib.contextmanager
def _naming(config: SyncerConfig, store: SnapshotStore, path: Path) -> Iterator[None]:
    """What is wrong with the content of a snapshot, as BadState that names it."""
    try:
        yield
    except (LayoutError, StateError, LedgerError) as error:
        raise BadState(
            f"snapshot {path.name} in {store.root} does not fit job {config.job.name}: {error}. "
            "Give the job a volume of its own, or correct spec.training."
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise BadState(f"snapshot {path.name} in {store.root} was not written by this program: {type(error).__name__}: {error}") from error


def _is_copied(remote: RemoteSnapshots | None, loaded: Loaded) -> bool:
    try:
        return remote is not None and remote.holds(loaded.path.name)
    except SnapshotError as error:
        _log.warning("%s", error)  # the state is there; the next upload finds out more
        return False


def _allocate(config: SyncerConfig, meta: Mapping[str, Any]) -> CoreState:
    if meta.get("format") != META_FORMAT:
        raise StateError(f"it has format {meta.get('format')!r}, this program reads {META_FORMAT}")
    state = CoreState.allocate(meta["core"])
    if state.t > config.job.training.steps:
        raise StateError(f"it is of outer step {state.t}, beyond training.steps, which is {config.job.training.steps}")
    return state


def _restored(
    config: SyncerConfig, loaded: Loaded, stored: CoreState, fences: dict[str, int], ending: Ending | None, *, copied: bool
) -> RestoredState:
    meta, training = loaded.meta, config.job.training
    core = Core(stored.layout, training, stored)
    same_job = meta["job"]["uid"] == config.job.uid
    if same_job:
        for unit, attempt in meta["fences"].items():
            fences[unit] = max(int(attempt), fences.get(unit, 0))
    message = ""
    if loaded.skipped:
        reasons = "; ".join(f"{one.path.name}: {one.why}" for one in loaded.skipped)
        message = f"went on from the older snapshot of outer step {loaded.t}, because newer ones cannot be used ({reasons})"
    elif not same_job:
        message = f"went on from outer step {loaded.t} of job {meta['job']['name']} (uid {meta['job']['uid']})"
    ledger = Ledger.from_json(meta["ledger"])
    message = "; ".join(text for text in (message, *ledger.repaired) if text)
    # Of the final parameters. With more training.steps than before, these are no longer the final ones.
    final = is_over(training, ending, stored.t, ledger.tokens)
    evaluations = {str(unit): (float(loss), int(tokens)) for unit, (loss, tokens) in meta["evaluations"].items() if final}
    losses = LossHistory(meta["losses"])
    unit_stats = UnitStatsTable(meta["accounts"])
    snapshot = DurableSnapshot(loaded.t, loaded.path, copied)
    return RestoredState(core, ledger, unit_stats, fences, evaluations, losses, snapshot, ending, message)
