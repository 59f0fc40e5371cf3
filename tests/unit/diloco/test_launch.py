"""`diloco-launch`: the ranks of one host, started and ended together."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from diloco import contract
from diloco.contract import Exit, parse_last_words
from diloco.environment import ContractError
from diloco.launch import FAILURE_GRACE, Ended, cause_of, free_ports, main, rank_environments

pytestmark = pytest.mark.slow

OF_A_POD = {contract.ENV_UNIT: "h100-0", contract.ENV_HOSTS: "2", contract.ENV_HOST: "1", "MASTER_ADDR": "first", "MASTER_PORT": "20002"}


# --- what a rank gets -------------------------------------------------------------------------------------------------
def test_ranks_count_on_over_the_hosts_of_the_unit() -> None:
    ranks = rank_environments({**OF_A_POD, "JAX_COORDINATOR_ADDRESS": "first:20002"}, 4)
    assert [rank["RANK"] for rank in ranks] == ["4", "5", "6", "7"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert [rank["JAX_PROCESS_ID"] for rank in ranks] == ["4", "5", "6", "7"]
    shared = {name: ranks[2][name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NNODES", "NODE_RANK", "JAX_NUM_PROCESSES")}
    assert shared == {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "NNODES": "2", "NODE_RANK": "1", "JAX_NUM_PROCESSES": "8"}
    assert (ranks[0]["MASTER_ADDR"], ranks[0]["JAX_COORDINATOR_ADDRESS"]) == ("first", "first:20002")


def test_ranks_of_one_host_meet_on_a_free_port_of_it() -> None:
    [rank, _] = rank_environments({}, 2, (1001, 1002))
    assert (rank["MASTER_ADDR"], rank["MASTER_PORT"], rank["JAX_COORDINATOR_ADDRESS"]) == ("127.0.0.1", "1001", "127.0.0.1:1002")


def test_the_ports_of_one_host_are_none_that_an_outgoing_connection_gets() -> None:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    first, second = free_ports()
    assert first != second
    assert {first, second}.isdisjoint(range(lowest, highest + 1))


def test_each_process_sees_its_share_of_the_accelerators_in_jax() -> None:
    ranks = rank_environments({contract.ENV_ACCELERATORS_PER_HOST: "8"}, 4)
    assert [rank["JAX_LOCAL_DEVICE_IDS"] for rank in ranks] == ["0,1", "2,3", "4,5", "6,7"]
    assert "JAX_LOCAL_DEVICE_IDS" not in rank_environments({contract.ENV_ACCELERATORS_PER_HOST: "8"}, 1)[0]


def test_host_of_several_that_does_not_know_where_to_meet_says_so() -> None:
    with pytest.raises(ContractError, match=r"has 2 hosts .* MASTER_ADDR is not set"):
        rank_environments({contract.ENV_HOSTS: "2"}, 1)


# --- which end is the cause -------------------------------------------------------------------------------------------
def test_first_rank_that_failed_by_itself_is_the_cause() -> None:
    lost, crashed, killed = Ended(0, Exit.RANK_LOST), Ended(2, 1), Ended(1, -signal.SIGKILL, killed_here=True)
    assert cause_of([lost, crashed, Ended(3, 65), killed]) == crashed
    assert cause_of([lost, killed]) == lost
    assert cause_of([Ended(0, 0), Ended(1, 0)]) is None


def test_statuses_are_those_of_a_shell() -> None:
    assert (Ended(0, 3).status, Ended(0, -signal.SIGKILL).status, Ended(0, -signal.SIGTERM).status) == (3, 137, 143)
    assert Ended(0, -signal.SIGKILL, ("half a line",)).reason == "killed by SIGKILL"


# --- real processes ---------------------------------------------------------------------------------------------------
class Launched:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.message = folder / "termination-log"
        self.message.write_text("")
        self.process: subprocess.Popen[str] | None = None

    def start(self, program: str, processes: int, *options: str, **environment: str) -> subprocess.Popen[str]:
        (self.folder / "train.py").write_text(f"import os, signal, sys, time\nrank = int(os.environ['RANK'])\n{program}\n")
        env = {
            "PATH": os.environ["PATH"], contract.ENV_UNIT: "u-0", contract.ENV_TERMINATION_LOG: str(self.message),
            contract.ENV_PROCESSES_PER_HOST: str(processes), **environment,
        }  # fmt: skip
        command = [sys.executable, "-m", "diloco.launch", *options, str(self.folder / "train.py"), "--lr", "3"]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return self.process

    def run(self, program: str, processes: int, *options: str, **environment: str) -> tuple[int, str]:
        """Exit status and output."""
        process = self.start(program, processes, *options, **environment)
        output, _ = process.communicate()
        return process.returncode, output

    def lines(self, count: int) -> list[str]:
        """The next lines of its output."""
        assert self.process is not None
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip() for _ in range(count)]


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    found = Launched(tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()


def test_ranks_run_with_their_arguments_and_their_lines_say_whose_they_are(launched: Launched) -> None:
    status, output = launched.run("print(sys.argv[1:], os.environ['WORLD_SIZE'])", 1, "--nproc-per-node", "3")
    assert status == 0
    assert sorted(output.splitlines()) == [f"[{rank}] ['--lr', '3'] 3" for rank in range(3)]


def test_single_process_takes_the_launchers_place(launched: Launched) -> None:
    process = launched.start("print(os.getpid(), os.environ['WORLD_SIZE'])", 1)
    output, _ = process.communicate()
    assert (process.returncode, output) == (0, f"{process.pid} 1\n")


def test_first_failure_ends_all_and_is_the_pods_status_and_message(launched: Launched) -> None:
    program = "if rank == 1: raise ValueError('bad batch')\ntime.sleep(600)"
    status, output = launched.run(program, 3)
    assert status == 1
    assert "diloco-launch: rank 1 ended first, with exit status 1: ValueError: bad batch" in output
    words = parse_last_words(launched.message.read_text().strip())
    assert words is not None
    assert (words.status, words.rank, words.message) == (1, 1, "ValueError: bad batch")


def test_what_a_rank_said_itself_stays(launched: Launched) -> None:
    said = "from diloco.last_words import leave_last_words; leave_last_words(os.environ, 65, 'other shapes'); sys.exit(65)"
    status, _ = launched.run(f"if rank == 0: {said}\ntime.sleep(600)", 2)
    assert status == Exit.REFUSED_LAYOUT
    assert launched.message.read_text() == "diloco: exit 65, rank 0: other shapes\n"


def test_rank_that_noticed_a_loss_is_not_the_cause(launched: Launched) -> None:
    # Rank 0 waits until rank 1 is there: how long that takes must not count as the time that the launcher gives it to end.
    program = """
