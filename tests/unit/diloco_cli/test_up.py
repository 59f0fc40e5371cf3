"""`diloco up` as a process: what it refuses, how it ends, what it leaves."""

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from builders.catalogues import NPU, a_file
from builders.jobs import a_manifest, cpu_pool, gpu_pool, tpu_pool
from builders.local import WAIT_SECONDS
from builders.nodes import a_fleet_node, a_fleet_tpu_node
from click.testing import CliRunner
from diloco_cli.diloco.up import _objects, hints, up, without_values
from diloco_cli.diloco.up_run import Run, UpOptions
from diloco_cli.diloco.view import LiveView
from diloco_local.nodes import complete
from diloco_local.record.file import RecordReader
from diloco_local.record.lines import PhaseBegan, RunEnded
from diloco_local.state_dir import StateDir
from diloco_local.supervisor import processes
from diloco_operator.api.phases import Phase
from diloco_operator.kube.client import Obj
from rich.console import Console

MAIN = "from diloco_cli.diloco.main import main; main()"


def write(path: Path, *objs: Obj) -> str:
    path.write_text(yaml.safe_dump_all(objs))
    return str(path)


@pytest.fixture
def unplaced(tmp_path: Path) -> str:
    """A job that no cpu can serve: nothing of it ever runs but the syncer."""
    return write(tmp_path / "job.yaml", a_manifest("waits", min=1, pools=[tpu_pool(topology="2x2x1")], steps=10))


@pytest.fixture
def sleeping(tmp_path: Path) -> str:
    """A job whose learner only sleeps."""
    pool = cpu_pool(max=1)
    pool["template"]["spec"]["containers"][0]["command"] = ["sleep", "1000"]
    return write(tmp_path / "job.yaml", a_manifest("sleeps", min=1, max=1, pools=[pool], steps=10))


def refused(*arguments: str) -> str:
    outcome = CliRunner().invoke(up, arguments)
    assert outcome.exit_code == 2, outcome.output
    return outcome.output


def test_wrong_jobs_are_refused_with_every_error(tmp_path: Path) -> None:
    wrong = a_manifest("wrong", pools=[tpu_pool(topology="9x9x9")])
    wrong["spec"]["training"]["setps"] = 1
    text = refused(write(tmp_path / "job.yaml", wrong))
    assert "spec.pools[0].topology" in text
    assert "did you mean steps?" in text


def test_fleet_that_is_not_nodes_is_refused(unplaced: str, tmp_path: Path) -> None:
    assert "must be Node" in refused(unplaced, "--fleet", unplaced)
    slow = write(tmp_path / "fleet.yaml", a_fleet_tpu_node("a", speed="7"))
    assert "node a: metadata.annotations[local.diloco.dev/relative-speed] is '7'" in refused(unplaced, "--fleet", slow)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--fault", "unit=v5p-0,step=x", "whole number"),
        ("--fault", "unit=b200-0,step=1", "no job has a unit 'b200-0'"),
        ("--timeout", "10", "write numbers with a unit"),
        ("--priority", "high", "'high' is not one of 'low', 'normal'"),
        ("--env", "2=x", "'2' is no name of a variable"),
        ("--env", "NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE is not set in this shell; write NO_SUCH_VARIABLE=VALUE"),
        ("--env", "DILOCO_UNIT=v5p-0", "DILOCO_UNIT is set by the operator"),
    ],
)
def test_options_that_make_no_sense_are_refused(unplaced: str, option: str, value: str, message: str) -> None:
    assert message in refused(unplaced, option, value)


