"""The processes of one unit as `jax.distributed` knows them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from diloco.environment import integer, required
from diloco.ranks.samples import DataRank
from diloco.ranks.world import World

_HEARTBEAT_TIMEOUT = 30
"""Timeout of JAX's own heartbeats, in seconds. It may be long, because the session notices the loss of a process within 5 s."""


def initialize(environment: Mapping[str, str] | None = None, *, timeout: int = 300) -> None:
    """Call `jax.distributed.initialize` with JAX_COORDINATOR_ADDRESS, and with JAX_NUM_PROCESSES and JAX_PROCESS_ID, which JAX itself does
    not read. Does nothing in a unit of one process. Call it before anything else of JAX.

    `timeout`: seconds to wait for the other processes. Raises ContractError, a ValueError, that names the variable.
    """
    environment = os.environ if environment is None else environment
    count = integer(environment, "JAX_NUM_PROCESSES", 1, 1)
    if count == 1:
        return
    jax.distributed.initialize(
        required(environment, "JAX_COORDINATOR_ADDRESS"),
        count,
        integer(environment, "JAX_PROCESS_ID", None, 0),
        cluster_detection_method="deactivate",
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT,
    )


def world_of(data_parallel: tuple[int, int] | None) -> World | None:
    """Return the processes of `jax.distributed`; None if there is only one. `data_parallel`: the argument of `join`. Raises ValueError if
    it cannot be."""
    if jax.process_count() == 1:
        return None
    data = None if data_parallel is None else DataRank(*data_parallel)
    return World(jax.process_index(), jax.process_count(), gather_bytes, data)


def gather_bytes(data: bytes) -> list[bytes]:
    """Return the data of each process, in the order of processes. Every process must call this."""
    own = np.frombuffer(data, np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.array([own.size], np.int32))).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: own.size] = own
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
    return [bytes(row[:size]) for row, size in zip(rows, sizes.tolist(), strict=True)]
