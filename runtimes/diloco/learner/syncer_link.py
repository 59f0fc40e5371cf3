"""What a session asks of its connection to the syncer: `diloco.learner.connection.Connection` in a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from diloco.learner.store import Float32Array, Staged
from diloco.protocol.diloco_pb2 import Bye, Chunk, Evaluation, Progress


class SyncerLink(Protocol):
    """Called from the training thread. Only `close` waits. What comes from the syncer goes into the session's inbox."""

    def start(self) -> None:
        """Begin to connect."""
        ...

    def progress(self, generation: int, progress: Progress) -> None:
        """Report a local step."""
        ...

    def paused(self, reason: str, at_most: float) -> None:
        """Note that the program takes no steps for at most so many seconds; "": it goes on."""
        ...

    def holds_parameters(self) -> None:
        """Note that the model holds the job's parameters: the first step comes next."""
        ...

    def finish(self, reason: str) -> None:
        """Note that the program wants the job to end now."""
        ...

    def tell_standing(self) -> None:
        """Tell that what the process is doing beside its steps has changed."""
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

    def evaluated(self, evaluation: Evaluation) -> None:
        """Report the held-out loss."""
        ...

    def close(self, bye: Bye | None) -> None:
        """End the connection, with `bye` after its delivery."""
        ...
