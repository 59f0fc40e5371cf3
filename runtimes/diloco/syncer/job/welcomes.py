"""What the syncer says in its Welcome."""

from __future__ import annotations

from diloco.protocol.diloco_pb2 import FragmentNames, ToLearner, Welcome
from diloco.syncer.job.exchange import Exchanges
from diloco.syncer.streams.learner_stream import LearnerStream


class Welcomes:
    def __init__(self, steps: int, exchanges: Exchanges, incarnation: bytes) -> None:
        """`steps`: outer steps of the job. `incarnation`: see `JobParts`."""
        self._steps = steps
        self._exchanges = exchanges
        self._incarnation = incarnation

    def message(self, stream: LearnerStream, *, resumed: bool, seed_wanted: bool) -> ToLearner:
        """Return the Welcome for this stream, with the present state of the job."""
        return ToLearner(
            welcome=Welcome(
                incarnation=self._incarnation,
                t=self._exchanges.t,
                steps=self._steps,
                seed_wanted=seed_wanted,
                fragments=[FragmentNames(names=[tensor.name for tensor in fragment.tensors]) for fragment in self._exchanges.fragments],
                resumed=resumed,
                takes_cancelled=True,
                acknowledges=True,
                acknowledges_beside=True,
                ranks=len(stream.leader.owned),
            )
        )
