"""The core at work: what happens to members is passed to it, and its effects are carried out on the streams.

A merge is computed, then committed (its record is made durable), and only then takes its place and is broadcast: a learner holds nothing
that a restarted syncer does not. To the core all of this is the time that arithmetic takes.

Merges are computed in threads if the fragment is large. That changes nothing; what they give is put in place by the engine's task, which
alone uses the other methods.

See docs/decisions/0148-driver-and-threads.md. See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from diloco.algorithm.codec import Coding
from diloco.algorithm.commit import commit_of
from diloco.algorithm.core import Core
from diloco.algorithm.effects import Broadcast, Close, Effect, Merged, Pull, Reason, Refusal, Rest, Skipped
from diloco.algorithm.events import EndsAt, Joined, Left, Lives, Metadata, Paused, Reported, Seeded, Tick
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Portion
from diloco.algorithm.quorum import MovingAverage
from diloco.algorithm.shard import Update
from diloco.contract import Training
from diloco.protocol.diloco_pb2 import Progress, ToLearner
from diloco.protocol.diloco_pb2 import Refused as Code
from diloco.protocol.diloco_pb2 import Rest as RestMessage
from diloco.protocol.framing import Transfer
from diloco.syncer.job.awake import AwakeClock
from diloco.syncer.job.reported_adoptions import ReportedAdoptions
from diloco.syncer.job.seeding import Seeding
from diloco.syncer.job.version_checksums import VersionChecksums
from diloco.syncer.job.work import JobWork
from diloco.syncer.reporting.recent import RecentEntries
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco.syncer.streams.learner_stream import LearnerStream, LearnerStreams, MergeComputed, MergeDurable
from diloco.syncer.streams.outgoing import CodedVersion
from diloco.syncer.streams.sessions import Rejected, UnitSession

_log = logging.getLogger(__name__)

INLINE_ELEMENTS = 1 << 18
"""Fragments up to this many values (1 MiB) are merged and decoded in the event loop: a thread would cost more."""

MERGES_AT_ONCE = 4
"""Merges that run beside each other: tau + 1 exchanges may be over at the same time, and each merge reads memory as fast as it is."""

COSINE_ALPHA = 0.1
"""Weight of the newest merge in the mean cosine that is reported."""

SKIPS_SAID_AGAIN_AFTER = 100
"""One of the exchanges that merge nothing within so many outer steps is logged, with the number of those before it: a job whose learners
do not answer skips every outer step."""


class Commits(Protocol):
    """Where merges are made durable and other things noted, see `TapeWriter`."""

    def note(self, kind: str, **what: Any) -> None: ...

    def commit(self, t: int, what: Mapping[str, Any], gradient: memoryview, result: memoryview, then: Callable[[int], None]) -> None: ...

    def applied(self, t: int) -> None: ...


class Exchanges:
    """The core of one job, and the parameters on their way. `now` is in seconds on one clock."""

    def __init__(
        self,
        training: Training,
        core: Core | None,
        streams: LearnerStreams,
        work: JobWork,
        unit_stats: UnitStatsTable,
        recent: RecentEntries,
        commits: Commits,
        submit: Callable[[MergeComputed | MergeDurable], None],
        tokens: Sequence[int] | None = None,
        checksums: VersionChecksums | None = None,
    ) -> None:
        """Hold the exchange; `core`: of the restored state; None: the job has no parameters yet. `submit` queues an event for the engine's
        task. `tokens`: per fragment those that were committed when its version was made; None: those that are now."""
        self.core = core
        """None: no learner has said yet what the model looks like."""
        self.seeding = Seeding()
        self.awake = AwakeClock()
        """The core's clock."""
        self._training = training
        self._streams = streams
        self._work = work
        self._unit_stats = unit_stats
        self._recent = recent
        self._commits = commits
        self._submit = submit
        self._arithmetic = Arithmetic()
        self._merges: set[asyncio.Task[Update | None]] = set()
        self._skips_said_at: int | None = None
        self._skips_unsaid = 0
        self.tokens = [work.ledger.tokens] * training.fragments if tokens is None else list(tokens)
        """Per fragment the tokens that were committed when its version was made: the same for all ranks that adopt it."""
        self.checksums = VersionChecksums() if checksums is None else checksums
        self.cosine = MovingAverage(COSINE_ALPHA, even=True)
        """Between contributions, over the newest merges, see `merge.MergedGradient`."""
        self._reported_adoptions = ReportedAdoptions()

    @property
    def seeded(self) -> bool:
        """Whether the job has parameters."""
        return self.core is not None and self.core.seeded

    @property
    def finished(self) -> bool:
        """Step T is reached and every exchange is merged."""
        return self.core is not None and self.core.done

    @property
    def t(self) -> int:
        """Outer steps taken."""
        return self.core.t if self.core is not None else 0

    def made(self, versions: Sequence[int], checksums: Sequence[int]) -> bool:
        """Return whether the state that this process goes on from has made these versions, one for each fragment, -1: none. A syncer whose
        machine lost power lacks some; one whose volume was restored from a backup may have made others of the same outer steps.

        `checksums`: those that came with the versions; none from a learner of an older program, which is judged by outer steps alone.
        """
        known = dict(enumerate(checksums))
        return all(t <= self.version(p) and self.checksums.may_be(p, t, known.get(p, 0)) for p, t in enumerate(versions))

    def held(self, versions: Sequence[int]) -> dict[int, int]:
        """Return, of the versions that a resumed learner says it holds, those that it need not be sent, by fragment. Not version 0: that
        may be a seed of its own which the job did not take, and nothing in a Hello tells it from the job's. The learner compares them."""
        return {p: t for p, t in enumerate(versions) if t > 0}

    def version(self, p: int) -> int:
        """Outer step of the last merge of fragment p; 0: there was none, or there is no such fragment."""
        return self.core.version(p) if self.core is not None and p < len(self.fragments) else 0

    @property
    def fragments(self) -> Sequence[Fragment]:
        """Return the fragments of the model; none before its layout is known."""
        return self.core.fragments if self.core is not None else ()

    def close(self) -> None:
        """Close the exchange: no arithmetic begins any more."""
        self._arithmetic.close()

    # --- members ------------------------------------------------------------------------------------------------------

    def open(self, layout: Layout) -> Layout:
        """Return the layout of the job; if there is none yet, `layout` is. Raises LayoutError if it cannot be."""
        if self.core is None:
            self.core = Core(layout, self._training)
        return self.core.layout

    def end(self, t: int, now: float) -> None:
        """End the job at outer step t, see `EndsAt`."""
        if self.core is not None:
            self.core.take(EndsAt(self.at(now), t))

    def lacks(self, held: Mapping[int, int], portions: Sequence[Portion] | None = None) -> float:
        """Return what a stream that holds these versions is sent whole when it joins, of these portions or (None) of all: in parts of the
        model. Nothing if the job has no parameters yet."""
        if self.core is None or not self.core.seeded:
            return 0.0
        sizes = [each.size for each in (self.fragments if portions is None else portions)]
        lacked = sum(size for p, size in enumerate(sizes) if held.get(p) != self.core.version(p))
        return lacked / sum(fragment.size for fragment in self.fragments)

    def join(self, stream: LearnerStream, session: UnitSession, held: dict[int, int], now: float) -> None:
        """Let the stream's learner take part in a job that has parameters. It is sent every fragment whose current version it does not
        hold.

        `held`: per fragment the version that it holds.
        """
        core = self.opened()
        for fragment in core.fragments:
            p = fragment.index
            if held.get(p) == core.version(p):
                stream.outgoing.holds(p, core.version(p))
            else:
                t = core.version(p)
                whole = CodedVersion(p, t, -1, Coding.FLOAT32, b"", core.shard.whole(p), self.tokens[p], self.checksums.of(p, t))
                stream.outgoing.broadcast(whole, self._work.merged_at(session, p))
        # The other ranks bring their portions, but the core counts units.
        if stream.leader is stream:
            core.take(Joined(self.at(now), session.unit))

    def leave(self, unit: str, now: float) -> None:
        """Stop waiting for the unit."""
        if self.core is not None:
            self.core.take(Left(self.at(now), unit))

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    async def run[T](self, p: int | None, work: Callable[[], T]) -> T:
        """Run `work`, which changes nothing, in a thread if fragment p (None: the largest one) is large."""
        small = all(map(self.is_small, range(len(self.fragments)))) if p is None else self.is_small(p)
        return work() if small else await self._arithmetic.decode(work)

    def is_small(self, p: int) -> bool:
        """Return whether arithmetic on fragment p takes less than a turn of a thread."""
        return self.fragments[p].size <= INLINE_ELEMENTS

    def at(self, now: float) -> float:
        """Return the core's time."""
        return self.awake.of(now)

    # --- what learners send -------------------------------------------------------------------------------------------

    def progress(self, session: UnitSession, progress: Progress, now: float) -> Rejected | None:
        """Note that a learner has taken a local step. Not None: it must be refused."""
        core = self.opened()
        if wrong := core.coordinator.miscounted(session.unit, len(progress.steps), len(progress.tokens)):
            return Rejected(Code.PROTOCOL, wrong)
        metadata = Metadata(progress.local_step, tuple(progress.steps), tuple(progress.tokens), progress.step_seconds)
        for p, version, step in self._reported_adoptions.reported(session.holder, metadata, progress.t):
            self._commits.note("adopt", unit=session.unit, fragment=p, version=version, step=step)
        core.take(Reported(self.at(now), session.unit, metadata))
        return None

    def paused(self, unit: str, until: float, now: float) -> None:
        """Note that the unit's program takes no steps until then, on purpose; a time that is past: it goes on."""
        if self.core is not None:
            self.core.take(Paused(self.at(now), unit, self.at(until)))

    def alive(self, unit: str, now: float) -> None:
        """Note that the unit's process is alive, whatever its program does."""
        if self.core is not None:
            self.core.take(Lives(self.at(now), unit))

    async def seed(self, stream: LearnerStream, session: UnitSession, transfer: Transfer, now: float) -> bool | Rejected:
        """Take a fragment of the seed. True: the job has parameters now, and every joined learner takes part."""
        core = self.opened()
        if self.seeding.stream != stream.leader.number:
            return False  # another learner is asked meanwhile
        p = transfer.header.fragment
        seed = self.seeding.take(core.fragments, p, stream.rank, None if stream.portions is None else stream.portions[p], transfer.payload)
        if seed is None:
            return False
        norms = await self.run(None, lambda: core.seed(seed()))
        if isinstance(norms, Refusal):
            return Rejected(Code.NONFINITE if norms.reason is Reason.NON_FINITE else Code.PROTOCOL, norms.message)
        _log.info("unit %s has seeded the job", session.unit)
        self._begin(norms, stream, now)
        return True

    def started(self, norms: tuple[float, ...], now: float) -> None:
        """Let every joined learner take part: the shard has the job's first parameters, of these norms, and no learner holds them."""
        self._begin(norms, None, now)

    def _begin(self, norms: tuple[float, ...], seeder: LearnerStream | None, now: float) -> None:
        core = self.opened()
        core.take(Seeded(self.at(now), norms))
        self.seeding.stop()
        for other, joined in self._streams.joined_ranks():
            # Who sent the seed holds it: version 0 of each fragment. All others are sent it whole.
            has_seeded = seeder is not None and other.leader is seeder.leader
            self.join(other, joined, dict.fromkeys(range(len(core.fragments)), 0) if has_seeded else {}, now)

    # --- what the core decides ----------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Let the core decide and carry its effects out. Returns them: snapshots, rejected units and the end are the caller's."""
        core = self.core
        carried_out: list[Effect] = []
        while core is not None and (effects := core.take(Tick(self.at(now)))):
            for effect in effects:
                self._carry_out(core, effect, now)
            if rests := {effect.unit: effect.rests for effect in effects if isinstance(effect, Rest)}:
                self._tell_rests(rests, now)
            carried_out += effects
        return carried_out

    def merged(self, event: MergeComputed, now: float) -> None:
        """Commit a merge that was computed in a thread."""
        self._commit(self.opened(), event.close, event.computed.result(), now)

    def durable(self, event: MergeDurable, now: float) -> None:
        """Put a merge in place that is committed."""
        self.checksums.add(event.update.fragment, event.update.t, event.checksum)
        self._install(self.opened(), event.close, event.update, now)

    def wake_at(self, now: float) -> float | None:
        """Return when to call `advance` if no event comes before; None: only an event changes anything."""
        at = self.core.wake_at(self.at(now)) if self.core is not None else None
        return None if at is None else self.awake.back(at)

    def _carry_out(self, core: Core, effect: Effect, now: float) -> None:
        # What came of an answer that is not whole is let go: it will not be merged, and a portion of a fragment is large.
        if isinstance(effect, Close | Skipped):
            for stream, _ in self._streams.joined():
                stream.gathering.closed(effect.fragment, effect.t)
        match effect:
            case Pull():
                asked = set(effect.units)
                for stream, session in self._streams.joined():
                    if session.unit in asked:
                        stream.outgoing.pull(effect.fragment, effect.t, self._training.overlap_steps)
            case Close() if self.is_small(effect.fragment):
                self._commit(core, effect, core.compute(effect), now)
            case Close():
                merge = asyncio.create_task(self._arithmetic.merge(lambda: core.compute(effect)), name=f"merge-{effect.t}")
                self._merges.add(merge)  # an event loop holds its tasks weakly
                merge.add_done_callback(self._merges.discard)
                merge.add_done_callback(lambda computed: self._submit(MergeComputed(effect, computed)))
            case Merged():
                self._merged(effect, now)
            case Broadcast():
                self._broadcast(core, effect)
            case Skipped():
                self._skipped(effect, now)

    def _tell_rests(self, rests: dict[str, bool], now: float) -> None:
        """Tell the units whether they rest from now on."""
        for unit, rest in rests.items():
            self._unit_stats.of(unit).resting_since = now if rest else None
        for stream, session in self._streams.joined():
            if (told := rests.get(session.unit)) is not None:
                stream.outgoing.urgent(ToLearner(rest=RestMessage(quorum=self._training.quorum if told else 0)))

    def _commit(self, core: Core, close: Close, update: Update | None, now: float) -> None:
        """Make the merge durable. One that changes nothing takes its place at once."""
        if update is None:
            self._install(core, close, None, now)
            return
        commit = commit_of(core.coordinator.ordered(close.t), close, update.cosine)
        what = commit.to_json() | {"loss": self._unit_stats.loss()}
        gradient, result = (memoryview(x.astype("<f4", copy=False)).cast("B") for x in (update.gradient, update.value))
        # In place and at the learners only when durable: they must not hold a version that a restarted syncer does not know.
        self._commits.commit(close.t, what, gradient, result, lambda checksum: self._submit(MergeDurable(close, update, checksum)))

    def _install(self, core: Core, close: Close, update: Update | None, now: float) -> None:
        """Install the merge in one go, between two snapshots: shard, coordinator, ledger, streams."""
        if update is not None and not math.isnan(update.cosine):
            self.cosine.add(update.cosine)
        for effect in core.computed(close, update, self.at(now)):
            self._carry_out(core, effect, now)
        self._commits.applied(close.t)

    def _merged(self, merged: Merged, now: float) -> None:
        self._reported_adoptions.merged(merged.fragment, merged.t)
        self._work.closed(merged.fragment, merged.t, {marks.session for marks in merged.marks.values()})
        _log.debug("outer step %d merged fragment %d of %s", merged.t, merged.fragment, ", ".join(merged.units))
        self._recent.merged(merged.t, merged.fragment, merged.units, self._unit_stats.loss(), now)

    def _broadcast(self, core: Core, new: Broadcast) -> None:
        self.tokens[new.fragment] = tokens = self._work.ledger.tokens
        whole, checksum = core.shard.whole(new.fragment), self.checksums.of(new.fragment, new.t)
        version = CodedVersion(new.fragment, new.t, new.base, new.coding, new.payload, whole, tokens, checksum)
        for stream, session in self._streams.joined_ranks():
            stream.outgoing.broadcast(version, self._work.merged_at(session, new.fragment))

    def _skipped(self, skipped: Skipped, now: float) -> None:
        self._commits.note("skip", t=skipped.t, fragment=skipped.fragment, message=skipped.message)
        self._recent.merged(skipped.t, skipped.fragment, (), self._unit_stats.loss(), now)
        self._work.closed(skipped.fragment, skipped.t, ())
        if self._skips_said_at is not None and skipped.t < self._skips_said_at + SKIPS_SAID_AGAIN_AFTER:
            self._skips_unsaid += 1
            return
        before = f"; since outer step {self._skips_said_at} so did {self._skips_unsaid} others" if self._skips_unsaid else ""
        _log.info("outer step %d leaves fragment %d unchanged: %s%s", skipped.t, skipped.fragment, skipped.message, before)
        self._skips_said_at, self._skips_unsaid = skipped.t, 0

    def opened(self) -> Core:
        """Return the core of a job that knows its layout."""
        assert self.core is not None  # the first learner's layout makes it, and it stays while a learner is joined
        return self.core


# ----------------------------------------------------------------------------------------------------------------------
# Threads for arithmetic on large fragments, beside the event loop and apart from the threads that write files: fences, and with them
# the learners that join, do not wait for eight decodes.
class Arithmetic:
    """Decodes as many contributions at a time as there are processors: more would only hold memory and slow the event loop down. A merge
    waits for none of them, and merges are of different fragments. Used in one event loop."""

    def __init__(self) -> None:
        self._decoding = ThreadPoolExecutor(os.cpu_count(), "decode")
        self._merging = ThreadPoolExecutor(MERGES_AT_ONCE, "merge")

    async def decode[T](self, work: Callable[[], T]) -> T:
        """Run `work` when its turn comes."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, work)

    async def merge[T](self, work: Callable[[], T]) -> T:
        """Run `work` once a thread is free, after the merges that were ordered before have begun."""
        return await asyncio.get_running_loop().run_in_executor(self._merging, work)

    def close(self) -> None:
        """Begin nothing more. What runs ends by itself."""
        self._decoding.shutdown(wait=False, cancel_futures=True)
        self._merging.shutdown(wait=False, cancel_futures=True)
