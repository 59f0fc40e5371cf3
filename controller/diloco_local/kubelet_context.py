"""What all pod workers of one kubelet share: this machine, the processes on it, and the simulated nodes."""

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
from diloco_operator.timeouts import WatchTimeouts

from diloco_local.addresses import Addresses
from diloco_local.compilation_cache import CACHE_VARIABLES
from diloco_local.processes import Supervisor
from diloco_local.short_paths import ShortPaths
from diloco_local.state_dir import claim_folder

WATCHES = WatchTimeouts(backoff=ExponentialBackoff(initial=0.5, ceiling=5.0))
"""Time-outs of all watches of simulated nodes. A single machine may reconnect soon after an outage without loading the API server."""
_INHERITED = ("HOME", "USER", "TMPDIR", "TZ", "LD_LIBRARY_PATH", *CACHE_VARIABLES)


def base_environment() -> dict[str, str]:
    """This machine's part of a container's environment: as little as an image would set, and this interpreter first in PATH."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


def out_of_memory_kills() -> int:
    """How many processes the kernel has killed since boot because memory ran out (proc(5), /proc/vmstat)."""
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
    """The node's annotation. "" means the speed of the machine."""
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
    """Where a container without workingDir runs, since there is no image that sets one."""
    environment: Mapping[str, str] = field(default_factory=base_environment)
    chosen_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user gives to all containers. They win over what this kubelet sets; what a pod declares wins over them."""
    short_paths: ShortPaths = field(default_factory=ShortPaths)
    """The code that makes this context closes it."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits between restarts and retries go through this."""
    volume_sync: float = 10.0
    """Seconds between two reads of the ConfigMaps and Secrets that a running pod has mounted."""
    admission_error: Callable[[Obj], str] = lambda _: ""
    """Why this kubelet does not run a pod that is bound to one of its nodes. "" if it runs the pod."""
    address_in_annotation: bool = False
    """The address of a pod goes into its annotation `names.ANNOTATION_ADDRESS`, not into its status."""
    syncer: Callable[[str], str] = str
    """Where pods reach a syncer, by its own address. A syncer in another cluster may be behind a link."""
    memory_kills_reported: int = 0
    """Out-of-memory kills that the status of some container already reports."""

    log_begins: dict[Path, int] = field(default_factory=dict)
    """For each log file that a container of this kubelet writes: the position where its run begins. Earlier kubelets may have written
    before it."""

    async def folder_of(self, claim: Obj) -> Path:
        return claim_folder(self.state_dir, str(claim["metadata"]["namespace"]), str(claim["metadata"]["name"]))
