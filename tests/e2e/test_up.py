"""`diloco up` as a person runs it: the command in a process of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from builders.event_files import scalars
from builders.exploration import ALL, XLA_FLAGS, full
from builders.jobs import JobBuilder, cpu_pool, template
from builders.local_jobs import a_quadratic_job, samples_drawn
from builders.nodes import a_fleet_node
from builders.up_runs import DILOCO, Up, all_train
from diloco.tape.segments import FOLDER, heads
from diloco_local.environment import LIBRARY_THREADS
from diloco_operator.api.losses import parse_losses
from safetensors.numpy import load_file

type Obj = dict[str, Any]

_MODEL = ["--width", "48", "--context", "32", "--corpus-bytes", "400000"]
PROGRAMS = Path(__file__).parents[1] / "programs"
OF_PODS = f"{LIBRARY_THREADS['XLA_FLAGS']} {XLA_FLAGS}"
"""The flags that every pod has here, and those of the tests."""
CPUS = [a_fleet_node("cpu-0", cpu=8, memory="16Gi", pods=110)]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    running: list[Up] = []

    def start(jobs: list[Obj], *options: str, fleet: list[Obj] | None = None) -> Up:
        running.append(Up(tmp_path, jobs, *options, fleet=fleet))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()


def at_step(step: int) -> Callable[[Obj], bool]:
    return lambda line: line["type"] == "status" and (line.get("progress") or {}).get("step", 0) >= step


@pytest.mark.xdist_group("many-learners")
@pytest.mark.timeout(1800)  # three processes import a framework: beside other work it takes several times its usual minute
def test_the_quickstart_trains_torch_and_jax_side_by_side_survives_a_kill_and_completes(up: Callable[..., Up], tmp_path: Path) -> None:
    jobs = list(yaml.safe_load_all((EXAMPLES / "quickstart.yaml").read_text()))
    fleet = list(yaml.safe_load_all((EXAMPLES / "fleet.yaml").read_text()))
    steps = 100
    # One unit in each framework, and merges of both alone: whichever starts later, both take part. Four start in tests/cluster, and below
    # units train on without the one that was killed.
    pools = jobs[0]["spec"]["pools"] = [pool for pool in jobs[0]["spec"]["pools"] if pool["name"] in ("v5p", "h100")]
    jobs[0]["spec"]["training"].update(steps=steps, quorum=2)
    jobs[0]["spec"]["learners"]["max"] = 2
    for node in fleet:  # so slow that the one which waits for the other trains little
        node["metadata"].setdefault("annotations", {})["local.diloco.dev/relative-speed"] = "0.15"
    for pool in pools:
        pool["learners"]["max"] = 1
        [container] = pool["template"]["spec"]["containers"]
        container["command"] += _MODEL
        container["env"] = [{"name": "XLA_FLAGS", "value": OF_PODS}]
    # In JAX, whose next process finds what the first has compiled.
    fault = "unit=v5p-0,step=40,signal=KILL"
    status, result = up(jobs, "--fault", fault, "--timeout", "1500s", fleet=fleet).end()
    assert status == 0, result
    assert [fired["fault"] for fired in result["faults"]["fired"]] == [fault]
    job = result["jobs"][0]
    conditions = {condition["type"]: condition["status"] for condition in job["conditions"]}
    assert conditions["Complete"] == "True"
    units = {unit["name"]: unit for unit in job["units"]}
    assert set(units) == {"v5p-0", "h100-0"}
    # Tokens count once every fragment has merged them: each unit was in 24 exchanges in a row at least, however slow its steps are.
    assert all(unit["weight"] > 0 and unit["tokens"] > 0 for unit in units.values()), f"every unit took part: {units}"
    assert sum(unit["tokens"] for unit in units.values()) == job["progress"]["tokens"] > 0
    assert units["v5p-0"]["restarts"] == 1
    assert units["v5p-0"]["recoverSeconds"] > 0
    goodput = job["goodput"]
    assert goodput["interruptions"] == 1
    assert goodput["unitSeconds"]["recovery"] >= 0.5 * units["v5p-0"]["recoverSeconds"]
    assert goodput["productiveShare"] == pytest.approx(goodput["unitSeconds"]["training"] / sum(goodput["unitSeconds"].values()), abs=0.001)
    (effect,) = result["faults"]["effects"]
    assert (effect["unit"], effect["units"]) == ("v5p-0", 2)
    assert effect["backSeconds"] == units["v5p-0"]["recoverSeconds"]
    assert effect["tokens"].startswith(f"tokens exact: {job['progress']['tokens']:,} are "), effect
    assert f"bytes-lm: v5p-0 killed at step {effect['step']}, back after {effect['backSeconds']:.1f} s; meanwhile" in result["message"]
    assert "v5p-0 killed" in Path(result["report"]).read_text(encoding="utf-8")
    # A uniform guess over 256 bytes costs ln 256 = 5.55 nats; anything that learned letter frequencies is below 4.
    assert job["progress"]["heldOutLoss"] < 4.0
    curve = parse_losses(job["progress"]["losses"])
    # The units in JAX train on while the first in torch starts, so the first merge knows more than a uniform guess.
    assert (curve[0].loss > curve[-1].loss + 0.5, curve[-1].loss < 4, curve[-1].step) == (True, True, steps)
    curves = scalars(tmp_path / "state" / "volumes" / "default" / "bytes-lm-syncer" / "tensorboard")
    assert [step for step, _ in curves["loss"]] == list(range(curves["loss"][0][0], steps + 1))
    [(step, held_out)] = curves["held_out_loss"]
    assert step == steps
    assert held_out == pytest.approx(job["progress"]["heldOutLoss"], rel=1e-5)

    command = [str(DILOCO), "export", "state", "-o", "model.safetensors"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert f"outer step {steps} of job bytes-lm" in said
    # These are needed here alone: who collects this file need not pay for torch.
    from diloco.torch import ModuleStore
    from diloco.trainers import byte_lm_torch, options, steps_torch

    chosen = options.parse("test", [*_MODEL, "--alone", "--steps", "1"])
    model = byte_lm_torch.initial_model(chosen.model, seed=1)
    ModuleStore(model, canonical=byte_lm_torch.canonical_names(chosen.model)).write(load_file(tmp_path / "model.safetensors"))
    loss = steps_torch.held_out_loss(model, chosen.read_corpus())
    assert loss == pytest.approx(job["progress"]["heldOutLoss"], abs=1e-3), "it is the model that the units evaluated"


def test_ctrl_c_drains_and_the_same_command_goes_on_with_nothing_trained_twice_in_the_accounts(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    def a_job(steps: int) -> Obj:
        environment: dict[str, object] = {"QUADRATIC_TRACE": str(tmp_path / "trace"), "QUADRATIC_STEP_MS": 20}
        return a_quadratic_job(steps=steps, units={"v5p": 2}, every_steps=10, environment=environment)

    first = up([a_job(1_000_000)])  # so many that Ctrl-C comes before the last one
    first.until(at_step(60))
    first.process.send_signal(signal.SIGINT)
    status, result = first.end()
    assert status == 130
    assert "To continue" in result["message"]
    reasons = {unit["reason"] for line in first.lines if line["type"] == "status" for unit in line["units"]}
    assert "PullingImages" not in reasons, "no image is pulled here"
    stopped = result["jobs"][0]["progress"]
    assert stopped["step"] >= 60
    steps = stopped["step"] + 60

    second = up([a_job(steps)])
    resumed = second.until(at_step(1))
    assert resumed["progress"]["step"] >= stopped["step"], "it does not start afresh"
    status, result = second.end()
    assert status == 0
    done, model = result["jobs"][0]["progress"], result["jobs"][0]["model"]
    assert done["step"] == steps
    folder = tmp_path / "state/volumes/default/quad-syncer" / model["path"]
    told = next(condition["message"] for condition in result["jobs"][0]["conditions"] if condition["type"] == "Complete")
    assert told.endswith(f". The model is in {folder} (safetensors), and stays there until you delete it")
    assert "The model of quad as one file: diloco export " in result["message"]
    assert folder.is_dir(), "the job went with its control plane, and the folder of its claim stays"
    assert (folder / "tensors.safetensors").is_file()
    assert [path.name for path in folder.parent.glob(f"*-t{steps}")] == [folder.name], "one snapshot of the last step"
    assert done["tokens"] == sum(unit["tokens"] for unit in result["jobs"][0]["units"])
    # Work handed back by the drain may be drawn again, but what was counted was drawn: no more tokens than distinct samples.
    assert done["tokens"] <= 16 * len(samples_drawn(tmp_path / "trace"))


def an_optimizer_job(program: str, trace: Path, remote: Path, ranks: int = 1) -> Obj:
    """One unit: of two, the second one may find that the first one trains already. It stores its states in `remote`. `ranks`: its
    processes."""
    environment: dict[str, object] = {"ADAMW_TRACE": str(trace), "OPTAX_TRACE": str(trace), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": OF_PODS}
    command = ["python", "-m", "diloco.launch", "--nproc-per-node", str(ranks), str(PROGRAMS / f"{program}_learner.py")]
    learner = template(command=command, env=environment, terminationGracePeriodSeconds=5)
    checkpoint = {"everySteps": 16, "keep": 2, "learners": "Always", "uri": f"file://{remote}"}
    return (
        JobBuilder("adamw")
        .with_learners(1, 1)
        .with_pools(cpu_pool(hosts=1, max=1, template=learner, processesPerHost=ranks))
        .with_training(steps=1_000_000, syncInterval=8, fragments=8, overlapSteps=2, checkpoint=checkpoint)
        .build()
    )


@pytest.mark.parametrize("program", [full("adamw"), "optax"])
def test_after_kill_9_of_everything_the_same_command_goes_on_with_what_the_unit_had_stored(
    program: str, up: Callable[..., Up], tmp_path: Path
) -> None:
    """Killed a drawn number of outer steps after training began: a snapshot, a state or neither may be under way. `make ci-full`: twice."""
    draw = random.Random(38)
    trace, volume, remote = tmp_path / "trace", tmp_path / "state/volumes/default/adamw-syncer", tmp_path / "remote"
    job = an_optimizer_job(program, trace, remote)
    steps_of_processes_before = 0
    running, t = up([job], fleet=CPUS), 0
    for _ in range(2 if ALL else 1):
        kill_at = t + 16 + draw.randrange(48)
        before = running.until(trains_from(kill_at, remote, stored_after=t))
        kill_all(running)
        stored = newest_state(remote)
        merged = max(head["t"] for head in heads(volume / FOLDER) if head["type"] == "merge")
        trace.unlink()

        running = up([job], fleet=CPUS)
        line = running.until(lambda line: all_train(1)(line) and "beganWith" in line["units"][0])
        t = line["progress"]["step"]
        assert t >= merged, "an outer step that had begun, and whose merge was not durable, is taken again"
        assert line["progress"]["tokens"] >= before["progress"]["tokens"], "what was committed is not trained again"
        assert f"the optimizer's state that it had stored after outer step {stored['t']} " in line["units"][0]["beganWith"]
        (begun,) = map(json.loads, trace.read_text().splitlines())
        # Step counts, the schedule and the generator are in the small rest, which is read after all parts are written.
        (step,) = set(begun["steps"])
        assert step - steps_of_processes_before > stored["meta"]["localStep"]
        assert begun["warm"] == min(1.0, (step + 1) / 20)
        if program == "adamw":
            assert begun["rate"] == pytest.approx(1e-3 * 0.999**step, rel=1e-9)
            assert begun["draw"] == draw_after(step)
        else:
            assert begun["key"] == key_after(step)
            assert begun["moments"] > 0
        steps_of_processes_before = step


@pytest.mark.full
def test_a_unit_that_was_stored_in_jax_and_goes_on_in_torch_begins_without_moments_and_says_why(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    trace, remote = tmp_path / "trace", tmp_path / "remote"
    running = up([an_optimizer_job("optax", trace, remote)], fleet=CPUS)
    before = running.until(trains_from(16, remote, stored_after=0))
    kill_all(running)
    stored = newest_state(remote)
    trace.unlink()

    resumed = up([an_optimizer_job("adamw", trace, remote)], fleet=CPUS)
    line = resumed.until(lambda line: all_train(1)(line) and "beganWith" in line["units"][0])
    assert line["progress"]["tokens"] >= before["progress"]["tokens"], "parameters and ledger are of no framework"
    said = line["units"][0]["beganWith"]
    assert said.startswith("the parameters of the syncer, and an optimizer without state: ")
    assert f"what the unit has stored at outer step {stored['t']} is the state of jax ScaleByAdamState" in said
    (begun,) = map(json.loads, trace.read_text().splitlines())
    assert begun["steps"] == []
    assert begun["warm"] == 1 / 20, "an optimizer without moments warms up again"


@pytest.mark.parametrize("program", [full("adamw"), "optax"])
def test_a_unit_goes_on_with_what_it_had_stored_in_another_number_of_processes(program: str, up: Callable[..., Up], tmp_path: Path) -> None:
    """Two ranks that share the model, one, and two; in `make ci-full` two again before."""
    trace, remote = tmp_path / "trace", tmp_path / "remote"
    running, t, counted = up([an_optimizer_job(program, trace, remote, ranks=2)], fleet=CPUS), 0, 0
    for ranks, before in (*([(2, 2)] if ALL else []), (1, 2), (2, 1)):
        running.until(trains_from(t + 16, remote, stored_after=t))
        kill_all(running)
        stored = newest_state(remote)
        moments = sum_of_second_moments(remote)
        trace.unlink()

        running = up([an_optimizer_job(program, trace, remote, ranks)], fleet=CPUS)
        line = running.until(lambda line: all_train(1)(line) and "beganWith" in line["units"][0])
        t = line["progress"]["step"]
        assert f"the optimizer's state that it had stored after outer step {stored['t']} " in line["units"][0]["beganWith"]
        begun = sorted(map(json.loads, trace.read_text().splitlines()), key=lambda one: one["rank"])
        assert [one["rank"] for one in begun] == list(range(ranks))
        (step,) = {step for one in begun for step in one["steps"]}  # of all ranks after the same local step
        assert step - counted > stored["meta"]["localStep"]
        for one in begun:
            assert one["warm"] == min(1.0, (step + 1) / 20)
            assert one["moments"] == pytest.approx(moments, rel=1e-5)
            # Each rank has its own generator back; of another number of ranks, that of the first one.
            rank = one["rank"] if ranks == before else 0
            if program == "adamw":
                assert one["rate"] == pytest.approx(1e-3 * 0.999**step, rel=1e-9)
                assert one["draw"] == draw_after(step, rank)
            else:
                assert one["key"] == key_after(step)
        counted = step


def whole_states(remote: Path) -> list[Obj]:
    """The manifests of what the one unit has stored below `remote`, in all jobs that went on from each other, with their `folder`."""
    found = []
    for path in remote.glob("*/learners/*/*/manifest.json"):
        # It may be half there, or the next one has taken its place meanwhile.
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found.append(json.loads(path.read_text()) | {"folder": path.parent})
    return found


def newest_state(remote: Path) -> Obj:
    return max(whole_states(remote), key=lambda manifest: int(manifest["t"]))


def sum_of_second_moments(remote: Path) -> float:
    state = newest_state(remote)
    total = 0.0
    for file, _, _, arrays in state["meta"]["blocks"]:
        values = np.fromfile(state["folder"] / file, "<f4")
        for _, name, _, _, size in arrays:
            elements = math.prod(size)
            total += float(values[:elements].sum()) if name in ("exp_avg_sq", "0.0.nu") else 0.0
            values = values[elements:]
    return total


def trains_from(step: int, remote: Path, stored_after: int) -> Callable[[Obj], bool]:
    """Whether the one unit trains, from this outer step on, and has stored its state after that one."""

    def newest() -> int:
        return max((int(manifest["t"]) for manifest in whole_states(remote)), default=-1)

    return lambda line: all_train(1)(line) and line["progress"]["step"] >= step and newest() > stored_after


def kill_all(running: Up) -> None:
    """Kill the command, and wait until nothing outlives it."""
    ours = processes_below(running.process.pid)
    assert len(ours) >= 3, "a supervisor, a syncer and a learner"
    running.process.kill()
    wait_until_gone(ours)


def key_after(steps: int) -> list[int]:
    """The data of the program's key after so many steps, each of which has split it."""
    import jax

    key = jax.random.key(1)
    for _ in range(steps):
        key, _ = jax.random.split(key)
    data: list[int] = jax.random.key_data(key).tolist()
    return data


