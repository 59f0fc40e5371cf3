"""`diloco-launch [--nproc-per-node N] [-m] PROGRAM ARGS…`: start the ranks of this host, for torch and JAX.

It reads the pod's environment, gives every rank the variables that `torchrun` and JAX users expect, and passes signals to all ranks. Its
exit status is that of the first rank that failed by itself. It never restarts a rank: the operator restarts the unit as a whole.

See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import queue
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final

from diloco import contract
from diloco.bundle import bundle_environment
from diloco.contract import Exit
from diloco.environment import ContractError, integer
from diloco.error_line import error_line
from diloco.last_words import has_last_words, leave_last_words

FAILURE_GRACE = 4.0
"""Seconds that the other ranks have to end by themselves after one failed. The rest is killed then, so all ranks are gone within 5 s."""
_TAIL_LINES = 60
_MOST_PROCESSES = 1024
_PROGRAM = "diloco-launch"
_PORTS: Final = range(10_000, 20_000)
"""Ports at which the ranks of a unit of one host meet. The operator gives units of several hosts ports above these, and Linux gives
outgoing connections ports from 32768 on."""
_PORT_ATTEMPTS: Final = 100
_CANNOT_START = 127
"""The status of a shell for a command that it cannot find."""
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a rank of this host ended."""

    rank: int
    returncode: int
    """As `subprocess` has it: negative for a signal."""
    tail: Sequence[str] = ()
    """The last lines that it printed."""
    killed_here: bool = False

    @property
    def status(self) -> int:
        """Exit status as a shell has it: 128 + the signal's number for a rank that a signal killed."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def drained(self) -> bool:
        """The rank obeyed SIGTERM. A process that does not handle the signal is killed by it, and has not drained."""
        return self.returncode == Exit.DRAINED

    @property
    def reason(self) -> str:
        """The last error line of the rank, or the signal that killed it."""
        if self.returncode < 0:
            return f"killed by {signal.Signals(-self.returncode).name}"
        return error_line("\n".join(self.tail))


def rank_environments(environment: Mapping[str, str], processes: int, ports: tuple[int, int] = (0, 0)) -> list[dict[str, str]]:
    """Return the environment of each rank of this host.

    `ports`: where the ranks of a unit of one host meet, for torch and for JAX. Raises ContractError if the unit has several hosts and
    MASTER_ADDR is not set.
    """
    hosts, host = integer(environment, contract.ENV_HOSTS, 1, 1), integer(environment, contract.ENV_HOST, 0, 0)
    accelerators = integer(environment, contract.ENV_ACCELERATORS_PER_HOST, 0, 0)
    if hosts > 1 and not environment.get("MASTER_ADDR"):
        raise ContractError(f"the unit has {hosts} hosts ({contract.ENV_HOSTS}), but MASTER_ADDR is not set: the operator sets it")
    world = hosts * processes
    # The pod's environment overrides these: the operator says where the ranks of several hosts meet.
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0]), "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{ports[1]}"}
    shared = {
        **({"OMP_NUM_THREADS": "1"} if processes > 1 else {}),
        **meeting,
        **environment,
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(processes),
        "NNODES": str(hosts),
        "NODE_RANK": str(host),
        "JAX_NUM_PROCESSES": str(world),
        "PYTHONUNBUFFERED": "1",
    }
    environments = []
    for local in range(processes):
        rank = str(host * processes + local)
        own = {"RANK": rank, "LOCAL_RANK": str(local), "JAX_PROCESS_ID": rank}
        if processes > 1 and accelerators >= processes:
            share = accelerators // processes
            own["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(local * share + index) for index in range(share))
        environments.append({**shared, **own})
    return environments


def cause_of(ends: Sequence[Ended]) -> Ended | None:
    """Return the end that caused the others; None if all ranks ended with status 0. `ends` are in the order of time.

    A rank that ended because it lost another one (RANK_LOST) is the cause only if all failures are of this kind.
    """
    failed = [end for end in ends if end.returncode != 0 and not end.killed_here]
    by_itself = [end for end in failed if end.returncode != Exit.RANK_LOST]
    return next(iter(by_itself or failed), None)


class Ranks:
    """The ranks of this host, from their start to the end of the last."""

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        self._ends: queue.Queue[Ended] = queue.Queue()
        self._killed = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        for environment in environments:
            # In a session of its own, so that Ctrl-C in a terminal reaches each rank once, through us.
            try:
                process = subprocess.Popen(
                    command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
                )
            except OSError:
                self.signal(signal.SIGKILL)
                raise
            self._processes.append(process)
            thread = threading.Thread(target=self._follow, args=(int(environment["RANK"]), process), daemon=True)
            self._threads.append(thread)
            thread.start()

    def signal(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)

    def wait(self) -> list[Ended]:
        """Return all ends, in the order of time. Ranks that still run `FAILURE_GRACE` after the first failure are killed.

        A rank that drained is no failure: the others have got the signal too, and may take the pod's whole grace period.
        """
        ends: list[Ended] = []
        kill_at: float | None = None
        while len(ends) < len(self._processes):
            try:
                left = None if kill_at is None or self._killed else max(0.0, kill_at - time.monotonic())
                end = self._ends.get(timeout=left)
            except queue.Empty:
                self._killed = True
                self.signal(signal.SIGKILL)
                continue
            ends.append(end)
            if kill_at is None and end.returncode != 0 and not end.drained:
                kill_at = time.monotonic() + FAILURE_GRACE
        return ends

    def _follow(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        reader = threading.Thread(target=_print_lines, args=(rank, process.stdout, tail), daemon=True)
        reader.start()
        returncode = process.wait()
        reader.join(timeout=1.0)  # not for ever: a process that the rank left behind may hold the pipe open
        self._ends.put(Ended(rank, returncode, tuple(tail), self._killed))


def _print_lines(rank: int, pipe: BinaryIO, tail: collections.deque[str]) -> None:
    """Copy lines to our own output, each with its rank, so that lines of several ranks never mix."""
    prefix = f"[{rank}] ".encode()
    for line in pipe:
        tail.append(line.decode(errors="replace").rstrip())
        sys.stdout.buffer.write(prefix + line.rstrip(b"\n") + b"\n")
        sys.stdout.buffer.flush()


def launch(command: Sequence[str], environment: Mapping[str, str], processes: int) -> int:
    """Start the ranks of this host, and return the exit status of the pod when all have ended. Raises ContractError."""
    environments = rank_environments(environment, processes, free_ports())
    early: list[int] = []
    ranks: Ranks | None = None

    def forward(number: int, _: FrameType | None) -> None:
        if ranks is None:
            early.append(number)
        else:
            ranks.signal(number)

    # Before the ranks start: a signal that comes while they start is kept in `early`, and none of them misses it.
    for forwarded in _FORWARDED:
        signal.signal(forwarded, forward)
    ranks = Ranks(command, environments)
    for number in early:
        ranks.signal(number)
    cause = cause_of(ranks.wait())
    if cause is None:
        return Exit.COMPLETE
    if not has_last_words(environment):  # a rank that was killed, or ended before it imported diloco, said nothing
        leave_last_words({**environment, **environments[0], "RANK": str(cause.rank)}, cause.status, cause.reason)
    sys.stderr.write(f"{_PROGRAM}: rank {cause.rank} ended first, with exit status {cause.status}: {cause.reason}\n")
    return cause.status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. A single rank replaces this process, so that nothing stands between the rank and the kubelet."""
    options = _parser().parse_args(argv)
    environment = dict(os.environ)
    raise_locked_memory()
    python = options.module or options.program.endswith(".py")
    command = [*([sys.executable] if python else []), *(["-m"] if options.module else []), options.program, *options.arguments]
    try:
        if options.bundle is not None:
            environment |= bundle_environment(options.bundle)
        processes = options.nproc_per_node or integer(environment, contract.ENV_PROCESSES_PER_HOST, 1, 1)
        if processes == 1:
            [environment] = rank_environments(environment, 1, free_ports())
            os.execvpe(command[0], command, environment)  # noqa: S606
        return launch(command, environment, processes)
    except ContractError as error:
        leave_last_words(environment, Exit.BAD_CONTRACT, str(error))
        sys.stderr.write(f"{_PROGRAM}: {error}\n")
        return Exit.BAD_CONTRACT
    except OSError as error:
        message = f"cannot start {command[0]}: {error.strerror}"
        leave_last_words(environment, _CANNOT_START, message)
        sys.stderr.write(f"{_PROGRAM}: {message}\n")
        return _CANNOT_START


