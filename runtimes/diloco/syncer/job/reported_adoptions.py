"""Which version of a fragment each learner has adopted, and after which of its local steps. Its reports show both.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from diloco.algorithm.events import Metadata

MOST_SESSIONS = 4096
"""Sessions that are remembered. A job has fewer units."""


class ReportedAdoptions:
    """The adoptions of one job. A report counts, for each fragment, the local steps since it was adopted. A count that has not grown by the
    steps between two reports shows a new adoption."""

    def __init__(self) -> None:
        self._reported: dict[str, Metadata] = {}
        """The newest report of each session."""
        self._versions: dict[int, tuple[int, int]] = {}
        """The two newest versions of each fragment, the newest first."""

    def merged(self, p: int, t: int) -> None:
        """A merge has made version `t` of fragment `p`."""
        self._versions[p] = t, self._versions.get(p, (0, 0))[0]

    def reported(self, session: str, metadata: Metadata, seen: int) -> Iterator[tuple[int, int, int]]:
        """Yield (fragment, version, local step after which it was adopted) for each adoption since the session's last report.

        `metadata` counts each fragment. `seen` is the newest outer step that the learner knows of.
        """
        before = self._reported.pop(session, None)
        self._reported[session] = metadata
        if len(self._reported) > MOST_SESSIONS:
            del self._reported[next(iter(self._reported))]
        if before is None:
            return
        since = metadata.local_step - before.local_step
        for p, (earlier, now) in enumerate(zip(before.steps, metadata.steps, strict=True)):
            if now < earlier + since:
                newest, older = self._versions.get(p, (0, 0))
                yield p, newest if newest <= seen else older, metadata.local_step - now