def draw_after(steps: int, rank: int = 0) -> float:
    """What the generator of the program draws next after so many steps, each of which has drawn a batch."""
    import torch

    generator = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        torch.randn(2, 16, generator=generator)
    drawn: float = torch.rand(1, generator=generator).item()
    return drawn


def test_a_job_that_failed_ends_with_1_says_why_and_goes_on_with_the_same_command(up: Callable[..., Up]) -> None:
    # Steps that are long enough for the syncer to keep up on a busy machine.
    crash: dict[str, object] = {"QUADRATIC_CRASH_AT_STEP": 60, "QUADRATIC_STEP_MS": 100}
    status, result = up([a_quadratic_job(units={"v5p": 1}, limit=0, steps=90, environment=crash)]).end()
    assert status == 1
    failed = next(condition for condition in result["jobs"][0]["conditions"] if condition["type"] == "Failed")
    assert failed["status"] == "True"
    assert "v5p-0" in failed["message"]
    assert "Once the cause is fixed, use the same command to continue from the last snapshot: diloco up" in result["message"]

    again = up([a_quadratic_job(units={"v5p": 1}, limit=0, steps=90)])
    assert again.until(at_step(1))["progress"]["step"] >= 20  # a snapshot is written at step 20
    status, result = again.end()
    assert (status, result["jobs"][0]["progress"]["step"]) == (0, 90)


