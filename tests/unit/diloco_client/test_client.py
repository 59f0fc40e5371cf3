"""What the Python client refuses, and how it waits, without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from builders.jobs import a_manifest
from builders.statuses import a_state
from diloco_cli.view_model import JobView
from diloco_client import Client, ClientError
from diloco_client.client import _object
from diloco_client.loop import LoopThread
from diloco_client.progress import ProgressLine
from diloco_operator.api.job import load
from diloco_operator.kube.client import ApiError, LogRequest, NotFound, Obj, Resource

NOWHERE = """
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: me, namespace: research}}]
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {token: none}}]
"""


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """A kubeconfig with a server that does not answer."""
    file = tmp_path / "config"
    file.write_text(NOWHERE)
    return str(file)


def test_a_kubeconfig_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="none"):
        Client.connect(kubeconfig=str(tmp_path / "none"))


def test_the_namespace_is_that_of_the_context_and_an_unreachable_server_is_told(nowhere: str) -> None:
    with Client.connect(kubeconfig=nowhere) as client:
        assert client.namespace == "research"
        with pytest.raises(ClientError, match="cannot be reached"):
            client.list()
    client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.list()


def test_a_job_is_checked_before_it_is_sent(nowhere: str, tmp_path: Path) -> None:
    wrong = a_manifest()
    wrong["spec"]["training"]["stepz"] = 3
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    with Client.connect(kubeconfig=nowhere) as client:
        with pytest.raises(ClientError, match=r"spec\.training\.stepz"):
            client.create(wrong)
        with pytest.raises(ClientError, match=r"empty\.yaml: contains no object"):
            client.create(empty)
        with pytest.raises(ClientError, match='there is no condition "Done"; a job has Accepted, '):
            client.wait("lm", "Done")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_time_to_wait_is_a_number_above_zero(nowhere: str, tmp_path: Path, seconds: float) -> None:
    with Client.connect(kubeconfig=nowhere) as client:
        with pytest.raises(ClientError, match="seconds must be a number above 0"):
            client.wait("lm", seconds=seconds)
        with pytest.raises(ClientError, match="seconds must be a number above 0"):
            client.export("lm", tmp_path / "model", seconds=seconds)


def test_the_client_works_where_an_event_loop_runs_as_in_a_notebook(nowhere: str) -> None:
    async def cell() -> None:
        with Client.connect(kubeconfig=nowhere) as client, pytest.raises(ClientError, match="cannot be reached"):
            client.get("lm")

    asyncio.run(cell())


def test_a_reader_that_stops_early_ends_the_source() -> None:
    ended: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            ended.append(True)

    loop = LoopThread("test")
    found = loop.each(numbers())
    assert (next(found), next(found), ended) == (0, 1, [])
    found.close()  # type: ignore[attr-defined]
    assert ended == [True]
    assert list(loop.each(numbers())) == list(range(10))
    loop.close()


def test_a_line_of_progress_covers_the_one_before() -> None:
    out = io.StringIO()
    job = a_manifest() | {"metadata": {"name": "bytes-lm", "namespace": "team"}}
    with ProgressLine(out) as line:
        line.show(JobView.of(job | {"status": a_state({"Placed": "False"})}))
        first = out.getvalue()
        line.show(JobView.of(job))
    assert first.startswith("\rbytes-lm: ")
    assert out.getvalue().endswith("\n")
    assert len(out.getvalue().rsplit("\r", 1)[1]) >= len(first) - 1


class Logs:
    """An API with one job, whose syncer writes these lines, or for ever."""

    def __init__(self, lines: int | None = None, error: ApiError | None = None) -> None:
        self._lines, self._error = lines, error
        self.ended = False

    async def get(self, resource: Resource, namespace: str, name: str) -> Obj:
        return a_manifest() | {"metadata": {"name": name, "namespace": namespace}}

    async def pod_logs(self, namespace: str, name: str, wanted: LogRequest) -> AsyncIterator[bytes]:
        try:
            for number in itertools.count() if self._lines is None else range(self._lines):
                yield b"line %d\n" % number
            if self._error is not None:
                raise self._error
        finally:
            self.ended = True


def client_of(api: Logs) -> Client:
    return Client(LoopThread("test"), contextlib.AsyncExitStack(), api, "team", "a test")  # type: ignore[arg-type]


def test_a_reader_that_stops_a_log_without_end_ends_its_source() -> None:
    api = Logs()
    with client_of(api) as client:
        lines = client.logs("bytes-lm", follow=True)
        # More than are read ahead: the source waits for room when it is ended.
        assert [next(lines) for _ in range(3000)][-1] == "line 2999"
        lines.close()  # type: ignore[attr-defined]
        assert api.ended


def test_what_ends_a_log_that_is_followed_is_told_after_its_lines() -> None:
    with client_of(Logs(2, NotFound(404, "NotFound", "pods not found"))) as client:
        lines = client.logs("bytes-lm", follow=True)
        assert (next(lines), next(lines)) == ("line 0", "line 1")
        with pytest.raises(ClientError, match="there is no pod bytes-lm-syncer now"):
            next(lines)


def test_a_job_that_exists_is_created_anew_without_what_belongs_to_the_first() -> None:
    metadata = {"name": "lm", "namespace": "a", "uid": "of-the-first", "finalizers": ["f"], "labels": {"team": "x"}, "generation": 3}
    assert _object(load(a_manifest() | {"metadata": metadata}))["metadata"] == {"name": "lm", "namespace": "a", "labels": {"team": "x"}}
