"""Runs the programs of `kubectl diloco` in pods, as a kubelet runs that of `kubectl exec`, over a WebSocket.

The server answers every process that reaches this machine's loopback addresses, so it runs two programs only: the export on the volume of a
pod that was made for it, with options that write nothing, and the doctor's, word for word, which connects a learner's pod to its syncer.

See docs/decisions/0139-model-in-and-out.md. See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence

from aiohttp import WSMsgType, web
from diloco import contract
from diloco_local.environment import Command
from diloco_operator.api.names import COMPONENT_EXPORT, COMPONENT_LEARNER
from diloco_operator.kube.rest.pod_exec import PROTOCOL, Channel
from diloco_operator.reach import REACH_COMMAND

_BLOCK = 1 << 16
_OPTIONS = {"--step": 1, "--snapshot": 1, "--dtype": 1, "--list": 0, "--check": 0}
"""Options that only choose what is read, and how many values each has."""

type Programs = Callable[[str, str, str, str, Sequence[str]], Command | None]
"""(component, namespace, pod, container, words) to what it is on this machine; None: no such container of a pod of this component runs."""


class ExecEndpoint:
    """Answers `GET /exec/<namespace>/<pod>/<container>?command=…`."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    async def answer(self, request: web.Request) -> web.StreamResponse:
        namespace, pod, container = (request.match_info[part] for part in ("namespace", "pod", "container"))
        return await self.run(request, namespace, pod, container)

    async def run(self, request: web.BaseRequest, namespace: str, pod: str, container: str) -> web.StreamResponse:
        """Return the answer to a request for this container."""
        words = request.query.getall("command", [])
        component = _component(words)
        if component is None:
            text = "simulated nodes run no programs in pods, except those of `kubectl diloco export` and `kubectl diloco doctor`\n"
            return web.Response(status=403, text=text)
        program = self._programs(component, namespace, pod, container, words)
        if program is None:
            return web.Response(status=404, text=f"no container {container} of the component {component} runs in pod {namespace}/{pod}\n")
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        if not socket.can_prepare(request).ok:
            return web.Response(status=400, text=f"simulated nodes run programs over a WebSocket with {PROTOCOL} only\n")
        await socket.prepare(request)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *program.argv, env=dict(program.env), cwd=program.cwd, stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert process.stdout is not None
        assert process.stderr is not None
        answering = asyncio.create_task(_answers(socket, process))
        try:
            with contextlib.suppress(ConnectionError):  # the client has gone
                await asyncio.gather(
                    _forward(process.stdout, socket, Channel.STDOUT), _forward(process.stderr, socket, Channel.STDERR), process.wait()
                )
                await socket.send_bytes(bytes([Channel.END]) + _status(process.returncode or 0))
                await socket.close()
        finally:
            # The client may have gone in the middle: an export of many GiB would go on into a pipe without a reader.
            if process.returncode is None:
                process.kill()
                await process.wait()
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        return socket


def _component(words: Sequence[str]) -> str | None:
    """Return in pods of which component the program may run; None: in none."""
    if tuple(words) == REACH_COMMAND:
        return COMPONENT_LEARNER
    return COMPONENT_EXPORT if _is_export(words) else None


def _is_export(words: Sequence[str]) -> bool:
    """Recognize `PYTHON -m diloco.export /var/lib/diloco`, and options that only choose what is read."""
    at = 4
    while at < len(words) and words[at] in _OPTIONS:
        at += 1 + _OPTIONS[words[at]]
    return list(words[:4]) == ["python", "-m", "diloco.export", contract.MOUNT_STATE] and at == len(words)


async def _forward(stream: asyncio.StreamReader, socket: web.WebSocketResponse, channel: Channel) -> None:
    while piece := await stream.read(_BLOCK):
        await socket.send_bytes(bytes([channel]) + piece)


async def _answers(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    """Copy from the client to the program's stdin; when the client goes, the program ends."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == bytes([Channel.STDIN]):
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
    if process.returncode is None:
        process.kill()


def _status(code: int) -> bytes:
    """Report the end of a program as a kubelet does."""
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    cause = {"reason": "ExitCode", "message": str(code)}
    message = f"command terminated with non-zero exit code: exit status {code}"
    return json.dumps({"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": [cause]}}).encode()
