"""Pods as real processes, and what their status says of it."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from builders.local import WAIT_SECONDS, Holds, LocalNodes, condition, has_phase, is_gone, is_gone_after, is_true, local_nodes
from builders.nodes import a_fleet_node
from builders.pods import a_pod
from diloco.contract import ENV_ACCELERATORS_PER_HOST, ENV_PROCESSES_PER_HOST
from diloco_local.supervisor import processes
from diloco_operator.api.names import CONFIG_MAPS, PODS, SECRETS, VOLUME_CLAIMS
from diloco_operator.kube.client import Obj


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalNodes]:
    async with local_nodes(tmp_path) as nodes:
        yield nodes


def state(pod: Obj, name: str = "main") -> Obj:
    found: Obj = next(s for s in pod["status"]["containerStatuses"] if s["name"] == name)
    return found


def ended(pod: Obj, name: str = "main") -> Obj:
    terminated: Obj = state(pod, name)["state"]["terminated"]
    return terminated


def sh(script: str, name: str = "pod", **spec: Any) -> Obj:
    """A pod that runs a shell script; `$$` of the shell is written as Kubernetes wants it."""
    return a_pod(name, "sh", "-c", script.replace("$$", "$$$$"), **spec)


def waits_for(reason: str) -> Holds:
    """The first container waits for this reason."""

    def holds(pod: Obj) -> bool:
        statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
        return bool(statuses[0]["state"].get("waiting", {}).get("reason") == reason)

    return holds


async def nothing_runs(text: str) -> None:
    """Returns when no process has `text` in its command line."""
    async with asyncio.timeout(WAIT_SECONDS):
        while any(text in command_line(p.pid) for p in processes() if p.alive):  # noqa: ASYNC110 - the end of a foreign process has no event
            await asyncio.sleep(0.005)


async def logged(local: LocalNodes, text: str) -> None:
    """Returns when the pod's log is `text`. A pod is Ready as soon as its process has started, before a shell has set a trap."""
    async with asyncio.timeout(WAIT_SECONDS):
        while local.log("pod") != text:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.005)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.slow
async def test_pod_that_ends_well_succeeds(local: LocalNodes) -> None:
    pod = await local.run(sh("echo hello"))
    assert pod["status"]["phase"] == "Succeeded"
    terminated = ended(pod)
    assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")
    assert datetime.fromisoformat(terminated["startedAt"]) <= datetime.fromisoformat(terminated["finishedAt"])
    assert condition(pod, "Ready")["reason"] == "PodCompleted"
    assert local.log("pod") == "hello\n"


@pytest.mark.parametrize(("script", "code", "number"), [("exit 66", 66, None), ("kill -KILL $$", 137, 9), ("kill -TERM $$", 143, 15)])
async def test_pod_that_ends_badly_fails_with_its_exit_status(local: LocalNodes, script: str, code: int, number: int | None) -> None:
    pod = await local.run(sh(script))
    assert pod["status"]["phase"] == "Failed"
    assert (ended(pod)["exitCode"], ended(pod)["reason"], ended(pod).get("signal")) == (code, "Error", number)


@pytest.mark.slow
async def test_program_that_does_not_exist_is_a_start_error(local: LocalNodes) -> None:
    pod = await local.run(a_pod("pod", "no-such-program"))
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (128, "StartError")
    assert "no-such-program" in ended(pod)["message"]


