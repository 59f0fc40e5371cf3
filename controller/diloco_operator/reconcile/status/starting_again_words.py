"""How a job that has ended starts again, in words: a class for each sentence, with what it names. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.reconcile.sentences import Sentence


@dataclass(frozen=True, slots=True)
class Retries:
    """A failed job."""

    retry: int | None
    step: int | None
    """The outer step of its last snapshot; None: it has none."""

    def words(self) -> str:
        last = f"from its last snapshot, of outer step {self.step}"
        where = last if self.step is not None else "from the beginning, because it has no snapshot"
        return f"retry {self.retry}: the job starts again {where}"


@dataclass(frozen=True, slots=True)
class Continues:
    """A complete job with more to do."""

    step: int
    steps: int
    tokens: int | None
    """Its token budget; None: it has none."""

    def words(self) -> str:
        tokens = f" or {self.tokens} tokens" if self.tokens is not None else ""
        return f"the job goes on from its final snapshot, of outer step {self.step}, to {self.steps} steps{tokens}"


@dataclass(frozen=True, slots=True)
class WaitsForSyncerPod:
    """The start, while the syncer's pod of the last run is there."""

    start: Sentence
    pod: str

    def words(self) -> str:
        return f"{self.start.words()}, as soon as the pod {self.pod} of its last run has gone"
