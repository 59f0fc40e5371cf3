"""How far one session's work is in the model.

Each fragment is merged at outer steps of its own, and the merge holds what the learner had trained when the fragment's values were read. So
a step of the session is in the model once *every* fragment has merged a contribution that was read at or after this step.

See docs/decisions/0003-sessions-and-work.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diloco.data.ledger import UnitWork
from diloco.wording import plural


@dataclass(frozen=True, slots=True)
class _Offer:
    t: int
    """Outer step of the exchange."""
    done: UnitWork


class Watermark:
    """The watermark of one session. `done` is the session's work when a contribution was read: totals since the session began."""

    def __init__(self, fragments: int, stored: Mapping[str, Any] | None = None) -> None:
        """`stored` is a result of `to_json`, or None. Raises KeyError, TypeError or ValueError for anything else."""
        self._merged = [UnitWork()] * fragments
        self._merged_at = [0] * fragments
        if stored is not None:
            self._merged = [UnitWork(int(samples), int(tokens), int(steps)) for samples, tokens, steps in stored["merged"]]
            self._merged_at = [int(t) for t in stored["at"]]
            if not len(self._merged) == len(self._merged_at) == fragments:
                raise ValueError(f"a watermark of {len(self._merged)} fragments in a job of {fragments}")
        self._offers: dict[int, _Offer] = {}
        """The accepted contribution to each fragment that waits for its merge. A fragment has one exchange at a time."""

    @property
    def committed(self) -> UnitWork:
        """What every fragment has merged."""
        return min(self._merged, key=_order)

    @property
    def reachable(self) -> UnitWork:
        """What will be committed once every waiting contribution is merged."""
        works = list(self._merged)
        for p, offer in self._offers.items():
            works[p] = max(works[p], offer.done, key=_order)
        return min(works, key=_order)

    def merged(self, p: int) -> UnitWork:
        """The session's work when the values were read that fragment `p` merged last."""
        return self._merged[p]

    def merged_at(self, p: int) -> int:
        """The outer step of the last merge of fragment `p` with a contribution of this session; 0 if there was none."""
        return self._merged_at[p]

    @property
    def waits(self) -> bool:
        """Whether an accepted contribution waits for its merge."""
        return bool(self._offers)

    def contradiction(self, done: UnitWork) -> str:
        """Return why `done` cannot be totals of this session; "" if they can. Contributions may arrive in another order than they were
        read, but of two totals the later one has at least as much of everything."""
        for known in (*self._merged, *(offer.done for offer in self._offers.values())):
            fewer, more = sorted((known, done), key=_order)
            if fewer.tokens > more.tokens or fewer.steps > more.steps:
                return f"{_shown(more)} and {_shown(fewer)} are not totals of one session: the later of two has at least as much of all"
        return ""

    def offered(self, p: int, t: int, done: UnitWork) -> None:
        """A contribution to fragment `p` at outer step `t` was accepted."""
        self._offers[p] = _Offer(t, done)

    def to_json(self) -> dict[str, Any]:
        """What is merged. Contributions that wait for a merge are not stored: they end with the process."""
        return {"merged": [[done.samples, done.tokens, done.steps] for done in self._merged], "at": list(self._merged_at)}

    def closed(self, p: int, t: int, *, merged: bool) -> bool:
        """The exchange of fragment `p` at outer step `t` is over. `merged`: this session's contribution was merged. Returns False if the
        session had none in this exchange."""
        offer = self._offers.get(p)
        if offer is None or offer.t != t:
            return False
        del self._offers[p]
        if merged:
            self._merged[p] = max(self._merged[p], offer.done, key=_order)
            self._merged_at[p] = t
        return True


def _order(done: UnitWork) -> tuple[int, int, int]:
    return (done.samples, done.tokens, done.steps)


def _shown(done: UnitWork) -> str:
    return f"{plural(done.samples, 'sample')} with {plural(done.tokens, 'token')} in {plural(done.steps, 'step')}"
