"""What a syncer finds on its volume: the newest usable snapshot and what the tape says happened after it, or nothing yet.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco.algorithm.core import Core
from diloco.algorithm.layout import LayoutError
from diloco.algorithm.state import CoreState, StateError
from diloco.contract import JobFile, LearnerStates, copies_folder, remote_snapshots
from diloco.data.ledger import Ledger, LedgerError
from diloco.object_stores import words
from diloco.snapshots.remote import RemoteSnapshots
from diloco.snapshots.remote_folders import FIELD, RemoteFolders
from diloco.snapshots.store import Loaded, SnapshotError, SnapshotStore, reasons
from diloco.snapshots.stored_state import FOLDER as FOLDER_OF_STATES
from diloco.snapshots.tensor_file import Array, TensorParts
from diloco.snapshots.writer import DurableSnapshot, SnapshotData
from diloco.syncer.config import SyncerConfig
from diloco.syncer.ending import EndError, Ending, is_over, load_ending
from diloco.syncer.fences import load_fences
from diloco.syncer.job.redo import Stored, TapeEnd, end_of_tape, redo
from diloco.syncer.job.version_checksums import VersionChecksums
from diloco.syncer.job.work import JobWork
from diloco.syncer.reporting.loss_history import LossHistory
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco.syncer.streams.sessions import StoredSessions
from diloco.tape.records import TapeError
from diloco.tape.replay import segment_head
from diloco.tape.segments import FOLDER, heads
from diloco.tape.writer import Position, TapeWriter

_log = logging.getLogger(__name__)

_MOST_FORMER = 4
"""Former jobs whose stored states units may take. One suffices, unless it ended before its units had stored any."""
META_FORMAT = 2
"""Version of what `snapshot_data` stores besides the core's state."""


class BadState(Exception):
    """The volume holds state that this job cannot continue from. The message says what is wrong and what to do."""


@dataclass(slots=True, kw_only=True)
class StateBesideCore:
    """What a snapshot holds of a job beside its core."""

    work: JobWork
    """The ledger, and the work of sessions that go on."""
    sessions: StoredSessions
    """Sessions that go on in the next process."""
    tokens: list[int]
    """For each fragment, the job's committed tokens when its version was made."""
    unit_stats: UnitStatsTable
    fences: dict[str, int]
    evaluations: dict[str, tuple[float, int]]
    """For each unit (held-out loss of the final parameters, tokens of that evaluation)."""
    losses: LossHistory
    checksums: VersionChecksums
    former: Sequence[str] = ()
    """Folders below `checkpoint.uri` of the jobs that this one went on from, the last one first. Their units may have stored states."""


@dataclass(slots=True, kw_only=True)
class RestoredState(StateBesideCore):
    """What a process continues from: a snapshot, or nothing yet."""

    core: Core | None = None
    """None if the job has no parameters yet."""
    tape: TapeEnd
    snapshot: DurableSnapshot | None = None
    ending: Ending | None
    """The early end that a training program has asked for. None if none has."""
    same_job: bool = True
    """The snapshot is of this very job, so its learners may come back with what they have trained."""
    message: str = ""
    """A remark for status, e.g. that an older snapshot was used. Empty if there is none."""


def snapshot_data(core: Core, beside: StateBesideCore, job: JobFile, position: Position) -> SnapshotData:
    """Return the present state; `position` must be the tape's position at this moment.

    The arrays are shared with the core, which never writes to them.
    """
    state = core.state()
    meta = {
        "format": META_FORMAT,
        "job": {"uid": job.uid, "name": job.name, "namespace": job.namespace},
        "core": state.meta(),
        "ledger": beside.work.ledger.to_json(),
        "work": beside.work.to_json(),
        "sessions": beside.sessions.to_json(),
        "tokens": list(beside.tokens),
        "checksums": beside.checksums.to_json(),
        "tape": position.to_json(),
        "accounts": beside.unit_stats.to_json(),
        "fences": dict(beside.fences),
        "evaluations": {unit: list(evaluation) for unit, evaluation in beside.evaluations.items()},
        "losses": beside.losses.to_json(),
        "former": list(beside.former),
    }
    return SnapshotData(core.t, TensorParts(state.parts()), meta)


def snapshot_places(config: SyncerConfig) -> tuple[SnapshotStore, RemoteSnapshots | None]:
    """Return the snapshots on the volume, and their copies in a folder of this job alone. None if the job has no `checkpoint.uri`.

    Raises BadState if there is no driver for the URI.
    """
    checkpoint = config.job.training.checkpoint
    store = SnapshotStore(config.state_dir / "snapshots", checkpoint.keep)
    if not checkpoint.uri:
        return store, None
    try:
        folder = remote_snapshots(checkpoint.uri, config.job.namespace, config.job.name, config.job.uid)
        return store, RemoteSnapshots(folder, checkpoint.keep)
    except SnapshotError as error:
        raise BadState(str(error)) from error


def remove_states(config: SyncerConfig) -> None:
    """Remove what units have stored for this job. The job begins without parameters, and those states belong to other ones. Raises
    BadState."""
    checkpoint = config.job.training.checkpoint
    if checkpoint.learners is LearnerStates.NEVER or not checkpoint.uri:
        return
    uri = remote_snapshots(checkpoint.uri, config.job.namespace, config.job.name, config.job.uid)
    try:
        RemoteFolders(uri).remove(FOLDER_OF_STATES)
    except SnapshotError as error:
        raise BadState(str(error)) from error
    except Exception as error:  # drivers raise classes of their own
        raise BadState(
            f"this job begins anew, and what its units have stored before in {uri} ({FIELD}) could not be removed: {words(error)}"
        ) from error