@pytest.mark.slow
async def test_pod_whose_log_cannot_be_written_waits_until_it_can(local: LocalNodes, tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "default"
    logs.mkdir(parents=True)
    (logs / "pod").touch()  # where the folder of the pod's logs belongs
    await local.create(PODS, sh("echo hello"))
    waiting = await local.pod("pod", waits_for("CreateContainerConfigError"))
    assert str(logs / "pod") in state(waiting)["state"]["waiting"]["message"]
    (logs / "pod").unlink()
    await local.pod("pod", has_phase("Succeeded"))
    assert local.log("pod") == "hello\n"


async def test_newest_log_is_of_this_kubelet(local: LocalNodes, tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "default" / "pod"
    logs.mkdir(parents=True)
    for restarts in (0, 1):  # of an earlier command; its pod was restarted once
        (logs / f"main-{restarts}.log").write_text("before\n")
    assert local.kubelet.newest_log("default", "pod") is None
    await local.run(sh("exit 3"))
    assert local.kubelet.newest_log("default", "pod") == (logs / "main-0.log", len("before\n"))


async def test_program_whose_log_cannot_be_opened_is_a_start_error(local: LocalNodes, tmp_path: Path) -> None:
    (tmp_path / "logs" / "default" / "pod" / "main-0.log").mkdir(parents=True)
    assert ended(await local.run(sh("echo hello")))["reason"] == "StartError"


async def test_termination_message_that_is_a_directory_is_none(local: LocalNodes) -> None:
    pod = await local.run(sh("rm /dev/termination-log; mkdir /dev/termination-log; exit 3"))
    assert (ended(pod)["exitCode"], "message" in ended(pod)) == (3, False)


@pytest.mark.slow
async def test_running_pod_is_ready_and_has_an_address_of_its_own(local: LocalNodes) -> None:
    for name in ("one", "two"):
        await local.create(PODS, sh("exec sleep 100", name))
    one, two = [await local.pod(name, is_true("Ready")) for name in ("one", "two")]
    assert one["status"]["phase"] == "Running"
    assert state(one)["started"] is True
    assert {condition(one, kind)["status"] for kind in ("PodScheduled", "Initialized", "ContainersReady")} == {"True"}
    addresses = {one["status"]["podIP"], two["status"]["podIP"], one["status"]["hostIP"]}
    assert len(addresses) == 3
    assert all(address.startswith("127.") and not address.startswith("127.0.") for address in addresses)


@pytest.mark.slow
async def test_two_pods_listen_on_the_same_port(local: LocalNodes) -> None:
    script = (
        "import os, socket, time\n"
        "listening = socket.create_server((os.environ['POD_IP'], 7077))\n"
        "print('listening', flush=True)\n"
        "listening.accept()"
    )
    env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    for name in ("one", "two"):
        await local.create(PODS, a_pod(name, "python", "-c", script, container={"env": env}))
    for name in ("one", "two"):
        pod = await local.pod(name, is_true("Ready"))
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection(pod["status"]["podIP"], 7077)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)  # it has not got so far
                    continue
                writer.close()
                break
        assert (await local.pod(name, has_phase("Succeeded", "Failed")))["status"]["phase"] == "Succeeded"


@pytest.mark.slow
async def test_environment_config_and_volumes_arrive(local: LocalNodes) -> None:
    meta = {"namespace": "default"}
    await local.create(CONFIG_MAPS, {"metadata": {"name": "job", **meta}, "data": {"job.json": "{}", "level": "high"}})
    await local.create(SECRETS, {"metadata": {"name": "identity", **meta}, "data": {"token": "czNjcjN0"}})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await local.create(VOLUME_CLAIMS, {"metadata": {"name": "state", **meta}, "spec": claim})
    env = [
        {"name": "PLAIN", "value": "a"},
        {"name": "EXPANDED", "value": "$(PLAIN)/$$(PLAIN)/$(UNKNOWN)"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "job", "key": "level"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "identity", "key": "token"}}},
        {"name": "FILE", "value": "/etc/job/job.json"},
        {"name": "OMP_NUM_THREADS", "value": "3"},
    ]
    script = (
        'echo "$PLAIN|$EXPANDED|$NODE|$TEAM|$LEVEL|$TOKEN|$OMP_NUM_THREADS|$OPENBLAS_NUM_THREADS|$1"\n'
        'cat "$FILE" /etc/secret/token; echo done > /var/state/result; touch /scratch/here; printf final > /dev/termination-log'
    )
    mounts = {"config": "/etc/job", "secret": "/etc/secret", "state": "/var/state", "scratch": "/scratch"}
    volumes = [
        {"name": "config", "configMap": {"name": "job"}},
        {"name": "secret", "secret": {"secretName": "identity"}},
        {"name": "state", "persistentVolumeClaim": {"claimName": "state"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    container = {
        "env": env,
        "args": ["sh", "$(PLAIN)"],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
    }
    pod = await local.run(sh(script, container=container, volumes=volumes, metadata={"labels": {"team": "blue"}}))
    assert local.log("pod") == "a|a/$(PLAIN)/$(UNKNOWN)|node|blue|high|s3cr3t|3|1|a\n{}s3cr3t"
    assert ended(pod)["message"] == "final"
    assert (local.context.state_dir / "volumes/default/state/result").read_text() == "done\n"


@pytest.mark.slow
async def test_termination_message_is_cut_at_4096_bytes(local: LocalNodes) -> None:
    pod = await local.run(sh("head -c 5000 /dev/zero | tr '\\0' x > /dev/termination-log"))
    assert ended(pod)["message"] == "x" * 4096


@pytest.mark.slow
async def test_fallback_message_is_the_end_of_the_log(local: LocalNodes) -> None:
    pod = await local.run(sh("echo why; exit 1", container={"terminationMessagePolicy": "FallbackToLogsOnError"}))
    assert ended(pod)["message"] == "why"
    seen: list[Obj] = []
    await local.client.delete(PODS, "default", "pod")
    await local.pod("pod", is_gone_after(seen))
    pod = await local.run(sh("exit 1", container={"terminationMessagePolicy": "FallbackToLogsOnError"}))
    assert ended(pod).get("message", "") == "", "what the pod before of this name wrote is not its log"


@pytest.mark.slow
async def test_pod_waits_for_a_config_map_and_then_starts(tmp_path: Path) -> None:
    retries: list[float] = []

    async def sleep(seconds: float) -> None:
        retries.append(seconds)
        if len(retries) == 2:
            await nodes.create(CONFIG_MAPS, {"metadata": {"name": "late", "namespace": "default"}, "data": {"key": "value"}})

    async with local_nodes(tmp_path, sleep=sleep) as nodes:
        env = [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "key"}}}]
        await nodes.create(PODS, sh("echo $KEY", container={"env": env}))
        await nodes.pod("pod", has_phase("Succeeded"))
        assert nodes.log("pod") == "value\n"
    assert retries[:2] == [1.0, 2.0]


