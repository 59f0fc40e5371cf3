"""A reflector with a real API server that stops, compacts its history, ends watches, or falls silent: its cache misses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from builders.control_plane import ControlPlane
from builders.kube_objects import CONFIG_MAPS, SECRETS, config_map, eventually
from builders.severed_link import link_to
from diloco.protocol.backoff import ExponentialBackoff
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Obj, Unavailable
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.kube.rest import RestClient, load_config
from diloco_operator.timeouts import WatchTimeouts

_NAMESPACE = "default"
_QUICK = ExponentialBackoff(initial=0.05, ceiling=0.5)

pytestmark = pytest.mark.xdist_group("reflector")  # one control plane for all of them


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane for this module alone, since it is stopped and compacted."""
    with ControlPlane(tmp_path_factory.mktemp("reflector-plane"), controllers=False, scheduler=False) as plane:
        yield plane


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[RestClient]:
    """The client for the tests' writes. The reflector has another one."""
    async with RestClient.connect(load_config(plane.kubeconfig)) as client:
        yield client
        for name in [each["metadata"]["name"] for each in (await client.list(CONFIG_MAPS, _NAMESPACE)).items]:
            await client.delete(CONFIG_MAPS, _NAMESPACE, name)


class Followed:
    """A reflector of the config maps, and the calls of its handlers."""

    def __init__(self, reflector: Reflector[Obj], requests: list[str]) -> None:
        self.reflector = reflector
        self.requests = requests
        """The server's answers to its requests: one list, then watches."""
        self.delivered: Counter[tuple[str, str]] = Counter()
        """How often each change ("added", "changed", "deleted") of each name was delivered."""
        reflector.on_change(self._tell)

    def _tell(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        held = new or old
        assert held is not None
        self.delivered["added" if old is None else "deleted" if new is None else "changed", held.name] += 1

    @property
    def data(self) -> dict[str, str]:
        return {held.name: held.value.get("data", {}).get("x", "") for held in self.reflector.cache}


@contextlib.asynccontextmanager
async def _following(kubeconfig: Path, timeouts: WatchTimeouts, *, without: str = "") -> AsyncIterator[Followed]:
    requests: list[str] = []
    async with RestClient.connect(load_config(kubeconfig), on_request=lambda method, code, host: requests.append(code)) as client:
        reflector: Reflector[Obj] = Reflector(
            client, WatchedResource(CONFIG_MAPS, as_it_is, namespace=_NAMESPACE, without=without), rng=lambda: 0.0, timeouts=timeouts
        )
        followed = Followed(reflector, requests)
        running = asyncio.create_task(reflector.run())
        try:
            await asyncio.wait_for(reflector.wait_synced(), 180)
            yield followed
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def _converged(followed: Followed, client: RestClient) -> None:
    """Wait until the cache equals the server's state."""

    async def same() -> bool:
        there = (await client.list(CONFIG_MAPS, _NAMESPACE)).items
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in there} == {
            held.name: held.version for held in followed.reflector.cache
        }

    await eventually(same, "the cache is what the server has")


async def _again(client: RestClient, name: str, x: str) -> None:
    """Write a config map's data, as soon as the server can be reached again."""

    async def done() -> bool:
        try:
            await client.update(CONFIG_MAPS, config_map(_NAMESPACE, name, x=x))
        except Unavailable:
            return False
        return True

    await eventually(done, "the server answers")


async def test_api_server_that_is_stopped_and_started_again(plane: ControlPlane, client: RestClient) -> None:
    for name in ("stays", "changes", "goes"):
        await client.create(CONFIG_MAPS, config_map(_NAMESPACE, name, x="1"))
    async with _following(plane.kubeconfig, WatchTimeouts(backoff=_QUICK)) as followed:
        assert followed.data == {"stays": "1", "changes": "1", "goes": "1"}
        await asyncio.to_thread(plane.stop_api_server)
        with pytest.raises(Unavailable):
            await client.list(CONFIG_MAPS, _NAMESPACE)
        await asyncio.to_thread(plane.start_api_server)
        await _again(client, "changes", "2")
        await client.delete(CONFIG_MAPS, _NAMESPACE, "goes")
        await client.create(CONFIG_MAPS, config_map(_NAMESPACE, "comes", x="1"))
        await _converged(followed, client)
        assert followed.data == {"stays": "1", "changes": "2", "comes": "1"}
        assert {what: count for what, count in followed.delivered.items() if what[0] != "added"} == {
            ("changed", "changes"): 1,
            ("deleted", "goes"): 1,
        }
        assert followed.delivered["added", "comes"] == 1


