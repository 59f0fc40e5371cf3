"""The parent of one container's processes: a small helper program, run by path so that it imports only a little of the standard library.

The supervisor starts the main process, passes signals on to it and reports its exit, over a socket that it shares with the command. When
the main process ends, or the socket closes because the command ended (even by SIGKILL), the supervisor kills every descendant and exits.
It is a sub-reaper: a grandchild that daemonises (double fork, setsid) becomes its child instead of init's, so it is found too. If the
supervisor itself is killed, the main process dies by PR_SET_PDEATHSIG, and `processes.Supervisor` kills the processes that carry the
container's mark.

Linux only: /proc, prctl.

Request:  one JSON line {"argv", "env", "cwd", "log", "mark", "nice"}; then a byte for each signal: its number, with `GROUP` for all
          processes
Reports:  JSON lines {"started": pid} or {"failed": message}; then {"exited": wait status}

As in a container, all other processes end with the main one. The supervisor exits with status 0 once none of them is alive.

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
from typing import Any, NamedTuple, NoReturn

MARK = "DILOCO_LOCAL_CONTAINER"
"""Environment variable that marks every process of a container, also after it moved to another session or group."""

GROUP = 0x80
"""Added to the number of a signal that is for every process of the container."""

PR_SET_CHILD_SUBREAPER = 36
"""An option of prctl(2), as is the next one."""
_PR_SET_PDEATHSIG = 1
_RECHECK_SECONDS = 0.005
_END_SECONDS = 10.0
"""How long to wait for killed processes to end. Only a process that is stuck inside the kernel takes longer; it dies when it leaves the
kernel."""
_FORKS_OUTRUN = 1000
"""Rounds in which processes that fork are stopped, before the stopped ones are killed."""
_LISTS = 200
_LOOKS_AT_EXEC = 20
_AUTOGROUP_SECONDS = 0.5
"""How long to retry a write to /proc/self/autogroup: the kernel takes one in 0.1 s."""


def prctl(option: int, argument: int) -> None:
    """Call prctl(2). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


class ProcessStat(NamedTuple):
    """The fields of /proc/<pid>/stat that the supervisor reads."""

    pid: int
    parent: int
    session: int
    state: str

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def processes() -> Iterator[ProcessStat]:
    """Yield every visible process that still lives when the search ends, and some that have ended meanwhile.

    A process may fork and end between being listed and being read, so /proc is listed again until it holds nothing new. Then each living
    process has been read, or its parent has: a parent that lived after the last list was begun. Within a list a parent comes before its
    children, so a child whose parent is already gone shows the sub-reaper as its parent. The search ends after `_LISTS` lists even if
    processes fork faster than they are listed; one of those is then nearly always read alive.
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
    """All processes below `root`, living or not."""
    children: dict[int, list[ProcessStat]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    below_root: list[ProcessStat] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        below_root += below
        todo += [process.pid for process in below]
    return below_root


def lower_priority(niceness: int) -> None:
    """Add to the niceness of this process, a session leader, so that processes outside containers go first. 0 changes nothing."""
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
    """Whether the process was started with MARK set to something that begins with `mark`."""
    for _ in range(_LOOKS_AT_EXEC):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                environ = file.read()
        except OSError:
            return False
        # In the middle of execve a process has no environment yet, so look again. A kernel thread, or a process that ends, never gets one;
        # they have no program either.
        if environ or not os.path.exists(f"/proc/{pid}/exe"):  # noqa: PTH110
            break
        time.sleep(0.001)
    return any(item.startswith(f"{MARK}={mark}".encode()) for item in environ.split(b"\0"))


def kill(pid: int, number: int) -> None:
    """Send a signal. It is no error if the process has gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill_until_none(living: Callable[[], list[int]]) -> bool:
    """Kill the processes that `living` returns until it returns none, however fast they fork. False if one still lives after
    `_END_SECONDS`."""
    deadline = time.monotonic() + _END_SECONDS
    while targets := living():
        for _ in range(_FORKS_OUTRUN):
            for pid in targets:
                kill(pid, signal.SIGSTOP)  # a stopped process does not fork while the others die
            fresh = [pid for pid in living() if pid not in targets]
            if not fresh:
                break
            targets += fresh
        for pid in targets:
            kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_RECHECK_SECONDS)
    return True


def kill_marked(mark: str) -> bool:
    """Kill every process of this machine that carries the mark. The owner of a supervisor that died calls this."""
    me = os.getpid()
    return kill_until_none(lambda: [p.pid for p in processes() if p.alive and p.pid != me and has_mark(p.pid, mark)])


def _collect() -> dict[int, int]:
    """Reap every child that has ended, adopted ones too: pid -> wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _living() -> list[int]:
    """Every process of the container that is alive."""
    return [process.pid for process in descendants(os.getpid()) if process.alive]


def _living_after_reaping() -> list[int]:
    """Like `_living`, after reaping: a dead parent that is not reaped keeps its children from being adopted, and so hides them."""
    _collect()
    return _living()


def supervise(connection: socket.socket) -> bool:
    """Start the program that the request names, and serve until it ends or the other side closes the connection. Then kill everything.
    False if a process outlived that."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: stop.append(received))
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    poll.register(wake, select.POLLIN)
    request, signals = _request(connection)
    try:
        main = None if request is None else _start(connection, request)
        while main is not None and not stop:
            for asked in signals:
                _signal(main, asked)
            signals = b""
            ready = {fd for fd, _ in poll.poll()}
            if wake in ready:
                os.read(wake, 4096)
            if (status := _collect().get(main)) is not None:
                _report(connection, {"exited": status})
                break
            if connection.fileno() in ready and not (signals := connection.recv(4096)):
                break
    except (BrokenPipeError, ConnectionResetError):
        pass  # the command has ended: the same as a closed connection
    except BaseException:
        kill_until_none(_living_after_reaping)
        raise
    return kill_until_none(_living_after_reaping)


def _request(connection: socket.socket) -> tuple[dict[str, Any] | None, bytes]:
    """The request, and the bytes that came after it. None if the other side has gone."""
    data = b""
    while b"\n" not in data:
        piece = connection.recv(1 << 16)
        if not piece:
            return None, b""
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def _report(connection: socket.socket, report: dict[str, Any]) -> None:
    connection.sendall(json.dumps(report).encode() + b"\n")


def _signal(main: int, number: int) -> None:
    if number & GROUP:
        for pid in _living():
            kill(pid, number & ~GROUP)
    else:
        kill(main, number)


def _start(connection: socket.socket, request: dict[str, Any]) -> int | None:
    """Start the main process, report it and return its pid. None if it could not be started."""
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
        _report(connection, {"failed": failure.decode()})
        return None
    _report(connection, {"started": pid})
    return pid


def _become(request: dict[str, Any], parent: int, failure: int) -> NoReturn:
    """In the forked child: become the container's main process, or write the error to `failure` and exit."""
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
        null = os.open("/dev/null", os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], {**request["env"], MARK: request["mark"]})  # noqa: S606
    except OSError as error:
        os.write(failure, os.strerror(error.errno or errno.EIO).encode())
    finally:
        os._exit(128)


def main(descriptor: int) -> int:
    fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return 0 if supervise(socket.socket(fileno=descriptor)) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