@pytest.mark.slow
async def test_missing_secret_is_a_config_error_with_its_name(tmp_path: Path) -> None:
    async with local_nodes(tmp_path, sleep=lambda _: asyncio.Event().wait()) as nodes:
        volumes = [{"name": "v", "secret": {"secretName": "absent"}}]
        await nodes.create(PODS, sh("true", volumes=volumes, container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]}))
        pod = await nodes.pod("pod", waits_for("CreateContainerConfigError"))
        assert "'absent' not found" in state(pod)["state"]["waiting"]["message"]
        assert pod["status"]["phase"] == "Pending"


@pytest.mark.slow
async def test_container_restarts_at_once_and_then_backs_off_until_it_succeeds(tmp_path: Path) -> None:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    script = f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) -ge 4"
    async with local_nodes(tmp_path, sleep=sleep) as nodes:
        pod = await nodes.run(sh(script, policy="OnFailure"))
    assert delays == [0.0, 10.0, 20.0]
    assert state(pod)["restartCount"] == 3
    assert state(pod)["lastState"]["terminated"]["exitCode"] == 1
    assert pod["status"]["phase"] == "Succeeded"


@pytest.mark.slow
async def test_crash_loop_is_shown_while_the_container_waits(tmp_path: Path) -> None:
    async def sleep(seconds: float) -> None:
        if seconds:
            await asyncio.Event().wait()

    async with local_nodes(tmp_path, sleep=sleep) as nodes:
        await nodes.create(PODS, sh("exit 2", policy="Always"))
        pod = await nodes.pod("pod", waits_for("CrashLoopBackOff"))
        assert state(pod)["restartCount"] == 1
        assert pod["status"]["phase"] == "Running"
        await nodes.client.delete(PODS, "default", "pod")
        await nodes.pod("pod", is_gone)


@pytest.mark.slow
async def test_deletion_is_sigterm_and_the_pod_goes_when_its_processes_have_gone(local: LocalNodes) -> None:
    await local.create(PODS, sh("trap 'echo drained; exit 143' TERM; echo ready; while true; do sleep 0.02; done"))
    await local.pod("pod", is_true("Ready"))
    await logged(local, "ready\n")
    seen: list[Obj] = []
    await local.client.delete(PODS, "default", "pod")
    await local.pod("pod", is_gone_after(seen))
    last = seen[-1]
    assert ended(last)["exitCode"] == 143
    assert last["status"]["phase"] == "Failed"


@pytest.mark.slow
async def test_pod_that_ignores_sigterm_is_killed_after_its_grace_period(local: LocalNodes) -> None:
    deaf = local.context.state_dir / "deaf"
    os.mkfifo(deaf)
    await local.create(PODS, sh(f"trap '' TERM; : > {deaf}; while true; do sleep 0.02; done", terminationGracePeriodSeconds=1))
    await asyncio.to_thread(deaf.read_bytes)  # opens as soon as the pod ignores the signal
    seen: list[Obj] = []
    await local.client.delete(PODS, "default", "pod")
    await local.pod("pod", is_gone_after(seen))
    assert ended(seen[-1])["exitCode"] == 137


