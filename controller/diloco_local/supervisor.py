"""The parent of every container process: one small helper program, run by path so that it imports only some standard library.

It starts and signals processes on request and reports their exits, as JSON lines over a socket that it shares with one command.
When that socket closes, because the command ended in any way (even by SIGKILL), it kills every descendant and exits. It is a sub-reaper:
a grandchild that daemonises (double fork, setsid) becomes its child instead of init's, so it is found too. If the supervisor itself is
killed, the containers' main processes die by PR_SET_PDEATHSIG, and `processes.Supervisor` kills the processes that carry its mark.

Linux only: /proc, prctl.

Requests:  {"op": "spawn", "id", "argv", "env", "cwd", "log", "mark", "nice"}
           {"op": "signal", "id", "signal", "group": bool}   {"op": "end", "id"}
Reports:   {"started": id, "pid"}   {"failed": id, "errno", "message"}   {"exited": id, "status": wait status}   {"gone": id}

`exited` is sent when the main process has ended. As in a container, all other processes end with it; `gone` is sent when none of them is
alive. `end` kills a whole container.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

MARK = "DILOCO_LOCAL_CONTAINER"
"""Environment variable that marks every process of a container, also after it moved to another session or group."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_RECHECK_SECONDS = 0.005
_END_SECONDS = 10.0
"""How long to wait for killed processes to end. Only a process that is stuck inside the kernel takes longer; it dies when it leaves the
kernel."""
_FORKS_OUTRUN = 1000
_LISTS = 200
_LOOKS_AT_EXEC = 20
_AUTOGROUP_SECONDS = 0.5


def prctl(option: int, argument: int) -> None:
    """Call prctl."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


@dataclass(frozen=True)
class ProcessStat:
    """What is used of /proc/<pid>/stat."""

    pid: int
    parent: int
    session: int
    state: str

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def processes() -> Iterator[ProcessStat]:
    """Yield every process of the machine that is visible and lives when the last of them has been given, and some that have ended
    meanwhile.

    A process that was listed may fork and end before it is read; so the list is made again until it holds nothing new. Then each living
    process was listed and read, or its parent lived after the last list was begun, so that the parent was. Within a list a parent comes
    before its children: who finds a parent gone reads of its children that the sub-reaper has them. Processes that fork faster than they
    are listed end the search after `_LISTS` lists; one of those is then nearly always read alive.
    """
    read: set[str] = set()
    for _ in range(_LISTS):
        listed = os.listdir("/proc")  # noqa: PTH208 - pathlib is not worth its import in a helper that must start at once
        fresh = [entry for entry in listed if entry.isdigit() and entry not in read]
        if not fresh:
            return
        read.update(fresh)
        for entry in fresh:
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                    stat = file.read()
            except OSError:
                continue
            fields = stat[stat.rindex(b")") + 2 :].split()  # the name in parentheses may contain blanks and parentheses
            yield ProcessStat(int(entry), int(fields[1]), int(fields[3]), fields[0].decode())


def descendants(root: int) -> list[ProcessStat]:
    """Return all processes below `root`, living or not."""
    children: dict[int, list[ProcessStat]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found: list[ProcessStat] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += [process.pid for process in below]
    return found


def lower_priority(niceness: int) -> None:
    """Give this process, a session leader, a lower priority than processes outside containers, by so much niceness; 0 leaves it."""
    os.nice(niceness)
    deadline = time.monotonic() + _AUTOGROUP_SECONDS
    while True:
        try:
            # Where the kernel schedules by session (sched_autogroup), the niceness of the session counts between sessions.
            with open("/proc/self/autogroup", "w") as file:  # noqa: PTH123
                file.write(str(niceness))
            return
        except OSError as error:  # the kernel does not group by session; or EAGAIN: too many writes within 0.1 s
            if error.errno != errno.EAGAIN or time.monotonic() > deadline:
                return
            time.sleep(_RECHECK_SECONDS)


def has_mark(pid: int, mark: str) -> bool:
    """Return whether the process was started with MARK set to something that begins with `mark`."""
    for _ in range(_LOOKS_AT_EXEC):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                environ = file.read()
        except OSError:
            return False
        # While a process executes a program, its new environment is not there yet. One of the kernel, or that ends, has no program either.
        if environ or not os.path.exists(f"/proc/{pid}/exe"):  # noqa: PTH110
            break
        time.sleep(0.001)
    return any(item.startswith(f"{MARK}={mark}".encode()) for item in environ.split(b"\0"))


def kill(pid: int, number: int) -> None:
    """Send a signal. A process that has gone already is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill_until_none(living: Callable[[], list[int]]) -> bool:
    """Send SIGKILL to what `living` finds until it finds nothing, however fast the processes fork. False: a process outlived
    `_END_SECONDS`."""
    deadline = time.monotonic() + _END_SECONDS
    while found := living():
        for _ in range(_FORKS_OUTRUN):
            for pid in found:
                kill(pid, signal.SIGSTOP)  # a stopped process does not fork while the others die
            fresh = [pid for pid in living() if pid not in found]
            if not fresh:
                break
            found += fresh
        for pid in found:
            kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_RECHECK_SECONDS)
    return True


