"""What a job needs of its syncer's machine and of the network, from the number of its parameters, its learners and its settings. Pure.

`diloco plan --syncer`, the condition Training and the tables of docs/sizes.md come from here; that page says how far it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.contract import Training

from diloco_operator.api.spec import Spec

_FLOAT32 = 4
_PROCESS = 80 << 20
"""Bytes of a syncer that holds no model: Python and its libraries."""
_UNDER_WAY = 12
"""Fragments that a syncer holds beside two for each learner: merges, their records, messages. Measured, see docs/sizes.md."""
_LEAST_RECORDS = 128 << 20
_RATE = 0.2 * (1 << 30)
"""Bytes of contributions, counted as float32, that one core handles in a second: TLS, decoding, merge, record, broadcast. Measured, see
docs/sizes.md."""


@dataclass(frozen=True, slots=True)
class SyncerSizes:
    memory: int
    """Bytes, at its peak."""
    storage: int
    """Bytes of its volume."""
    bytes_per_step: float
    """Bytes that all learners together send to the syncer for each local step. It sends as many."""
    core_seconds_per_step: float
    """Seconds of a core for each local step of all learners."""


def syncer_sizes(parameters: int, learners: int, training: Training) -> SyncerSizes:
    """Compute what a syncer needs. `parameters`: number of parameters that are exchanged."""
    # Value and momentum; with int4 also the errors of rounding.
    state = _FLOAT32 * parameters * (3 if training.compression == "Int4" else 2)
    fragment = _FLOAT32 * -(-parameters // training.fragments)
    memory = state + (2 * learners + _UNDER_WAY) * fragment + _PROCESS
    # Merges since the newest snapshot are kept until the next one is durable: value and momentum of each fragment, at most twice.
    storage = (training.checkpoint.keep + 1) * state + max(_LEAST_RECORDS, 2 * 2 * _FLOAT32 * parameters)
    # In H local steps each fragment goes up once and comes down once.
    exchanged = learners * parameters / training.sync_interval
    return SyncerSizes(memory, storage, exchanged * wire_bytes(training.compression), exchanged * _FLOAT32 / _RATE)


def most_learners(spec: Spec) -> int:
    """Return how many learners of the job may take part at once, those outside the cluster and of parts included."""
    elsewhere = len(spec.learners.outside) + sum(len(part.units) for part in spec.parts)
    return min(spec.learners.max, sum(pool.learners.max for pool in spec.pools)) + elsewhere


def wire_bytes(compression: str) -> float:
    """Return the bytes of one value on the wire. Int4 has a scale in float32 for each 256 values."""
    return {"None": 4.0, "BFloat16": 2.0, "Int4": 0.5 + 4 / 256}[compression]