@pytest.mark.slow
async def test_grace_period_can_be_cut_short(local: LocalNodes) -> None:
    mark = f"stubborn in {local.context.state_dir}"
    await local.create(PODS, sh(f"trap '' TERM; echo deaf; : {mark}; while true; do sleep 0.02; done", terminationGracePeriodSeconds=3600))
    await local.pod("pod", is_true("Ready"))
    await logged(local, "deaf\n")
    await local.client.delete(PODS, "default", "pod")
    await local.pod("pod", lambda pod: "deletionTimestamp" in pod["metadata"])
    await local.client.delete(PODS, "default", "pod", grace_seconds=0)
    await local.pod("pod", is_gone)
    await nothing_runs(mark)


@pytest.mark.slow
async def test_name_of_a_pod_resolves_to_its_address_before_and_after_it_exists(local: LocalNodes) -> None:
    container = {"env": [{"name": "SYNCER", "value": "job-syncer.job.default.svc:7077"}]}
    await local.run(sh("echo $SYNCER", "early", container=container))
    await local.create(PODS, sh("exec sleep 100", "job-syncer", hostname="job-syncer", subdomain="job"))
    syncer = await local.pod("job-syncer", is_true("Ready"))
    assert local.log("early") == f"{syncer['status']['podIP']}:7077\n"
    await local.client.delete(PODS, "default", "job-syncer")
    await local.pod("job-syncer", is_gone)
    await local.create(PODS, sh("exec sleep 100", "job-syncer", hostname="job-syncer", subdomain="job"))
    again = await local.pod("job-syncer", is_true("Ready"))
    assert again["status"]["podIP"] == syncer["status"]["podIP"]


@pytest.mark.slow
async def test_learner_container_is_told_the_speed_of_its_node(tmp_path: Path) -> None:
    async with local_nodes(tmp_path, a_fleet_node("slow", speed="0.5")) as nodes:
        script = "echo ${DILOCO_RELATIVE_SPEED-none}"
        learner, other = [{"name": name, "image": "none", "command": ["sh", "-c", script]} for name in ("learner", "other")]
        pod = a_pod()
        pod["spec"]["containers"] = [learner, other]
        await nodes.run(pod)
        logs = {path.name: path.read_text() for path in nodes.kubelet.logs("default", "pod")}
    assert logs == {"learner-0.log": "0.5\n", "other-0.log": "none\n"}


@pytest.mark.slow
async def test_a_process_in_jax_is_given_as_many_devices_as_it_has_accelerators(local: LocalNodes) -> None:
    """Eight accelerators of a host, two processes: four each."""
    container = {"env": [{"name": ENV_ACCELERATORS_PER_HOST, "value": "8"}, {"name": ENV_PROCESSES_PER_HOST, "value": "2"}]}
    await local.run(sh("echo ${JAX_NUM_CPU_DEVICES-none}", "unit", container=container))
    await local.run(sh("echo ${JAX_NUM_CPU_DEVICES-none}", "other"))
    assert (local.log("unit"), local.log("other")) == ("4\n", "none\n")


@pytest.mark.slow
async def test_init_containers_run_first_and_one_that_fails_fails_the_pod(local: LocalNodes) -> None:
    good, bad = [{"name": name, "image": "none", "command": ["sh", "-c", f"echo {name}; {name}"]} for name in ("true", "false")]
    pod = await local.run(sh("echo main", "fine", initContainers=[good]))
    assert pod["status"]["phase"] == "Succeeded"
    assert local.log("fine") == "true\nmain\n"
    pod = await local.run(sh("echo main", "broken", initContainers=[good, bad]))
    assert pod["status"]["phase"] == "Failed"
    assert "main" not in local.log("broken")


@pytest.mark.slow
async def test_signal_from_outside_counts_as_an_error_of_the_program(local: LocalNodes) -> None:
    await local.create(PODS, sh("exec sleep 100"))
    await local.pod("pod", is_true("Ready"))
    assert await local.kubelet.signal("default", "pod", signal.SIGKILL)
    pod = await local.pod("pod", has_phase("Failed"))
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (137, "Error")
    assert not await local.kubelet.signal("default", "pod", signal.SIGKILL)


