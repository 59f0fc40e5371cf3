"""The syncer's configuration from the contract's environment, and its time-outs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diloco import contract
from diloco.environment import ContractError, read_job_file, required, tls_files
from diloco.protocol.channel import Keepalive
from diloco.protocol.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds."""

    keepalive: Keepalive = field(default_factory=Keepalive)
    """Detects a frozen learner. Then its stream ends."""
    reconnect_window: float = 5.0
    """How long a session without a stream keeps its leases and may resume. Longer than a learner's longest delay before a reconnect."""
    farewell: float = 60.0
    """How long to wait for the learners' evaluations and Byes, after the last step, the last versions, and pauses."""
    linger: float = 10.0
    """How long the syncer of a finished job waits for learners that are away. If it has taken the job over from an earlier process, it also
    waits that long after its start. Longer than a learner's longest delay before a reconnect and a TLS handshake on a busy machine."""
    final_retry: float = 5.0
    """Between two attempts to make the final snapshot durable."""
    hello: float = 60.0
    """How long a stream may take for its first message: a large model's layout on a slow link takes a few seconds. A silent stream holds a
    file descriptor; the syncer ends it, and the learner opens another."""

    def __post_init__(self) -> None:
        if self.reconnect_window < 0 or self.farewell < 0 or self.linger < 0 or self.final_retry <= 0 or self.hello <= 0:
            raise ValueError("time-outs cannot be negative")


@dataclass(frozen=True, slots=True)
class SyncerConfig:
    job: contract.JobFile
    tls: TlsFiles
    host: str
    port: int
    state_dir: Path
    termination_log: Path | None
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def address(self) -> str:
        """host:port, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_config(environment: Mapping[str, str], timeouts: Timeouts) -> SyncerConfig:
    """Read the configuration from the contract's environment. Raises ContractError."""
    port = environment.get(contract.ENV_LISTEN_PORT, "") or str(contract.SYNCER_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ContractError(f"{contract.ENV_LISTEN_PORT} must be a port number, not {port!r}")
    log = environment.get(contract.ENV_TERMINATION_LOG, "")
    return SyncerConfig(
        job=read_job_file(environment),
        tls=tls_files(environment),
        host=required(environment, contract.ENV_POD_IP),
        port=int(port),
        state_dir=Path(required(environment, contract.ENV_STATE_DIR)),
        termination_log=Path(log) if log else None,
        timeouts=timeouts,
    )
