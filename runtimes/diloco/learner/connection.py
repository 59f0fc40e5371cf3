"""The background thread that owns a learner's stream to the syncer: coding, chunks, reconnects.

It shares two queues with the training thread: the inbox (received) and the stream's outbox (to be sent). This thread never waits for a
training step, and no training step waits for this thread.

A *generation* is what the syncer continues across reconnects: leases and counters. It ends when a Welcome does not resume the session.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

import grpc
import numpy as np

from diloco.algorithm.codec import CodecError, Coding
from diloco.algorithm.cut import cut_bytes, value_of_cut
from diloco.algorithm.pieces import Portion
from diloco.contract import Exit
from diloco.learner.ahead import StagedAhead
from diloco.learner.config import LearnerConfig
from diloco.learner.heartbeat_state import HeartbeatState
from diloco.learner.inbox import Finished, Inbox, Leased, PullWanted, Received, RefusedForGood, RestWanted, Welcomed
from diloco.learner.incarnations import Incarnations
from diloco.learner.outbox import Outbox
from diloco.learner.peers import Peers
from diloco.learner.push_coding import push_chunks, seed_chunks
from diloco.learner.reconnect import MOST_EXCEPTIONS, RECONNECT, Attempts
from diloco.learner.remainders import Remainders
from diloco.learner.store import Float32Array, ParameterStore, Staged
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.chunks import DataChunk, acknowledged_in
from diloco.protocol.diloco_pb2 import Bye, Chunk, FromLearner, Hello, Progress, ToLearner, WorkWanted
from diloco.protocol.framing import Assembler, FramingError, Transfer
from diloco.protocol.refusal import exit_for, name_of
from diloco.protocol.tls import TlsError

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 10.0
"""How long `close` waits for the delivery of the outbox, seconds."""


class _Base(NamedTuple):
    """The version of a fragment that this process has received last, or has seeded: the base of deltas in both directions."""

    version: int
    value: Float32Array
    """What this process owns of it, read-only."""
    generation: int = 0
    """In which it came."""
    checksum: int = 0
    """As it came with the broadcast. 0 for a seed."""


_NO_BASE = _Base(-1, np.empty(0, np.float32))


class Connection:
    """Started once by `Session.join`; lives until `close`, or until the syncer refuses this process for good."""

    def __init__(
        self,
        config: LearnerConfig,
        hello: Hello,
        portions: Sequence[Portion],
        store: ParameterStore,
        inbox: Inbox,
        incarnations: Incarnations,
        peers: Peers,
    ) -> None:
        """Begin with `hello` without incarnation, versions and samples_leased: each stream fills them in. `portions`: what this process
        owns of each fragment. `incarnations`: is told of each. `peers`: is told who gives state to whom."""
        self._config = config
        self._hello = hello
        self._portions = portions
        self._cut_bytes = functools.cache(lambda coding, fragment: cut_bytes(coding, portions[fragment]))
        self._store = store
        self._names = [[tensor.name for tensor in one.fragment.tensors] for one in portions]
        self._inbox = inbox
        self._incarnations = incarnations
        self._bases: dict[int, _Base] = {}
        self._remainders = Remainders()
        self._ahead = StagedAhead()
        self._peers = peers
        self.heartbeat = HeartbeatState(self._tell_alive, self._peers.message)
        self._incarnation = b""
        self._epoch = 0
        self._leased = 0
        self._generation = 0
        self._initial_request = 0
        self._data = ""
        self._outbox: Outbox | None = None
        self._call: grpc.Call | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diloco-exchange", daemon=True)

    # --- called from the training thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, in the background."""
        self._thread.start()

    def progress(self, generation: int, progress: Progress) -> None:
        """Report a local step. Dropped while there is no stream, and if `generation` is over."""
        self.heartbeat.stepped(progress.local_step)
        with self._lock:
            if self._outbox is not None and generation == self._generation:
                self._outbox.progress(progress)

    def post(self, message: FromLearner) -> None:
        """Send a message of the unit once. Dropped if there is no stream, and in a rank that is not the first: that one speaks for all."""
        with self._lock:
            if self._outbox is not None and not self._hello.rank:
                self._outbox.post(message)

    def want(self, generation: int, samples: int) -> bool:
        """Ask for `samples` of work. False: not asked, as there is no stream or `generation` is over."""
        with self._lock:
            if self._outbox is None or generation != self._generation:
                return False
            self._outbox.post(FromLearner(work_wanted=WorkWanted(samples=samples, data=self._data)))
            return True

    def set_data(self, data: str) -> None:
        """Set what the program takes sequence numbers for; it goes with each request for work."""
        self._data = data

    def set_initial_request(self, samples: int) -> None:
        """Set how many samples to ask for when a generation begins, so that the next step finds them leased."""
        self._initial_request = samples

    def push(self, generation: int, header: Chunk, staged: Staged) -> None:
        """Answer a pull. The sending thread waits for the staged values and codes them. Dropped as `progress` is, and once the exchange is
        known to be over."""
        with self._lock:
            if self._outbox is not None and generation == self._generation:
                self._push(self._outbox, header, staged)
            else:
                staged.release()

    def keep_only(self, fragments: Collection[int]) -> None:
        """Release what is kept of all other fragments for pulls to come."""
        with self._lock:
            self._ahead.keep_only(fragments)

    def keep(self, generation: int, header: Chunk, staged: Staged) -> None:
        """Keep the answer to a pull that has not come yet. The connection's own thread sends it when the pull comes, see `StagedAhead`.
        Dropped as `progress` is."""
        with self._lock:
            if self._outbox is not None and generation == self._generation and not self._closing.is_set():
                self._ahead.keep(header, staged)
            else:
                staged.release()

    def seed(self, generation: int, values: Sequence[Float32Array]) -> None:
        """Send the job's first parameters: what this process has of each fragment, float32 [size]. They are version 0. The caller gives
        `values` away."""
        for index, value in enumerate(values):
            # The base of pushes to come: a change in place would code them against values that the syncer does not have.
            value.flags.writeable = False
            with self._lock:
                self._bases[index] = _Base(0, value, generation)
                # A rank may own nothing of a fragment.
                if value.size and self._outbox is not None and generation == self._generation:
                    header = Chunk(kind=Chunk.SEED, fragment=index, coding=Chunk.FLOAT32)
                    self._outbox.seed(seed_chunks(header, value))

    def received(self) -> list[Float32Array] | None:
        """Return the last received values of every fragment, float32 [size] each, read-only; None unless all have come."""
        with self._lock:
            return [self._bases[i].value for i in range(len(self._names))] if len(self._bases) == len(self._names) else None

    @property
    def queued_pushes(self) -> int:
        """Pushes that wait or are under way."""
        with self._lock:
            return self._outbox.pushes if self._outbox is not None else 0

    def flush(self) -> None:
        """Wait until the syncer has all pushes, at most CLOSE_TIMEOUT seconds."""
        with self._lock:
            outbox = self._outbox
        if outbox is not None and not outbox.wait_until_delivered(CLOSE_TIMEOUT):
            _log.warning("the syncer did not take this unit's last pushes within %.0f s", CLOSE_TIMEOUT)

    def wait_for_end(self) -> None:
        """Wait until the syncer ends the stream, at most CLOSE_TIMEOUT seconds; it is not opened again."""
        self._closing.set()
        self._over.wait(CLOSE_TIMEOUT)
        self.close(None)

    def close(self, bye: Bye | None) -> None:
        """End the connection. With `bye`: after delivery of the outbox and Bye, which may take CLOSE_TIMEOUT seconds; without: at once."""
        self._closing.set()
        with self._lock:
            self._ahead.clear()  # nothing is sent after Bye
            if bye is not None and self._outbox is not None:
                self._outbox.finish(FromLearner(bye=bye))
            elif self._call is not None:
                self._call.cancel()
        if not self._over.wait(CLOSE_TIMEOUT):
            _log.warning("the syncer did not take this unit's last messages within %.0f s", CLOSE_TIMEOUT)
            with self._lock:
                if self._call is not None:
                    self._call.cancel()
            self._over.wait(1.0)

    def _tell_alive(self) -> None:
        with self._lock:
            if self._outbox is not None:
                self._outbox.tell_alive()

    # --- the connection's own thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        # The other ranks come back after their leader, which they have to wait for each time.
        attempts = Attempts(first_logged=10 if self._hello.rank else 1)
        config = self._config
        try:
            while not self._closing.is_set():
                try:
                    welcomed, failure = self._stream()
                except Exception as error:  # noqa: BLE001 - of a framework, or for want of memory
                    _log.exception("the exchange with the syncer at %s has failed", config.syncer)
                    if attempts.raised():
                        why = f"the exchange with the syncer failed in this process {MOST_EXCEPTIONS} times in a row, at last with"
                        self._inbox.put(RefusedForGood(Exit.CRASHED, f"{why} {type(error).__name__}: {error}"))
                        return
                else:
                    if failure is None:
                        return
                    refusal = "" if welcomed else config.tls.why_refused(config.syncer, config.identity, config.host_name)
                    if attempts.failed(time.monotonic(), welcomed=welcomed, refusal=refusal):
                        lost = "lost the syncer" if self._incarnation else "no syncer yet"
                        _log.warning("%s at %s (%s); trying again", lost, config.syncer, refusal or failure)
                self._closing.wait(RECONNECT.delay(attempts.failures, random.random()))  # noqa: S311 - no secret
        except TlsError as error:
            self._inbox.put(RefusedForGood(Exit.REFUSED_UNAUTHENTICATED, str(error)))
        finally:
            self._over.set()

    def _stream(self) -> tuple[bool, str | None]:
        """Run one stream to its end: (whether a Welcome came, why it ended). None in place of the reason: do not reconnect."""
        welcomed = False
        alive = None if self._hello.rank else self.heartbeat.message
        config = self._config
        outbox = Outbox(FromLearner(hello=self._make_hello()), config.job.training.overlap_steps, alive=alive)
        assembler = Assembler(self._expected_bytes)
        try:
            credentials = config.tls.read().channel_credentials()
        except TlsError as error:
            return False, str(error)
        with grpc.secure_channel(config.syncer, credentials, options=client_options(Keepalive(), config.host_name)) as channel:
            call = rpc.exchange(channel)(iter(outbox))
            with self._lock:
                self._call = call
            # `close` may have come in between: it found no call to cancel, and would wait in vain.
            if self._closing.is_set():
                call.cancel()
            try:
                for message in call:
                    if not self._handle(message, outbox, assembler):
                        return welcomed, None
                    welcomed = True
                return welcomed, None if self._closing.is_set() else "the stream ended"
            except grpc.RpcError as error:
                if outbox.failure is not None:
                    raise outbox.failure from None
                return welcomed, self._failure(error)
            except (FramingError, CodecError) as error:
                _log.exception("what the syncer sent cannot be used")
                return welcomed, str(error)
            finally:
                # First: values that are staged for a stream after its end would never be released.
                with self._lock:
                    self._outbox = None
                    self._call = None
                outbox.abandon()
                call.cancel()

    def _failure(self, error: grpc.RpcError) -> str | None:
        code = error.code() if isinstance(error, grpc.Call) else None
        detail = (error.details() if isinstance(error, grpc.Call) else None) or str(error)
        if self._closing.is_set():
            return None
        if code is grpc.StatusCode.UNAUTHENTICATED:
            why = f"the syncer at {self._config.syncer} refused this unit: {detail}"
            self._inbox.put(RefusedForGood(Exit.REFUSED_UNAUTHENTICATED, why))
            return None
        return f"{code.name if code else 'error'}: {detail}"

    def _make_hello(self) -> Hello:
        hello = Hello()
        hello.CopyFrom(self._hello)
        hello.acknowledges = hello.acknowledges_beside = True
        with self._lock:
            hello.incarnation = self._incarnation
            hello.samples_leased = self._leased
            if self._bases:
                bases = [self._bases.get(i, _NO_BASE) for i in range(len(self._names))]
                hello.versions.extend(base.version for base in bases)
                hello.checksums.extend(base.checksum for base in bases)
        return hello

    def _handle(self, message: ToLearner | DataChunk, outbox: Outbox, assembler: Assembler) -> bool:
        """Handle one message. False: the stream is over. Raises FramingError and CodecError for a message that cannot be used."""
        if (taken := acknowledged_in(message)) is not None:
            outbox.taken(taken)
        if isinstance(message, DataChunk):
            # Whatever becomes of it: the syncer's window opens by what is taken here.
            outbox.took(message)
            if (transfer := assembler.add(message)) is not None:
                # At once, not when it is adopted: a push for this exchange would only keep newer ones from the link.
                outbox.merged(transfer.header.fragment, transfer.header.t)
                self._adopt(transfer)
            return True
        match message.WhichOneof("message"):
            case "welcome":
                self._welcomed(message, outbox)
            case "pull":
                if message.pull.fragment >= len(self._names):
                    raise FramingError(f"the syncer pulls fragment {message.pull.fragment} of {len(self._names)}")
                outbox.clock(message.pull.t)
                answered = self._answer(message.pull.fragment, message.pull.t)
                self._inbox.put(PullWanted(self._generation, message.pull.fragment, message.pull.t, answered))
            case "work":
                self._leased += message.work.end - message.work.start
                self._inbox.put(Leased(message.work.start, message.work.end))
            case "rest":
                self._inbox.put(RestWanted(message.rest.quorum))
            case "donor":
                self._peers.hear(message.donor)
            case "give":
                self._peers.hear(message.give)
            case "marker":
                self._peers.hear(message.marker)
            case "done":
                outbox.all_merged()
                with self._lock:
                    self._ahead.clear()
                self._inbox.put(Finished(message.done.t))
            case "refused":
                code, text = message.refused.code, message.refused.message
                self._inbox.put(RefusedForGood(exit_for(code), f"the syncer refused this unit ({name_of(code)}): {text}"))
                return False
            case _:
                _log.debug("the syncer sent a message that this version does not know")
        return True

    def _welcomed(self, message: ToLearner, outbox: Outbox) -> None:
        welcome = message.welcome
        if [list(fragment.names) for fragment in welcome.fragments] != self._names:
            raise FramingError("the syncer cuts the model into other fragments than this learner; are both of one version?")
        if welcome.ranks != self._hello.ranks:
            raise FramingError(
                f"the syncer exchanges with {welcome.ranks} ranks per unit, and this unit has {self._hello.ranks}; are both of one version?"
            )
        asked = 0
        self._epoch = self._incarnations.number(welcome.incarnation)
        with self._lock:
            if not welcome.resumed:
                self._generation += 1
                self._ahead.clear()
                self._remainders = Remainders()  # a push of the generation before may still be coded, and puts its own where it found them
                self._leased = 0
                asked = self._initial_request
                if asked:
                    outbox.post(FromLearner(work_wanted=WorkWanted(samples=asked, data=self._data)))
            self._incarnation = welcome.incarnation
            # Only from here on may the training thread add to it: what it says belongs to a session that the syncer has taken up.
            self._outbox = outbox
        if welcome.takes_cancelled:
            outbox.may_cancel()
        if welcome.acknowledges:
            outbox.acknowledges(beside=welcome.acknowledges_beside)
        outbox.clock(welcome.t)
        outbox.ends_at(welcome.steps)
        self._inbox.put(Welcomed(self._generation, welcome.t, welcome.steps, welcome.seed_wanted, asked, self._epoch))

    def _push(self, outbox: Outbox, header: Chunk, staged: Staged) -> None:
        # Coded when its turn comes, against the newest broadcast received by then.
        names = self._names[header.fragment]
        chunks = push_chunks(header, staged, lambda: self._base(header.fragment), self._store, names, self._remainders)
        outbox.push(header, chunks, staged.release)

    def _base(self, fragment: int) -> tuple[int, Float32Array]:
        with self._lock:
            base = self._bases[fragment]
        return base.version, base.value

    def _answer(self, fragment: int, t: int) -> bool:
        """Answer a pull with what was staged ahead for it. False: there is nothing, so that the next step boundary answers."""
        with self._lock:
            if self._outbox is None or fragment not in self._bases:
                return False
            kept = self._ahead.take(fragment, t, self._bases[fragment].version)
            if kept is None:
                return False
            self._push(self._outbox, *kept)
            return True

    def _expected_bytes(self, chunk: Chunk) -> int:
        if chunk.kind != Chunk.BROADCAST or chunk.fragment >= len(self._names):
            raise FramingError(f"the syncer sent {Chunk.Kind.Name(chunk.kind)} of fragment {chunk.fragment}")
        return self._cut_bytes(Coding(chunk.coding), chunk.fragment)

    def _adopt(self, transfer: Transfer) -> None:
        header = transfer.header
        coding, portion = Coding(header.coding), self._portions[header.fragment]
        base = self._bases.get(header.fragment, _Base(-1, np.empty(portion.size, np.float32)))
        # Ends the stream. The next Hello says which versions are here, and the syncer sends this fragment whole.
        if coding.delta and base.version != header.base:
            raise CodecError(f"fragment {header.fragment} came as a delta against version {header.base}; this learner holds {base.version}")
        value = value_of_cut(coding, transfer.payload, portion, base.value)
        # To a learner that comes back the syncer sends version 0 again, see `Exchanges.held`. Adopted twice, it would overwrite steps.
        if (base.version, base.generation) == (header.t, self._generation) and np.array_equal(base.value, value):
            return
        ready = self._store.prepare(self._names[header.fragment], value)
        value.flags.writeable = False
        with self._lock:
            self._bases[header.fragment] = _Base(header.t, value, self._generation, header.checksum)
            self._ahead.received(header.fragment)
            self._remainders.received(header.fragment, header.t, header.merged)
        self._inbox.put(Received(header.fragment, header.t, ready, self._epoch, header.tokens))
