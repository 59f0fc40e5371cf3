"""The answers of a unit of several ranks, until the portions of all ranks have come. Pure.

A portion waits coded, until the answer is whole. It is kept only while the coordinator waits for the answer. So a unit keeps at most one
coded answer for each open exchange, whatever its number of ranks.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from diloco.algorithm.coordinator import REMEMBERED_EXCHANGES
from diloco.algorithm.events import Offer
from diloco.algorithm.pieces import Portion

_REMEMBERED: Final = REMEMBERED_EXCHANGES
"""Refused answers that are remembered, so that the portions of one answer count as one refusal."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer with the portions of all ranks."""

    offer: Offer
    parts: Sequence[tuple[Portion, memoryview]] = field(repr=False)


@dataclass(slots=True)
class _OpenAnswer:
    offer: Offer
    parts: dict[int, tuple[Portion, memoryview]] = field(default_factory=dict)
    """By rank."""


class Gathering:
    """The answers of one unit. Fragment and outer step of its offer name an answer."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], _OpenAnswer] = {}
        self._refused: OrderedDict[tuple[int, int], set[int]] = OrderedDict()
        """For each refused answer the ranks that have sent their portions."""

    def disagreement(self, rank: int, offer: Offer) -> str:
        """Return how the offer differs from that of the ranks before it. Empty if it does not, or it is the first."""
        answer = self._open.get((offer.fragment, offer.t))
        if answer is None or answer.offer == offer:
            return ""
        return (
            f"the ranks disagree on fragment {offer.fragment} of outer step {offer.t}: rank {rank} says {_shown(offer)}, "
            f"rank {min(answer.parts)} {_shown(answer.offer)}"
        )

    def has(self, rank: int, offer: Offer) -> bool:
        """Whether this rank's portion has come already."""
        answer = self._open.get((offer.fragment, offer.t))
        return answer is not None and rank in answer.parts

    def add(self, rank: int, offer: Offer, portion: Portion, payload: memoryview) -> WholeAnswer | None:
        """Keep a portion, which must be awaited, not empty, and not have come before. Return the answer if this was the last portion."""
        key = (offer.fragment, offer.t)
        answer = self._open.setdefault(key, _OpenAnswer(offer))
        answer.parts[rank] = portion, payload
        # The portions of all ranks cover the fragment exactly once.
        if sum(kept.size for kept, _ in answer.parts.values()) < portion.fragment.size:
            return None
        del self._open[key]
        return WholeAnswer(offer, [answer.parts[of_rank] for of_rank in sorted(answer.parts)])

    def refused_before(self, rank: int, offer: Offer) -> bool:
        """Note that a portion is refused. True if the answer was refused before for another rank's portion, and so is counted already."""
        key = (offer.fragment, offer.t)
        known = key in self._refused
        ranks = self._refused.setdefault(key, set())
        again = rank in ranks
        ranks.add(rank)
        while len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        return known and not again

    def forget(self, rank: int) -> None:
        """Forget the rank's portions of open answers. Its stream is lost, and it may send them again."""
        for key, answer in list(self._open.items()):
            answer.parts.pop(rank, None)
            if not answer.parts:
                del self._open[key]
        for ranks in self._refused.values():
            ranks.discard(rank)

    def closed(self, fragment: int, t: int) -> None:
        """Drop an answer whose exchange is over."""
        self._open.pop((fragment, t), None)


def _shown(offer: Offer) -> str:
    marks = offer.marks
    return (
        f"{offer.tokens} tokens in {offer.steps} steps, {marks.samples} samples with {marks.tokens} tokens in {marks.steps} steps in all, "
        f"{offer.coding.name} against version {offer.base}"
    )