async def test_history_that_is_compacted_under_a_watch(plane: ControlPlane, client: RestClient, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("changes", "goes"):
        await client.create(CONFIG_MAPS, config_map(_NAMESPACE, name, x="1"))
    host, port = _address(plane)
    async with link_to(host, port) as link:
        with caplog.at_level(logging.INFO, logger="diloco_operator.kube.reflector"):
            async with _following(_through(plane, link.port), WatchTimeouts(read=2.0, backoff=_QUICK)) as followed:
                link.silence()  # the watch does not see the following changes, and when it resumes, they are compacted
                await client.update(CONFIG_MAPS, config_map(_NAMESPACE, "changes", x="2"))
                await client.delete(CONFIG_MAPS, _NAMESPACE, "goes")
                await client.create(CONFIG_MAPS, config_map(_NAMESPACE, "passes", x="1"))
                await client.delete(CONFIG_MAPS, _NAMESPACE, "passes")
                await client.create(SECRETS, {"metadata": {"namespace": _NAMESPACE, "generateName": "later-"}})
                await asyncio.to_thread(plane.forget_history)
                link.heal()
                await _converged(followed, client)
        assert followed.data == {"changes": "2"}
        assert followed.delivered["deleted", "goes"] == 1
        assert "the server has forgotten version" in caplog.text


async def test_watches_that_the_server_ends(plane: ControlPlane, client: RestClient) -> None:
    timeouts = WatchTimeouts(watch=1.0, read=0.9, short=0.5, backoff=_QUICK)  # 1 s is the shortest that a server knows
    changes = 0
    async with _following(plane.kubeconfig, timeouts) as followed:
        await client.create(CONFIG_MAPS, config_map(_NAMESPACE, "counter", x="0"))
        while len(followed.requests) < 5:  # the list, and the ends of three watches
            changes += 1
            await client.update(CONFIG_MAPS, config_map(_NAMESPACE, "counter", x=str(changes)))
        await _converged(followed, client)
        assert followed.data == {"counter": str(changes)}
        # Every state was delivered once, not only the last one.
        assert followed.delivered == {("added", "counter"): 1, ("changed", "counter"): changes}


async def test_connection_that_falls_silent(plane: ControlPlane, client: RestClient) -> None:
    host, port = _address(plane)
    async with link_to(host, port) as link:
        timeouts = WatchTimeouts(read=3.0, backoff=_QUICK)
        async with _following(_through(plane, link.port), timeouts) as followed:
            await client.create(CONFIG_MAPS, config_map(_NAMESPACE, "before", x="1"))
            await _converged(followed, client)
            link.silence()
            await client.create(CONFIG_MAPS, config_map(_NAMESPACE, "unheard", x="1"))
            await client.delete(CONFIG_MAPS, _NAMESPACE, "before")
            await eventually(link.has_dropped, "the server sends it, and the link drops it")
            link.heal()
            await _converged(followed, client)
            assert followed.delivered == {("added", "before"): 1, ("added", "unheard"): 1, ("deleted", "before"): 1}


def _address(plane: ControlPlane) -> tuple[str, int]:
    url = urlsplit(plane.url)
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def _through(plane: ControlPlane, port: int) -> Path:
    """The control plane's kubeconfig, through a link."""
    content = json.loads(plane.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = plane.folder / f"link-{port}.kubeconfig"
    path.write_text(json.dumps(content))
    return path


async def test_optional_reflector_without_the_right_is_empty_and_fills_as_soon_as_it_is_granted(
    plane: ControlPlane, client: RestClient
) -> None:
    """As with RBAC a person grants it: while the operator runs."""
    await client.create(CONFIG_MAPS, config_map(_NAMESPACE, "there", x="1"))
    plane.kubectl("create", "serviceaccount", "reader", "-n", _NAMESPACE)
    plane.kubectl("create", "clusterrole", "config-reader", "--verb=list,watch", "--resource=configmaps")
    kubeconfig = plane.kubeconfig_for(plane.token(_NAMESPACE, "reader"), "reader")
    async with _following(kubeconfig, WatchTimeouts(backoff=_QUICK), without="nothing is known") as followed:
        assert (bool(followed.reflector.missing), followed.data) == (True, {})
        plane.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=config-reader", f"--serviceaccount={_NAMESPACE}:reader")
        await _converged(followed, client)
        assert (followed.reflector.missing, followed.data["there"]) == ("", "1")
