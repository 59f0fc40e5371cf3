"""What a joined learner may send, and how large it is.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import Coding, payload_bytes
from diloco.contract import Training
from diloco.protocol.diloco_pb2 import Chunk
from diloco.protocol.framing import OPEN_TRANSFERS, FramingError
from diloco.syncer.job.exchange import Exchanges
from diloco.syncer.streams.learner_stream import CongestedError, LearnerStream
from diloco.wording import plural


class Payloads:
    """The payloads of one job. The readers of the streams ask it."""

    def __init__(self, training: Training, exchanges: Exchanges) -> None:
        self._training = training
        self._exchanges = exchanges

    def expected(self, stream: LearnerStream, chunk: Chunk) -> int:
        """Return bytes of the payload that a joined learner's chunk begins. Raises FramingError for a chunk that this learner may not send.

        A seed is a whole model in memory: only the one learner that was asked for it may send it.
        """
        if chunk.fragment >= len(self._exchanges.fragments):
            raise FramingError(f"there is no fragment {chunk.fragment} in this job")
        size = self._exchanges.fragments[chunk.fragment].size if stream.portions is None else stream.portions[chunk.fragment].size
        # Another unit may be asked by now because one of this unit's ranks was lost, which the others do not know yet.
        asked = self._exchanges.seeding.stream == stream.leader.number or (stream.portions is not None and stream.seed_asked)
        if chunk.kind == Chunk.SEED and not asked:
            raise FramingError("this learner sends a seed, and was not asked for one")
        if chunk.kind == Chunk.SEED and chunk.coding == Chunk.FLOAT32:
            return payload_bytes(Coding.FLOAT32, size)
        if chunk.kind == Chunk.PUSH and chunk.coding in Coding:
            expected = payload_bytes(Coding(chunk.coding), size)
            self._check_congestion(stream, expected)
            return expected
        raise FramingError(f"a learner cannot send {Chunk.Kind.Name(chunk.kind)} coded as {Chunk.Coding.Name(chunk.coding)}")

    def memory(self, size: int) -> NDArray[np.uint8]:
        """Give so many bytes for a payload."""
        return self._exchanges.opened().shard.memory.take(size)

    def _check_congestion(self, stream: LearnerStream, size: int) -> None:
        """Refuse a unit of several ranks more memory for pushes under way than one process could hold. Raises CongestedError."""
        if stream.portions is None:
            return
        under_way = sum(each.assembler.reserved for each in stream.unit_streams if each.assembler is not None)
        transfers = max(OPEN_TRANSFERS, self._training.overlap_steps + 1)
        most = transfers * payload_bytes(Coding.FLOAT32, max(fragment.size for fragment in self._exchanges.fragments))
        if under_way + size > most:
            raise CongestedError(
                f"the ranks of the unit have pushes of {under_way + size} bytes under way; {most} are the most, "
                f"{plural(transfers, 'fragment')} as large as the largest"
            )
