"""What every pod worker of one kubelet shares: this machine, the processes on it, and the simulated nodes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from diloco.protocol.backoff import ExponentialBackoff

from diloco_operator.kube.client import Client, Obj
from diloco_operator.local.addresses import Addresses
from diloco_operator.local.processes import Supervisor
from diloco_operator.timeouts import WatchTimeouts

WATCHES = WatchTimeouts(backoff=ExponentialBackoff(initial=0.5, ceiling=5.0))
"""Of everything here that watches: one machine does the API server no harm by coming back soon after an outage."""
_INHERITED = ("HOME", "USER", "TMPDIR", "TZ", "LD_LIBRARY_PATH")


def base_environment() -> dict[str, str]:
    """This machine's part of a container's environment: as little as an image would bring, and this interpreter first in PATH."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


def out_of_memory_kills() -> int:
    """How many processes the kernel has killed for want of memory since it booted (proc(5), /proc/vmstat)."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, value = line.split()
        if name == "oom_kill":
            return int(value)
    return 0


@dataclass(eq=False)
class SimulatedNode:
    """One node as its kubelet sees it."""

    name: str
    address: str
    relative_speed: str = ""
    """Of the annotation; "": the machine's own."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the node cannot reach the API server: it reads nothing and reports nothing."""
    running: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the node is stopped: it starts no container."""

    def __post_init__(self) -> None:
        self.connected.set()
        self.running.set()


@dataclass(eq=False)
class KubeletContext:
    client: Client
    supervisor: Supervisor
    addresses: Addresses
    state_dir: Path
    working_directory: Path
    """Where a container without workingDir runs: there is no image that had one."""
    environment: Mapping[str, str] = field(default_factory=base_environment)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits between restarts and retries go through this."""
    volume_sync: float = 10.0
    """Seconds between two looks at the ConfigMaps and Secrets that a running pod has mounted."""
    claim_folder: Callable[[Obj], Awaitable[Path]] | None = None
    """The folder of a volume claim. Raises ConfigError as long as it has none. None: `volumes/<namespace>/<claim>` of the state
    directory, so that the next control plane on it finds what the last one's syncer has written."""
    refuses: Callable[[Obj], str] = lambda _: ""
    """Why a pod that is bound to a node of ours is not run all the same; "": it is run."""
    memory_kills_told: int = 0
    """Kills for want of memory that some container's status tells of already."""

    async def folder_of(self, claim: Obj) -> Path:
        """The folder of a volume claim. Raises ConfigError, ApiError."""
        if self.claim_folder is not None:
            return await self.claim_folder(claim)
        return self.state_dir / "volumes" / str(claim["metadata"]["namespace"]) / str(claim["metadata"]["name"])