def open_tape(config: SyncerConfig, state: RestoredState, process: bytes, changed: Callable[[], None]) -> TapeWriter:
    """Open the tape where it goes on after `state`.

    Args:
        state: what `restore` has returned
        process: random bytes that name this process
        changed: called when the tape's `error` has changed
    """
    start, job = state.tape, config.job
    return TapeWriter(
        config.state_dir / FOLDER,
        segment_head(job.training, job.uid, start.incarnation or process),
        segment=start.segment,
        next_number=start.next,
        based=start.incarnation is not None,
        changed=changed,
    )


def restore(config: SyncerConfig, store: SnapshotStore, remote: RemoteSnapshots | None) -> RestoredState:
    """Read the newest usable state. Blocking. Raises BadState, and FencesError for a damaged fences file."""
    fences = load_fences(config.state_dir, config.job.uid)
    try:
        ending = load_ending(config.state_dir, config.job.uid, config.job.training)
    except EndError as error:
        raise BadState(str(error)) from error
    tried: list[CoreState] = []

    def arrays(path: Path, meta: Mapping[str, Any]) -> Mapping[str, Array]:
        """Return the arrays of a new state. The snapshot is read right into them, so it is in memory only once."""
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
    folder = config.state_dir / FOLDER
    try:
        if loaded is None:
            _check_nothing_is_lost(store, folder)
            fragments = config.job.training.fragments
            return RestoredState(
                work=JobWork(Ledger(), fragments),
                sessions=StoredSessions(),
                tokens=[0] * fragments,
                unit_stats=UnitStatsTable(),
                fences=fences,
                evaluations={},
                losses=LossHistory(),
                checksums=VersionChecksums(),
                tape=end_of_tape(folder),
                ending=ending,
            )
        with _naming(config, store, loaded.path):
            restored = _restored(config, folder, loaded, tried.pop().checked(), fences, ending, copied=_is_copied(remote, loaded))
    except TapeError as error:
        raise BadState(str(error)) from error
    store.drop_old()  # a crash after a save may have left them
    return restored


def _check_nothing_is_lost(store: SnapshotStore, tape: Path) -> None:
    """Raise BadState for a volume without a snapshot whose tape has merges.

    Each merge followed on a snapshot, so that one is lost. To begin anew would throw the merges away.
    """
    if any(head.get("type") == "merge" for head in heads(tape)):
        raise BadState(
            f"no snapshot is in {store.root}, and the tape in {tape} has merges, which follow one: it is lost. Nothing was changed. Put it "
            f"back in its place, or empty {tape.parent} if the job shall start afresh."
        )


@contextlib.contextmanager
def _naming(config: SyncerConfig, store: SnapshotStore, path: Path) -> Iterator[None]:
    """Turn errors about a snapshot's content into BadState that names the snapshot."""
    try:
        yield
    except TapeError:
        raise
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
    # If it is this very job, its `steps` were lowered, and it is over. Another job would end without any training.
    if state.t > config.job.training.steps and meta["job"]["uid"] != config.job.uid:
        raise StateError(f"it is of outer step {state.t}, beyond training.steps, which is {config.job.training.steps}")
    return state


def _restored(
    config: SyncerConfig, folder: Path, loaded: Loaded, stored: CoreState, fences: dict[str, int], ending: Ending | None, *, copied: bool
) -> RestoredState:
    meta, training = loaded.meta, config.job.training
    same_job = meta["job"]["uid"] == config.job.uid
    ledger = Ledger.from_json(meta["ledger"])
    state = Stored(
        stored,
        JobWork(ledger, len(stored.versions), meta["work"]),
        StoredSessions.from_json(meta["sessions"]),
        [int(tokens) for tokens in meta["tokens"]],
        LossHistory(meta["losses"]),
        VersionChecksums.from_json(meta.get("checksums", {})),
    )
    tape = redo(folder, meta["tape"], state, training)
    if not same_job:
        tape.incarnation = None
    goes_on = tape.incarnation is not None
    stored = state.state
    core = Core(stored.layout, training, stored)
    if same_job:
        for unit, attempt in meta["fences"].items():
            fences[unit] = max(int(attempt), fences.get(unit, 0))
    message = ""
    if loaded.skipped:
        older = f"the older snapshot of outer step {loaded.t}"
        message = f"went on from {older}, up to outer step {stored.t}, because newer ones cannot be used ({reasons(loaded.skipped)})"
    elif not same_job:
        message = f"went on from outer step {stored.t} of job {meta['job']['name']} (uid {meta['job']['uid']})"
    message = "; ".join(text for text in (message, *ledger.repaired) if text)
    # Evaluations are of the final parameters. With more training.steps than before, these are no longer the final ones.
    final = is_over(training, ending, stored.t, ledger.tokens)
    evaluations = {str(unit): (float(loss), int(tokens)) for unit, (loss, tokens) in meta["evaluations"].items() if final}
    return RestoredState(
        work=state.work,
        sessions=state.sessions if goes_on else StoredSessions(state.sessions.opened),
        tokens=state.tokens,
        unit_stats=UnitStatsTable(meta["accounts"]),
        fences=fences,
        evaluations=evaluations,
        losses=state.losses,
        checksums=state.checksums,
        former=_former(meta, same_job=same_job),
        core=core,
        tape=tape,
        snapshot=DurableSnapshot(loaded.t, loaded.path, copied),
        ending=ending,
        same_job=same_job,
        message=message,
    )


def _former(meta: Mapping[str, Any], *, same_job: bool) -> list[str]:
    """Return the `former` folders of a job that goes on from a snapshot with this `meta`."""
    before = [str(folder) for folder in meta.get("former", ())]
    if same_job:
        return before
    job = meta["job"]
    return [copies_folder(job["namespace"], job["name"], job["uid"]), *before][:_MOST_FORMER]
