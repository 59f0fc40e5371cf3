"""Checks a Hello against what the syncer knows: whether the learner goes on, and whether its model is that of the job.

Only the engine's task uses it. See docs/decisions/0003-sessions-and-work.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from diloco.algorithm.layout import LayoutError
from diloco.protocol.diloco_pb2 import Hello
from diloco.protocol.piece_maps import MOST_RANKS, layout_of
from diloco.syncer.job.parts import JobParts
from diloco.syncer.job.starting import ModelStart
from diloco.wording import plural

MOST_TEXT = 1000
"""The most characters of a text in a Hello. A locality, of the longest labels on seven levels, has 447."""
MOST_KIND = 1 << 16
"""The most characters of a kind of inner state, which names every optimizer: some programs have one for each of thousands of tensors."""


class HelloCheck:
    """Its only effect: in a job without a layout, `wrong_layout` makes the layout of the first Hello that of the job."""

    def __init__(self, job: JobParts, fragments: int, starting: ModelStart | None = None) -> None:
        """`fragments`: how many the job has. `starting` is the start of a job that begins with an existing model."""
        self._job = job
        self._fragments = fragments
        self._starting = starting

    def oversized(self, hello: Hello) -> str:
        """Return what a Hello has more of than any learner says, or "". Asked before anything else: it could hold up all other learners."""
        for name, count in (("versions", len(hello.versions)), ("checksums", len(hello.checksums))):
            if count > self._fragments:
                return f"Hello has {count} {name}, the job has {plural(self._fragments, 'fragment')}"
        if (addresses := len(hello.rank_addresses)) > MOST_RANKS:
            return f"Hello has {addresses} addresses of ranks; {MOST_RANKS} are the most"
        for name, length, most in _lengths(hello):
            if length > most:
                return f"Hello has {name} of {length} characters; {most} are the most"
        return ""

    def resumes(self, hello: Hello) -> bool:
        """Whether the learner goes on with a session that this process knows. Then it is sent only what it lacks."""
        before = self._job.sessions.session(hello.unit)
        known = before is not None and (before.attempt, before.session_id) == (hello.attempt, hello.session)
        return known and self.goes_on(hello)

    def goes_on(self, hello: Hello) -> bool:
        """Whether the learner was connected to this state, and holds nothing that the state lacks. A syncer whose machine lost power may
        have forgotten leases."""
        session = self._job.sessions.session(hello.unit)
        return (
            hello.incarnation == self._job.incarnation
            and session is not None
            and hello.samples_leased <= self._job.work.leased_to(session)
            and self._job.exchanges.made(hello.versions, hello.checksums)
        )

    def wrong_layout(self, hello: Hello) -> str:
        """Return what is wrong with the layout in a Hello, or "". Without a state, the first learner's layout becomes the job's."""
        try:
            layout = layout_of(hello)
            if layout.fingerprint != hello.fingerprint:
                return "the fingerprint is not that of the tensors: learner and syncer are of different versions"
            if self._starting is not None and not self._job.exchanges.seeded and (wrong := self._starting.misfit(hello.unit, layout)):
                return wrong
            difference = layout.difference(self._job.exchanges.open(layout))
        except LayoutError as error:
            return str(error)
        if not difference:
            return ""
        shown = "; ".join(difference[:10]) + (f"; and {len(difference) - 10} more" if len(difference) > 10 else "")
        return f"the parameters of unit {hello.unit} are not those of this job: {shown}"


def _lengths(hello: Hello) -> Iterator[tuple[str, int, int]]:
    """Yield (name, length, most) of each text that is looked at, kept or told to other learners."""
    yield "a session", len(hello.session), MOST_TEXT
    yield "a process", len(hello.process), MOST_TEXT
    yield "a framework", len(hello.framework), MOST_TEXT
    yield "a locality", len(hello.locality), MOST_TEXT
    yield "a cluster", len(hello.cluster), MOST_TEXT
    yield "a kind of inner state", len(hello.inner_state), MOST_KIND
    for address in (hello.peer_address, *hello.rank_addresses):
        yield "an address", len(address), MOST_TEXT
