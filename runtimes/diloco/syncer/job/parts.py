"""What the modules of the engine's task share about one job.

Only the engine's task uses it.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.syncer.job.exchange import Exchanges
from diloco.syncer.job.work import JobWork
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco.syncer.streams.changes import Changes
from diloco.syncer.streams.learner_stream import LearnerStreams
from diloco.syncer.streams.sessions import SessionRegistry
from diloco.tape.writer import TapeWriter


@dataclass(frozen=True, slots=True)
class JobParts:
    """One job's streams, sessions, parameters, samples, figures and tape."""

    streams: LearnerStreams
    sessions: SessionRegistry
    exchanges: Exchanges
    work: JobWork
    unit_stats: UnitStatsTable
    tape: TapeWriter
    changes: Changes
    incarnation: bytes
    """Random bytes that name the state. A restarted syncer keeps them if it has lost nothing."""
