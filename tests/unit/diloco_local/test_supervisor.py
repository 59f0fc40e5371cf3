"""Nothing outlives the command: not after kill -9 of the command, not after kill -9 of the supervisor, not by daemonising."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import diloco_local.supervisor
import pytest
from builders.local import WAIT_SECONDS
from diloco_local.processes import Exited, Priority, Process, StartFailed, Supervisor
from diloco_local.supervisor import has_mark, processes

ENV = {"PATH": os.environ["PATH"]}
GROUPED = Path("/proc/self/autogroup").exists()
"""The kernel was built so that it can share the processor out by session."""

DAEMONISE = """
import os, signal, sys
if os.fork():
    signal.pause()
os.setsid()
if os.fork():
    os._exit(0)
open(sys.argv[1], "w").write(str(os.getpid()))
os.rename(sys.argv[1], sys.argv[2])
signal.pause()
"""
"""Double fork and setsid: the grandchild has another parent, group and session than the program."""

COMMAND = """
import asyncio, os, sys
from pathlib import Path
from diloco_local.processes import Supervisor

async def main(folder):
    async with Supervisor() as supervisor:
        env = {"PATH": os.environ["PATH"]}
        script = (folder / "daemonise.py").read_text()
        argv = [sys.executable, "-c", script, str(folder / "pid.new"), str(folder / "daemon.pid")]
        process = await supervisor.spawn(argv, env=env, cwd=folder, log=folder / "log")
        print(os.getpid(), process.supervisor, process.pid, flush=True)
        await process.wait()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    async with Supervisor() as supervisor:
        yield supervisor


async def appears(path: Path) -> str:
    """The content of a file as soon as it is there. A file of another process has no event, so poll."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (text := text_of(path)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return text


def stand_still_until(path: Path) -> str:
    """The content of a file as soon as it is there; meanwhile the event loop does nothing, so that what comes to it waits."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (text := text_of(path)) is None:
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.005)
    return text


def text_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


async def gone(*pids: int) -> None:
    """Returns when none of the processes lives."""
    async with asyncio.timeout(WAIT_SECONDS):
        while {process.pid for process in processes() if process.alive} & set(pids):  # noqa: ASYNC110 - the end of a foreign process has no event
            await asyncio.sleep(0.005)


async def daemonising(supervisor: Supervisor, folder: Path) -> tuple[Process, int]:
    argv = [sys.executable, "-c", DAEMONISE, str(folder / "pid.new"), str(folder / "daemon.pid")]
    process = await supervisor.spawn(argv, env=ENV, cwd=folder, log=folder / "log")
    return process, int(await appears(folder / "daemon.pid"))


async def sh(supervisor: Supervisor, folder: Path, script: str) -> Process:
    return await supervisor.spawn(["sh", "-c", script], env=ENV, cwd=folder, log=folder / "log")


@pytest.mark.slow
async def test_exit_status_and_output_are_those_of_the_program(supervisor: Supervisor, tmp_path: Path) -> None:
    process = await sh(supervisor, tmp_path, "echo out; echo err >&2; exit 7")
    assert await process.wait() == Exited(7)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


@pytest.mark.slow
async def test_death_by_signal_is_128_plus_its_number(supervisor: Supervisor, tmp_path: Path) -> None:
    process = await sh(supervisor, tmp_path, "kill -KILL $$")
    assert await process.wait() == Exited(137, 9)


@pytest.mark.slow
async def test_environment_is_exactly_what_was_given(supervisor: Supervisor, tmp_path: Path) -> None:
    process = await supervisor.spawn(["/usr/bin/env"], env={"ONLY": "this"}, cwd=tmp_path, log=tmp_path / "log")
    await process.wait()
    assert {line.partition("=")[0] for line in (tmp_path / "log").read_text().splitlines()} == {"ONLY", "DILOCO_LOCAL_CONTAINER"}


