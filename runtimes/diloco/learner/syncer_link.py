"""What a session asks of its connection to the syncer: `diloco.learner.connection.Connection` in a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from diloco.learner.heartbeat_state import HeartbeatState
from diloco.learner.store import Float32Array, Staged
from diloco.protocol.diloco_pb2 import Bye, Chunk, FromLearner, Progress


class SyncerLink(Protocol):
    """Called from the training thread. Only `close` waits. What comes from the syncer goes into the session's inbox."""

    def start(self) -> None:
        """Begin to connect."""
        ...

    def progress(self, generation: int, progress: Progress) -> None:
        """Report a local step."""
        ...

    @property
    def heartbeat(self) -> HeartbeatState:
        """What the syncer is told of this process beside its steps, again and again. Of a unit's ranks it hears the first one only."""
        ...

    def post(self, message: FromLearner) -> None:
        """Send a message of the unit once, if there is a stream. Of a unit's ranks the first one's alone is sent."""
        ...

    def want(self, generation: int, samples: int) -> bool:
        """Ask for samples. False: not asked."""
        ...

    def set_initial_request(self, samples: int) -> None:
        """Set how many samples to ask for when a generation begins."""
        ...

    def push(self, generation: int, header: Chunk, staged: Staged) -> None:
        """Answer a pull."""
        ...

    def keep_only(self, fragments: Collection[int]) -> None:
        """Release what is kept of all other fragments for pulls to come."""
        ...

    def keep(self, generation: int, header: Chunk, staged: Staged) -> None:
        """Keep the answer to a pull that has not come yet, in place of an older one of the fragment. It is sent as soon as the pull comes,
        unless another version of the fragment than `header.base` comes before."""
        ...

    def seed(self, generation: int, values: Sequence[Float32Array]) -> None:
        """Send the job's first parameters: per fragment, float32 [size]."""
        ...

    def received(self) -> list[Float32Array] | None:
        """Return the last received values of every fragment; None unless all have come."""
        ...

    def close(self, bye: Bye | None) -> None:
        """End the connection, with `bye` after its delivery."""
        ...
