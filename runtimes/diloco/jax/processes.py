"""The processes of one unit as `jax.distributed` knows them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax

from diloco.environment import integer, required

_HEARTBEAT_SECONDS = 30
"""Of JAX's own; a session notices the loss of a process within 5 s."""


def initialize(environment: Mapping[str, str] = os.environ, *, timeout: int = 300) -> None:
    """`jax.distributed.initialize` with what the pod's environment says, which JAX itself does not read: JAX_NUM_PROCESSES and
    JAX_PROCESS_ID, beside JAX_COORDINATOR_ADDRESS. Does nothing in a unit of one process. Call it before anything else of JAX.

    `timeout`: seconds to wait for the other processes. Raises ContractError, a ValueError, that names the variable.
    """
    count = integer(environment, "JAX_NUM_PROCESSES", 1, 1)
    if count == 1:
        return
    jax.distributed.initialize(
        required(environment, "JAX_COORDINATOR_ADDRESS"),
        count,
        integer(environment, "JAX_PROCESS_ID", None, 0),
        cluster_detection_method="deactivate",
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
    )