@pytest.mark.slow
async def test_signals_that_python_ignores_are_back_at_their_defaults_in_the_program(supervisor: Supervisor, tmp_path: Path) -> None:
    process = await sh(supervisor, tmp_path, "grep SigIgn /proc/self/status")
    await process.wait()
    # Only what Python itself ignores: a test run may have been started with other signals ignored, which are passed on as they are.
    by_python = sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ))
    assert int((tmp_path / "log").read_text().split()[1], 16) & by_python == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "cwd", "why"),
    [(["no-such-program"], ".", "No such file"), (["/etc/passwd"], ".", "Permission denied"), (["true"], "absent", "No such file")],
)
async def test_a_program_that_cannot_be_started_says_why(
    supervisor: Supervisor, tmp_path: Path, argv: list[str], cwd: str, why: str
) -> None:
    with pytest.raises(StartFailed, match=why):
        await supervisor.spawn(argv, env=ENV, cwd=tmp_path / cwd, log=tmp_path / "log")


@pytest.mark.slow
async def test_a_group_signal_reaches_children_too(supervisor: Supervisor, tmp_path: Path) -> None:
    process, daemon = await daemonising(supervisor, tmp_path)
    process.signal(signal.SIGKILL, group=True)
    assert await process.wait() == Exited(137, 9)
    await gone(daemon)


@pytest.mark.slow
async def test_the_end_of_the_main_process_is_the_end_of_what_it_left_behind(supervisor: Supervisor, tmp_path: Path) -> None:
    process, daemon = await daemonising(supervisor, tmp_path)
    process.signal(signal.SIGTERM)
    assert await process.wait() == Exited(143, 15)
    await process.wait_gone()
    await gone(daemon)


@pytest.mark.slow
async def test_a_stopped_process_can_still_be_ended(supervisor: Supervisor, tmp_path: Path) -> None:
    process = await sh(supervisor, tmp_path, "while true; do sleep 100; done")
    process.signal(signal.SIGSTOP, group=True)
    process.end()
    assert await process.wait() == Exited(137, 9)


@pytest.mark.slow
async def test_one_container_ends_and_its_neighbour_lives(supervisor: Supervisor, tmp_path: Path) -> None:
    first, second = [await sh(supervisor, tmp_path, "sleep 100") for _ in range(2)]
    first.end()
    await first.wait_gone()
    assert second.running


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(5))
async def test_a_start_that_is_cancelled_while_its_answer_comes_leaves_nothing_behind(
    supervisor: Supervisor, tmp_path: Path, turns: int
) -> None:
    """The answer is there when the start is cancelled; how far the event loop got with it differs by turn."""
    starting = asyncio.create_task(sh(supervisor, tmp_path, "echo $$ > pid.new; mv pid.new pid; sleep 100"))
    while not (tmp_path / "log").exists():  # noqa: ASYNC110 - until the request was sent
        await asyncio.sleep(0)
    pid = int(stand_still_until(tmp_path / "pid"))
    for _ in range(turns):
        await asyncio.sleep(0)
    cancelled = starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled() == cancelled
    if not cancelled:
        starting.result().end()
    await gone(pid)
    assert await (await sh(supervisor, tmp_path, "exit 3")).wait() == Exited(3)


async def test_a_start_that_is_cancelled_before_it_fails_does_no_harm(supervisor: Supervisor, tmp_path: Path) -> None:
    starting = asyncio.create_task(supervisor.spawn(["no-such-program"], env=ENV, cwd=tmp_path, log=tmp_path / "log"))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    assert await (await sh(supervisor, tmp_path, "exit 3")).wait() == Exited(3)


@pytest.mark.slow
async def test_closing_kills_everything(tmp_path: Path) -> None:
    async with Supervisor() as supervisor:
        process, daemon = await daemonising(supervisor, tmp_path)
    await gone(process.supervisor, process.pid, daemon)
    assert await process.wait() == Exited(137, 9)


@pytest.mark.slow
async def test_killed_supervisor_takes_its_container_along_and_no_other(supervisor: Supervisor, tmp_path: Path) -> None:
    process, daemon = await daemonising(supervisor, tmp_path)
    neighbour = await sh(supervisor, tmp_path, "sleep 100")
    os.kill(process.supervisor, signal.SIGKILL)
    assert await process.wait() == Exited(137, 9)
    await gone(process.pid, daemon)
    assert neighbour.running
    again = await sh(supervisor, tmp_path, "exit 3")
    assert await again.wait() == Exited(3)


UNKILLABLE = """
import runpy, socket, sys
supervise = runpy.run_path({path!r})["supervise"]
supervise.__globals__["kill_until_none"] = lambda living: False
sys.exit(not supervise(socket.socket(fileno=int(sys.argv[1]))))
"""
"""A supervisor whose container has a process that no kill ends."""