def raise_locked_memory() -> None:
    """Raise the limit of locked memory for this process and the ranks: to infinity if the container has CAP_SYS_RESOURCE, else to the hard
    limit. Drivers of TPUs and network cards pin memory: https://cloud.google.com/kubernetes-engine/docs/how-to/tpus."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    for limits in ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (hard, hard)):
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)
        except (OSError, ValueError):
            continue  # it may not raise the hard limit
        return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Start the ranks of this host, for torch and JAX, as the pod's environment says."
    )
    parser.add_argument(
        "--nproc-per-node", "--nproc_per_node", type=_count, metavar="N",
        help=f"ranks of this host; default: {contract.ENV_PROCESSES_PER_HOST}, which spec.pools[].processesPerHost sets, else 1",
    )  # fmt: skip
    parser.add_argument(
        "--bundle", type=Path, metavar="FOLDER",
        help="join as a learner outside the job's cluster, with the folder that kubectl diloco join-bundle wrote",
    )  # fmt: skip
    parser.add_argument("-m", "--module", action="store_true", help="PROGRAM is a Python module")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file, a module with -m, or any other command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what follows is the program's")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {_MOST_PROCESSES}, not {text!r}")
    return int(text)


def free_ports() -> tuple[int, int]:
    """Return two ports at which no program of this machine listens. Raises OSError if there are none."""
    with contextlib.ExitStack() as bound:
        first, second = (bound.enter_context(_bound()).getsockname()[1] for _ in range(2))
    return first, second


def _bound() -> socket.socket:
    """Return a socket that is bound to a free port on all addresses, because torch's store listens on all. Raises OSError.

    The port is not in the range that the system gives to outgoing connections: one of them could take it before the rank does.
    """
    for port in random.sample(_PORTS, _PORT_ATTEMPTS):
        bound = socket.socket()
        try:
            bound.bind(("", port))
        except OSError:
            bound.close()
        else:
            return bound
    raise OSError(f"no port is free among {_PORT_ATTEMPTS} of {_PORTS.start} to {_PORTS.stop - 1}")


if __name__ == "__main__":
    raise SystemExit(main())