@pytest.mark.slow
async def test_sigterm_from_outside_reaches_the_main_process_alone_as_from_a_kubelet(local: LocalNodes, tmp_path: Path) -> None:
    # The child ends when the main process has had its signal, and says whether it got one itself.
    os.mkfifo(tmp_path / "gate")
    child = f"(trap 'echo child got it' TERM; read line <{tmp_path}/gate; echo child ends) &"
    script = f"{child} trap 'echo go >{tmp_path}/gate; wait; exit 3' TERM; echo ready; wait"
    await local.create(PODS, sh(script))
    await local.pod("pod", is_true("Ready"))
    await logged(local, "ready\n")
    assert await local.kubelet.signal("default", "pod", signal.SIGTERM)
    pod = await local.pod("pod", has_phase("Failed"))
    assert ended(pod)["exitCode"] == 3
    assert local.log("pod") == "ready\nchild ends\n"


@pytest.mark.slow
async def test_foreign_conditions_survive_the_kubelets_reports(local: LocalNodes) -> None:
    await local.create(PODS, sh("exec sleep 100"))
    pod = await local.pod("pod", is_true("Ready"))
    mark = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod["status"]["conditions"].append(mark)
    await local.client.update(PODS, pod, subresource="status")
    await local.kubelet.signal("default", "pod", signal.SIGKILL)
    pod = await local.pod("pod", has_phase("Failed"))
    assert condition(pod, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    assert condition(pod, "Ready")["status"] == "False"


@pytest.mark.slow
async def test_successor_of_the_same_name_starts_only_when_its_predecessor_is_gone(local: LocalNodes) -> None:
    mark = f"PREDECESSOR={uuid.uuid4()}"  # other runs of this test may be under way on this machine
    container = {"env": [{"name": mark.split("=")[0], "value": mark.split("=")[1]}]}
    await local.create(PODS, sh("exec sleep 100", hostname="pod", subdomain="job", container=container))
    await local.pod("pod", is_true("Ready"))
    await local.client.delete(PODS, "default", "pod", grace_seconds=0)
    script = (
        "import contextlib, pathlib, sys\n"
        "alive = []\n"
        "for process in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    with contextlib.suppress(OSError):\n"  # it ended meanwhile
        "        if (process / 'comm').read_text() == 'sleep\\n' and sys.argv[1].encode() in (process / 'environ').read_bytes():\n"
        "            alive.append(process)\n"
        "sys.exit(len(alive))"
    )
    pod = await local.run(a_pod("pod", "python", "-c", script, mark, hostname="pod", subdomain="job"))
    assert pod["status"]["phase"] == "Succeeded"


PROGRAM_WITH_A_SOCKET = """
import multiprocessing.connection, os
listener = multiprocessing.connection.Listener(family="AF_UNIX")
print(os.environ["TMPDIR"], flush=True)
"""


def leads_to(link: Path) -> Path:
    return link.resolve()


def is_there(link: Path) -> bool:
    return link.is_symlink()


@pytest.mark.slow
async def test_programs_make_sockets_in_the_tmp_of_their_pod_however_deep_the_state_directory_is(tmp_path: Path) -> None:
    async with local_nodes(tmp_path / ("deep" * 30)) as local:
        mounted = {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
        pod = a_pod("sockets", "python", "-c", PROGRAM_WITH_A_SOCKET, volumes=[{"name": "tmp", "emptyDir": {}}], container=mounted)
        assert (await local.run(pod))["status"]["phase"] == "Succeeded", local.log("sockets")
        short = Path(local.log("sockets").strip())
        assert leads_to(short).is_relative_to(tmp_path)
        await local.client.delete(PODS, "default", "sockets")
        await local.pod("sockets", is_gone)
    assert not is_there(short)


@pytest.mark.slow
async def test_variables_that_the_user_chose_win_over_the_kubelets_and_the_pods_win_over_them(tmp_path: Path) -> None:
    async with local_nodes(tmp_path, environment={"OMP_NUM_THREADS": "4", "TOKEN": "given", "OWN": "given"}) as local:
        pod = sh(
            "echo $OMP_NUM_THREADS $MKL_NUM_THREADS $TOKEN $OWN $GLOO_SOCKET_IFNAME", container={"env": [{"name": "OWN", "value": "pod"}]}
        )
        await local.run(pod)
        assert local.log("pod") == "4 1 given pod lo\n"