while rank == 0 and not os.path.exists({here!r}):
    time.sleep(0.01)
if rank == 0:
    sys.exit(71)
open({here!r}, "w").close()
time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    status, output = launched.run(program.format(here=str(launched.folder / "here")), 2)
    assert (status, "rank 1 ended first, with exit status 137: killed by SIGKILL" in output) == (137, True)


def test_sigterm_reaches_all_ranks_and_their_drain_is_waited_for(launched: Launched) -> None:
    program = """
def drain(*_):
    print("draining", flush=True)
    time.sleep(0 if rank == 0 else {wait})
    sys.exit(143)
signal.signal(signal.SIGTERM, drain)
print("ready", flush=True)
time.sleep(600)
""".replace("{wait}", str(FAILURE_GRACE + 1))
    process = launched.start(program, 2)
    assert sorted(launched.lines(2)) == ["[0] ready", "[1] ready"]
    process.send_signal(signal.SIGTERM)
    assert sorted(launched.lines(2)) == ["[0] draining", "[1] draining"]
    assert process.wait() == Exit.DRAINED


@pytest.mark.full
def test_ranks_meet_over_gloo_and_reduce(launched: Launched) -> None:
    program = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
print(int(total.item()), os.environ["OMP_NUM_THREADS"])
dist.destroy_process_group()
"""
    status, output = launched.run(program, 3)
    # 1 + 2 + 3
    assert (status, sorted(output.splitlines())) == (0, ["[0] 6 1", "[1] 6 1", "[2] 6 1"])


def test_ranks_meet_as_processes_of_jax(launched: Launched) -> None:
    program = """
import jax, diloco.jax
diloco.jax.initialize()
print(jax.process_index(), jax.process_count(), jax.device_count())
"""
    status, output = launched.run(program, 2, JAX_PLATFORMS="cpu")
    found = [line for line in output.splitlines() if line[4:].replace(" ", "").isdecimal()]
    assert (status, sorted(found)) == (0, ["[0] 0 2 2", "[1] 1 2 2"]), output


def test_learner_images_have_the_command() -> None:
    [found] = entry_points(group="console_scripts", name="diloco-launch")
    assert found.load() is main


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--nproc-per-node", "0"), "must be a number from 1 to 1024, not '0'"), (("--nproc-per-node", "eight"), "not 'eight'")],
)
def test_bad_options_are_refused(launched: Launched, options: tuple[str, ...], said: str) -> None:
    status, output = launched.run("", 1, *options)
    assert (status, said in output) == (2, True)


def test_wrong_environment_is_named_in_the_pods_message(launched: Launched) -> None:
    status, output = launched.run("", 1, **{contract.ENV_PROCESSES_PER_HOST: "many"})
    assert status == Exit.BAD_CONTRACT
    assert "DILOCO_PROCESSES_PER_HOST must be an integer of at least 1, not 'many'" in output
    assert launched.message.read_text().startswith("diloco: exit 64: DILOCO_PROCESSES_PER_HOST")


def test_ranks_may_lock_as_much_memory_as_the_container_allows(tmp_path: Path) -> None:
    """A shell with a soft limit of 64 KiB below a hard limit of 128 KiB: the program has at least the hard one."""
    program = tmp_path / "limits.py"
    program.write_text("import resource\nprint('locked', resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])\n")
    limits = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 131072)); os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-c", limits, sys.executable, "-m", "diloco.launch", "--nproc-per-node", "1", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    [locked] = [int(line.split()[-1]) for line in ran.stdout.splitlines() if "locked" in line]
    assert locked in (131072, resource.RLIM_INFINITY)  # without a limit where the test may raise the hard one