@pytest.mark.slow
async def test_a_process_that_outlives_its_kills_is_killed_again_and_named(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    helper = tmp_path / "supervisor.py"
    helper.write_text(UNKILLABLE.format(path=diloco_local.supervisor.__file__))
    killed: list[str] = []
    monkeypatch.setattr(diloco_local.supervisor, "__file__", str(helper))
    monkeypatch.setattr(diloco_local.supervisor, "kill_marked", killed.append)
    process = await sh(supervisor, tmp_path, "exit 3")
    await process.wait_gone()
    assert killed == [process.mark]
    assert process.mark in caplog.text


async def command(folder: Path) -> tuple[asyncio.subprocess.Process, int, int, int]:
    """A command of its own process with a supervisor and a container that daemonised; gives the pids of all four."""
    (folder / "daemonise.py").write_text(DAEMONISE)
    started = await asyncio.create_subprocess_exec(sys.executable, "-c", COMMAND, str(folder), stdout=asyncio.subprocess.PIPE)
    assert started.stdout is not None
    _, helper, main = map(int, (await started.stdout.readline()).split())
    return started, helper, main, int(await appears(folder / "daemon.pid"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
async def test_nothing_outlives_the_command_however_it_dies(tmp_path: Path, number: signal.Signals) -> None:
    started, helper, main, daemon = await command(tmp_path)
    started.send_signal(number)
    await started.wait()
    await gone(helper, main, daemon)


@pytest.mark.slow
async def test_nothing_outlives_a_command_that_dies_together_with_its_stopped_processes(tmp_path: Path) -> None:
    started, helper, main, daemon = await command(tmp_path)
    for pid in (main, daemon):
        os.kill(pid, signal.SIGSTOP)
    started.kill()
    await started.wait()
    await gone(helper, main, daemon)


RELAY = (
    "import os, pathlib, time\n"
    "while True:\n"
    "    if os.fork(): os._exit(0)\n"
    "    os.setsid(); pathlib.Path('alive').touch(); time.sleep(0.001)\n"
)
"""Each child forks the next and dies, so that no list of processes is ever current."""


async def relay(supervisor: Supervisor, folder: Path) -> Process:
    argv = ["sh", "-c", f'{sys.executable} -c "$SCRIPT" & exec sleep 100']
    process = await supervisor.spawn(argv, env={**ENV, "SCRIPT": RELAY}, cwd=folder, log=folder / "log")
    await appears(folder / "alive")
    return process


def living(process: Process) -> list[int]:
    return [found.pid for found in processes() if found.alive and has_mark(found.pid, process.mark)]


@pytest.mark.slow
async def test_a_search_finds_processes_that_keep_forking(supervisor: Supervisor, tmp_path: Path) -> None:
    process = await relay(supervisor, tmp_path)
    for _ in range(20):
        assert [pid for pid in living(process) if pid != process.pid]


@pytest.mark.slow
async def test_processes_that_keep_forking_are_outrun(tmp_path: Path) -> None:
    async with Supervisor() as supervisor:
        process = await relay(supervisor, tmp_path)
    assert not living(process)


@pytest.mark.slow
async def test_the_supervisor_is_small(supervisor: Supervisor, tmp_path: Path) -> None:
    """It runs beside every container, so it must stay below 16 MB; a learner takes many times that."""
    process = await sh(supervisor, tmp_path, "sleep 100")
    status = text_of(Path(f"/proc/{process.supervisor}/status"))
    assert status is not None
    assert int(status.split("VmRSS:")[1].split()[0]) < 16 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(("priority", "more"), [(Priority.LOW, 10), (Priority.NORMAL, 0)])
async def test_containers_have_the_priority_that_was_chosen(tmp_path: Path, priority: Priority, more: int) -> None:
    """By default one below that of the control plane."""
    async with Supervisor(priority) as supervisor:
        script = "nice > {0}; cat /proc/self/autogroup >> {0} || true"
        for process in [await sh(supervisor, tmp_path, script.format(name)) for name in ("a", "b", "c")]:
            await process.wait()
    for name in ("a", "b", "c"):
        niceness, *group = (tmp_path / name).read_text().splitlines()
        assert int(niceness) == min(19, os.nice(0) + more)
        assert [line.split()[-1] for line in group] == ([str(more)] if GROUPED else [])
