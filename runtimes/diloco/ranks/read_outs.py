"""What a rank has read out of its model for exchanges, until the counters are known with which it is sent.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from diloco.algorithm.codec import Coding
from diloco.learner.push_header import PushCounts, push_header
from diloco.learner.store import Staged
from diloco.protocol.diloco_pb2 import Chunk
from diloco.ranks.orders import ReadOut


class ReadOuts:
    """At most one of each fragment."""

    def __init__(self, coding: Coding) -> None:
        """Begin with `coding`: of pushes."""
        self._coding = coding
        self._reads: dict[int, tuple[ReadOut, Staged]] = {}
        self._counted: dict[int, PushCounts] = {}
        """By fragment. They may be known before this rank comes to the boundary at which it reads out."""

    def __bool__(self) -> bool:
        """Say whether something waits."""
        return bool(self._reads)

    def put(self, read: ReadOut, staged: Staged) -> None:
        """Keep what was read out, in place of an older read of the fragment."""
        if (former := self._reads.pop(read.fragment, None)) is not None:
            former[1].release()
        self._reads[read.fragment] = read, staged

    def count(self, counted: PushCounts) -> None:
        """Note that the counters of a push are known."""
        self._counted[counted.fragment] = counted

    def take(self, epoch: int) -> list[tuple[Chunk, Staged]]:
        """Return what can be sent now: header and values, each given once. `epoch`: the syncer's state to which this rank's stream leads;
        what another one asked for is released."""
        found: list[tuple[Chunk, Staged]] = []
        for fragment, (read, staged) in list(self._reads.items()):
            counted = self._counted.get(fragment)
            if counted is None or read.t != counted.t:
                continue
            del self._reads[fragment], self._counted[fragment]
            if read.epoch == epoch:
                found.append((push_header(counted, self._coding), staged))
            else:
                staged.release()
        return found

    def release(self) -> None:
        """Let go of everything: nothing is sent any more."""
        for _, staged in self._reads.values():
            staged.release()
        self._reads.clear()