def test_up_waits_for_what_programs_write_once_the_job_is_done_and_ends_with_1_if_one_fails(up: Callable[..., Up], tmp_path: Path) -> None:
    """
    Three seconds after `close`: the syncer has written its last snapshot and ended long before. The quorum makes both units train: without
    it, one takes all twenty steps while the other still starts, and the other has nothing to write.
    """
    environment: dict[str, object] = {"QUADRATIC_SAVE_TO": tmp_path, "QUADRATIC_SAVE_SECONDS": 3, "QUADRATIC_SAVE_FAILS_UNIT": "v5p-1"}
    job = a_quadratic_job(steps=20, units={"v5p": 2}, min=2, training={"quorum": 2}, environment=environment)
    status, result = up([job]).end()
    assert (status, result["ending"]) == (1, "ProgramFailed"), result
    assert (tmp_path / "v5p-0.npy").exists()
    job = result["jobs"][0]
    assert {unit["name"]: (unit["state"], unit["reason"]) for unit in job["units"]} == {
        "v5p-0": ("Completed", ""),
        "v5p-1": ("Failed", "FailedAtEnd"),
    }
    assert "No space left on device" in job["units"][1]["message"]
    conditions = {each["type"]: (each["status"], each["reason"]) for each in job["conditions"]}
    assert (conditions["Complete"], conditions["Degraded"]) == (("True", "StepsReached"), ("True", "ProgramsFailed"))


