"""Answers that a unit has staged for pulls that have not come yet.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from collections.abc import Collection

from diloco.learner.store import Staged
from diloco.protocol.diloco_pb2 import Chunk


class StagedAhead:
    """At most one answer for each fragment, to one pull each. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Chunk, Staged]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, header: Chunk, staged: Staged) -> None:
        """Keep an answer, in place of an older one for the fragment. `header.t` is the outer step of the pull that will come, and
        `header.base` the version of the fragment that the unit had adopted."""
        self._release(header.fragment)
        self._kept[header.fragment] = (header, staged)

    def keep_only(self, fragments: Collection[int]) -> None:
        """Release the answers for all other fragments."""
        for fragment in self._kept.keys() - set(fragments):
            self._release(fragment)

    def take(self, fragment: int, t: int, version: int) -> tuple[Chunk, Staged] | None:
        """Return the answer to the pull of outer step `t`, which the caller must release. None if there is none.

        An answer for another exchange is released, and so is one that was staged before the unit received `version`: the unit must adopt
        that first.
        """
        header, staged = self._kept.pop(fragment, (None, None))
        if header is None or staged is None:
            return None
        if (header.t, header.base) == (t, version):
            return header, staged
        staged.release()
        return None

    def received(self, fragment: int) -> None:
        """Release the answer for a fragment after its newer version has come: it will not be sent."""
        self._release(fragment)

    def clear(self) -> None:
        self.keep_only(())

    def _release(self, fragment: int) -> None:
        if (kept := self._kept.pop(fragment, None)) is not None:
            kept[1].release()