def test_a_job_of_another_manager_is_refused(tmp_path: Path) -> None:
    job = write(tmp_path / "job.yaml", a_manifest("theirs", spec={"managedBy": "kueue.x-k8s.io/multikueue"}))
    said = refused(job, "--state-dir", str(tmp_path / "state"))
    assert "theirs: spec.managedBy is 'kueue.x-k8s.io/multikueue', which does not run here; remove the field" in said
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
async def test_programs_get_the_variables_and_the_priority_that_the_user_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "taken over")
    monkeypatch.setenv("NOT_NAMED", "stays here")
    pool = cpu_pool(max=1)
    shown = tmp_path / "shown"
    script = f'echo "$FROM_HERE/$GIVEN/$NOT_NAMED" > {shown}; nice >> {shown}; exit 65'
    pool["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    job = write(tmp_path / "job.yaml", a_manifest("shows", min=1, max=1, pools=[pool], steps=10))
    process = await Up.start(
        job, "--state-dir", str(tmp_path / "state"), "--env", "FROM_HERE", "--env", "GIVEN=a=b", "--priority", "normal"
    )
    status, _ = await process.end()
    assert (status, shown.read_text()) == (1, f"taken over/a=b/\n{os.nice(0)}\n")


@pytest.mark.slow
async def test_neither_the_record_nor_the_report_has_values_of_variables(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tmp_path / "train.py").write_text("import os\nassert os.environ['TOKEN'] == 's3cret', 'no token'\nraise SystemExit(65)\n")
    words = ["submit", "train.py", "--local", "--pool", "cpu=1"]
    argv = [sys.executable, "-c", MAIN, *words, "--env", "TOKEN=s3cret", "--env=PASSWORD=s3cret=", "--state-dir", str(state)]
    process = await asyncio.create_subprocess_exec(*argv, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 1, said
    for file in (state / "record.jsonl", state / "report.html"):
        text = file.read_text()
        assert "s3cret" not in text
        assert "--env TOKEN --env=PASSWORD" in text
    assert b"no token" not in said


def test_what_follows_two_dashes_is_recorded_as_it_is() -> None:
    command = ["diloco", "submit", "train.py", "--env", "TOKEN=a=b", "--env=NAME", "--local", "--", "--env", "of=script"]
    assert without_values(command) == "diloco submit train.py --env TOKEN --env=NAME --local -- --env of=script"


@pytest.mark.slow
async def test_last_lines_of_a_failed_unit_are_of_this_run(tmp_path: Path) -> None:
    pool = cpu_pool(max=1)
    pool["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", 'echo "in run $RUN"; exit 65']
    job = write(tmp_path / "job.yaml", a_manifest("fails", min=1, max=1, pools=[pool], steps=10))
    for run in ("1", "2"):
        process = await Up.start(job, "--state-dir", str(tmp_path / "state"), "--env", f"RUN={run}")
        await process.end()
        logged = [line["message"] for line in process.lines if line["type"] == "log" and "in run" in line["message"]]
        assert logged == [f"cpu-0 | in run {run}"]


def test_second_up_on_a_state_directory_is_refused(unplaced: str, tmp_path: Path) -> None:
    with StateDir(tmp_path / "state"):
        assert "another command" in refused(unplaced, "--state-dir", str(tmp_path / "state"))


def test_hardware_that_the_fleet_lacks_is_said_before_the_wait() -> None:
    nodes = [complete(a_fleet_node("cpu", cpu=2))]
    wanted = a_manifest("j", pools=[tpu_pool("v5p", topology="2x2x1"), cpu_pool()])
    (hint,) = hints([wanted], nodes, None)
    assert hint == "j: pool v5p asks for tpu-v5p 2x2x1, and this machine (no --fleet was given) has none; its units stay unplaced"
    assert list(hints([wanted], [*nodes, complete(a_fleet_tpu_node("v5p"))], "fleet.yaml")) == []


class Up:
    """A running `diloco up -o json`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[Obj] = []

    @classmethod
    async def start(cls, *arguments: str) -> "Up":
        argv = [sys.executable, "-c", MAIN, "up", *arguments, "-o", "json"]
        return cls(await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, limit=1 << 24))

    async def until(self, holds: Callable[[Obj], bool]) -> Obj:
        """The first line for which it holds."""
        assert self.process.stdout is not None
        async with asyncio.timeout(2 * WAIT_SECONDS):
            while line := await self.process.stdout.readline():
                self.lines.append(json.loads(line))
                if holds(self.lines[-1]):
                    return self.lines[-1]
        raise AssertionError(f"it ended before; its last lines: {self.lines[-3:]}")

    def close_output(self) -> None:
        """Read no more, as a program does that ends."""
        pipe = self.process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
        pipe.close()

    async def end(self) -> tuple[int, Obj]:
        """Exit status and the final object."""
        final = await self.until(lambda line: line["type"] == "result")
        return await self.process.wait(), final


def joining(line: Obj) -> bool:
    return line["type"] == "unit" and "Joining" in line["message"]


@pytest.mark.slow
async def test_time_up_says_which_condition_was_not_reached(unplaced: str, tmp_path: Path) -> None:
    running = await Up.start(unplaced, "--state-dir", str(tmp_path / "state"), "--timeout", "3s", "--fault", "unit=v5p-0,step=1")
    status, final = await running.end()
    assert (status, final["ending"], final["exitStatus"]) == (1, "TimedOut", 1)
    assert "waits did not complete within 3 s: Placed=False InsufficientCapacity" in final["message"]
    assert "To start from the beginning, because there is no snapshot yet, for up to 3 s more: diloco up" in final["message"]
    assert "last snapshot" not in final["message"]
    assert final["faults"] == {"fired": [], "notFired": ["unit=v5p-0,step=1,signal=KILL"], "effects": []}


@pytest.mark.full
@pytest.mark.slow
async def test_accelerator_of_the_catalogue_file_is_trained_on(tmp_path: Path) -> None:
    catalogue, fleet = tmp_path / "catalogue.yaml", tmp_path / "fleet.yaml"
    write(catalogue, a_file(NPU))
    node = a_fleet_node("npu-0", labels={"acme.com/product": "NPU2"}, cpu=2)
    node["status"]["capacity"]["acme.com/npu"] = "8"
    write(fleet, node)
    pool = gpu_pool("npu", accelerator="acme-npu2", learners={"max": 1})
    pool["template"]["spec"]["containers"][0]["command"] = ["sleep", "1000"]
    job = write(tmp_path / "job.yaml", a_manifest("sleeps", min=1, max=1, pools=[pool], steps=10))
    assert "accelerator 'acme-npu2' is not in the catalogue" in refused(job, "--fleet", str(fleet))
    files = ("--catalogue", str(catalogue), "--fleet", str(fleet), "--state-dir", str(tmp_path / "state"))
    running = await Up.start(job, *files)
    line = await running.until(joining)
    assert "npu-0 Joining on npu-0" in line["message"]
    running.process.send_signal(signal.SIGINT)
    assert (await running.end())[0] == 130


@pytest.mark.slow
async def test_a_run_whose_output_has_no_reader_any_more_drains(sleeping: str, tmp_path: Path) -> None:
    """As after a Ctrl-C that ended `tee` first."""
    running = await Up.start(sleeping, "--state-dir", str(tmp_path / "state"))
    await running.until(joining)
    started = below(running.process.pid)
    running.close_output()
    running.process.send_signal(signal.SIGINT)  # what follows is shown to no reader
    async with asyncio.timeout(WAIT_SECONDS):
        assert await running.process.wait() == 130
    assert not {p.pid for p in processes() if p.alive} & started


@pytest.fixture
def stubborn(tmp_path: Path) -> str:
    """A job whose learner ignores the request to end; `tmp_path/deaf` is there as soon as it does."""
    pool = cpu_pool(max=1)
    script = f"trap '' TERM; touch {tmp_path / 'deaf'}; while true; do sleep 0.05; done"
    pool["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    return write(tmp_path / "job.yaml", a_manifest("stubborn", min=1, max=1, pools=[pool], steps=10))


async def there(file: Path) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not file.exists():  # noqa: ASYNC110, ASYNC240 - a file has no event
            await asyncio.sleep(0.01)


def draining(line: Obj) -> bool:
    return line["type"] == "note" and "draining" in line["message"]


def was_killed(running: Up) -> bool:
    return any(line["type"] == "note" and line["message"] == "killed" for line in running.lines)


@pytest.mark.full
@pytest.mark.slow
async def test_second_interrupt_does_not_wait_for_the_drain(stubborn: str, tmp_path: Path) -> None:
    running = await Up.start(stubborn, "--state-dir", str(tmp_path / "state"))
    await running.until(joining)
    await there(tmp_path / "deaf")
    running.process.send_signal(signal.SIGINT)
    assert "Ctrl-C again kills at once" in (await running.until(draining))["message"]
    running.process.send_signal(signal.SIGINT)
    status, final = await running.end()
    assert (status, final["ending"], was_killed(running)) == (130, "Interrupted", True)


@pytest.mark.full
@pytest.mark.slow
async def test_first_interrupt_of_a_drain_that_the_time_began_does_not_wait_for_it(stubborn: str, tmp_path: Path) -> None:
    running = await Up.start(stubborn, "--state-dir", str(tmp_path / "state"), "--timeout", "5s")
    note = await running.until(draining)
    assert note["message"].startswith("time is up: draining")
    assert note["message"].endswith("; Ctrl-C kills at once")
    running.process.send_signal(signal.SIGINT)
    status, final = await running.end()
    assert (status, final["ending"], was_killed(running)) == (1, "TimedOut", True)


def below(root: int) -> set[int]:
    found, grown = {root}, True
    while grown:
        more = {p.pid for p in processes() if p.parent in found} | found
        grown, found = more != found, more
    return found - {root}


class _Breaks(LiveView):
    def start(self) -> None:
        super().start()
        raise RuntimeError("cannot be shown")


@pytest.mark.slow
async def test_a_run_that_fails_gives_the_cursor_back(unplaced: str, tmp_path: Path) -> None:
    terminal = io.StringIO()
    view = _Breaks(Console(file=terminal, force_terminal=True, force_interactive=True))
    jobs, _ = _objects([unplaced])
    with pytest.raises(RuntimeError, match="cannot be shown"):
        await Run(UpOptions(jobs, [complete(a_fleet_node("cpu", cpu=2))], tmp_path / "state"), view)()
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


@pytest.mark.slow
async def test_an_interrupt_drains_says_how_to_go_on_and_leaves_a_record_and_a_report_unless_nobody_wants_one(
    sleeping: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    for options, written in (["--no-report"], False), ([], True):
        running = await Up.start(sleeping, "--state-dir", str(state), *options)
        await running.until(joining)
        running.process.send_signal(signal.SIGINT)
        status, final = await running.end()
        assert (status, final["ending"]) == (130, "Interrupted")
        assert "To start from the beginning, because there is no snapshot yet: diloco up" in final["message"]
        assert {c["type"]: c["status"] for c in final["jobs"][0]["conditions"]}["Suspended"] == "True"
        report = state / "report.html"
        assert (final["report"], report.exists()) == (str(report) if written else None, written)
    lines = list(RecordReader(state))
    assert [line.ending for line in lines if isinstance(line, RunEnded)] == ["Interrupted", "Interrupted"], "of both runs"
    phases = [line.phase for line in lines if isinstance(line, PhaseBegan)]
    assert {Phase.START, Phase.RECONFIGURATION} <= set(phases)