def test_a_job_that_its_time_to_live_deletes_before_the_others_end_is_in_the_result(up: Callable[..., Up], tmp_path: Path) -> None:
    """The program of the other job ends three seconds after its job is complete: the deleted one is gone by then."""
    short = a_quadratic_job("short", steps=20, units={"h100": 1})
    short["spec"]["ttlSecondsAfterFinished"] = 0
    environment: dict[str, object] = {"QUADRATIC_SAVE_TO": tmp_path, "QUADRATIC_SAVE_SECONDS": 3}
    status, result = up([short, a_quadratic_job("long", steps=20, units={"v5p": 1}, environment=environment)]).end()
    assert (status, result["ending"]) == (0, "Complete"), result
    assert {job["name"]: job["progress"]["step"] for job in result["jobs"]} == {"short": 20, "long": 20}


def test_the_other_units_train_on_without_one_that_is_killed_and_a_fault_that_never_fired_is_said(up: Callable[..., Up]) -> None:
    # Merges of two at least: the kill at step 20 finds others that train. Steps of 50 ms: on a busy machine the kill comes 5 s late, the
    # unit is away for 10 s, and it must be back before the end.
    job = a_quadratic_job(steps=400, min=2, training={"quorum": 2}, environment={"QUADRATIC_STEP_MS": 50})
    kill, never = "unit=v5p-0,step=20,signal=KILL", "unit=v5p-0,step=5000,signal=KILL"
    status, result = up([job], "--fault", kill, "--fault", never).end()
    assert status == 0, result
    assert [fired["fault"] for fired in result["faults"]["fired"]] == [kill]
    (effect,) = result["faults"]["effects"]
    assert (effect["unit"], effect["units"]) == ("v5p-0", 3)
    assert effect["merges"].get("2", 0) > 0, f"the other two went on: {effect}"
    assert result["faults"]["notFired"] == [never]
    assert "never fired" in result["message"]


def processes_below(pid: int) -> list[int]:
    """Every descendant of a process."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(handle) as file:
            select.select([file], [], [])
