"""How the doctor tries whether a learner's pod reaches the syncer, against a scripted kubelet."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from builders.pods import a_learner_pod
from diloco import contract
from diloco_cli.checks import Reach, Unreadable
from diloco_cli.commands.doctor_reading import Wanted, reach
from diloco_operator.kube.client import ApiError, Forbidden, Unavailable
from diloco_operator.kube.rest import RestClient
from diloco_operator.kube.rest.pod_exec import Channel, Ended

LEARNER = "bytes-lm-v5p-0-a1-0"
ADDRESS = "bytes-lm-syncer.bytes-lm.team.svc:7077"


class Program:
    """What runs in the pod."""

    def __init__(self, ended: Ended | None, stderr: bytes) -> None:
        self.ended = ended
        self._stderr = stderr

    async def output(self) -> AsyncIterator[tuple[Channel, bytes]]:
        yield Channel.STDERR, self._stderr


class Kubelet:
    """Runs one program as it is told to; with `refuses`, the API server lets none through."""

    def __init__(self, ended: Ended | None = None, stderr: bytes = b"", refuses: ApiError | None = None) -> None:
        self.ran: list[tuple[str, Sequence[str], str]] = []
        self._program = Program(ended, stderr)
        self._refuses = refuses

    @contextlib.asynccontextmanager
    async def pod_exec(self, _: str, name: str, command: Sequence[str], *, container: str, silence: float) -> AsyncIterator[Program]:
        assert silence > 0
        if self._refuses is not None:
            raise self._refuses
        self.ran.append((name, command, container))
        yield self._program


def pods(phase: str = "Running") -> list[dict[str, Any]]:
    pod = a_learner_pod(host=0, attempt=1)
    environment = [{"name": contract.ENV_SYNCER_ADDRESS, "value": ADDRESS}]
    spec = {"containers": [{"name": "learner", "env": environment}]}
    return [{**pod, "metadata": {**pod["metadata"], "name": LEARNER}, "spec": spec, "status": {"phase": phase}}]


async def tried(kubelet: Kubelet, phase: str = "Running") -> Reach | Unreadable | None:
    return await reach(cast("RestClient", kubelet), Wanted("team", "bytes-lm"), pods(phase))


async def test_a_connection_that_comes_about_is_said() -> None:
    kubelet = Kubelet(Ended(0, ""))
    assert await tried(kubelet) == Reach(LEARNER, ADDRESS, "")
    [(name, command, container)] = kubelet.ran
    assert (name, command[:2], container) == (LEARNER, ("python3", "-c"), "learner")
    assert contract.ENV_SYNCER_ADDRESS in command[2]


async def test_one_that_does_not_is_told_in_the_words_of_python() -> None:
    said = b'Traceback (most recent call last):\n  File "<string>"\nTimeoutError: timed out\n'
    assert await tried(Kubelet(Ended(1, ""), said)) == Reach(LEARNER, ADDRESS, "TimeoutError: timed out")


@pytest.mark.parametrize(
    ("kubelet", "why", "right"),
    [
        pytest.param(
            Kubelet(refuses=Forbidden(403, "Forbidden", "no pods/exec")), "no program could be run in it: no pods/exec", True, id="right"
        ),
        pytest.param(
            Kubelet(refuses=Unavailable(503, "ServiceUnavailable", "connection refused")),
            "no program could be run in it: connection refused",
            False,
            id="refused",
        ),
        pytest.param(Kubelet(Ended(127, "python3: not found")), "no Python could be run in it: python3: not found", False, id="no Python"),
        pytest.param(Kubelet(None), "no Python could be run in it: the connection broke", False, id="broken"),
    ],
)
async def test_where_nothing_can_be_tried_the_reason_is_said_and_a_right_is_asked_for_only_where_one_is_missing(
    kubelet: Kubelet, why: str, right: bool
) -> None:
    found = await tried(kubelet)
    assert isinstance(found, Unreadable)
    assert (found.what, found.why) == (f"pod {LEARNER}", why)
    assert ("administrator" in found.remedy) is right


async def test_without_a_pod_that_runs_nothing_is_tried() -> None:
    assert await tried(Kubelet(Ended(0, "")), phase="Pending") is None
    hidden = Unreadable("pods of namespace team", "forbidden")
    assert await reach(cast("RestClient", Kubelet()), Wanted("team", "bytes-lm"), hidden) == hidden