def kill_marked(mark: str) -> bool:
    """Kill every process of this machine that carries the mark. For the owner of a supervisor that died."""
    me = os.getpid()
    return kill_until_none(lambda: [p.pid for p in processes() if p.alive and p.pid != me and has_mark(p.pid, mark)])


@dataclass
class _Container:
    id: int
    pid: int
    mark: str
    ended: bool = False


class SupervisorServer:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._containers: dict[int, _Container] = {}
        self._unread = b""

    def run(self) -> None:
        """Serve until the other side closes the connection, then kill everything."""
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wake, waker = os.pipe()
        for end in (wake, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        stop: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda received, _: stop.append(received))
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLIN)
        poll.register(wake, select.POLLIN)
        try:
            while not stop:
                closing = any(container.ended for container in self._containers.values())
                ready = {fd for fd, _ in poll.poll(_RECHECK_SECONDS * 1000 if closing else None)}
                if wake in ready:
                    os.read(wake, 4096)
                self._reap()
                if self._connection.fileno() in ready and not self._serve():
                    break
                self._finish()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the command has ended, as when it closes the connection
        finally:
            kill_until_none(self._all_living)

    def _all_living(self) -> list[int]:
        self._collect()
        return [process.pid for process in descendants(os.getpid()) if process.alive]

    def _collect(self) -> list[tuple[int, int]]:
        """Return (pid, wait status) of every child that has ended, adopted ones too."""
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            ended.append((pid, status))

    def _reap(self) -> None:
        by_pid = {container.pid: container for container in self._containers.values() if not container.ended}
        for pid, status in self._collect():
            if container := by_pid.get(pid):
                container.ended = True
                self._report({"exited": container.id, "status": status})

    def _finish(self) -> None:
        """Kill what the main process of an ended container left behind; report when nothing is left."""
        closing = [container for container in self._containers.values() if container.ended]
        if not closing:
            return
        below = [process for process in descendants(os.getpid()) if process.alive]
        for container in closing:
            left = [process.pid for process in below if process.session == container.pid or has_mark(process.pid, container.mark)]
            for pid in left:
                kill(pid, signal.SIGKILL)
            if not left:
                del self._containers[container.id]
                self._report({"gone": container.id})

    def _serve(self) -> bool:
        """Carry out requests. False: the other side has closed the connection."""
        data = self._connection.recv(1 << 16)
        if not data:
            return False
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            match request["op"]:
                case "spawn":
                    self._spawn(request)
                case "signal":
                    self._signal(request["id"], request["signal"], group=request["group"])
                case "end":
                    self._signal(request["id"], signal.SIGKILL, group=True)
                case unknown:
                    raise ValueError(f"unknown request {unknown!r}")
        return True

    def _report(self, report: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(report).encode() + b"\n")

    def _signal(self, container_id: int, number: int, *, group: bool) -> None:
        container = self._containers.get(container_id)
        if container is None or container.ended:
            return
        if not group:
            kill(container.pid, number)
            return
        for process in descendants(os.getpid()):
            if process.alive and (process.session == container.pid or has_mark(process.pid, container.mark)):
                kill(process.pid, number)

    def _spawn(self, request: dict[str, Any]) -> None:
        reader, writer = os.pipe()  # closed by exec; before that it carries why exec failed
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _become(request, parent, writer)
        os.close(writer)
        failure = b""
        while piece := os.read(reader, 4096):
            failure += piece
        os.close(reader)
        if failure:
            os.waitpid(pid, 0)
            self._report({"failed": request["id"], **json.loads(failure)})
            return
        self._containers[request["id"]] = _Container(request["id"], pid, request["mark"])
        self._report({"started": request["id"], "pid": pid})


def _become(request: dict[str, Any], parent: int, failure: int) -> NoReturn:
    """Become the container's main process in the child, or report the error and exit."""
    try:
        os.setsid()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(137)  # the supervisor died before prctl
        lower_priority(request["nice"])
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) is not signal.SIG_DFL:  # an ignored signal would stay ignored in the program
                signal.signal(number, signal.SIG_DFL)
        nothing = os.open("/dev/null", os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], {**request["env"], MARK: request["mark"]})  # noqa: S606
    except OSError as error:
        why = error.errno or errno.EIO
        os.write(failure, json.dumps({"errno": why, "message": os.strerror(why)}).encode())
    finally:
        os._exit(128)


def main(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    SupervisorServer(socket.socket(fileno=descriptor)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
