"""Lists: order, pages, selectors."""

from __future__ import annotations

import pytest
from builders.kube_objects import CONFIG_MAPS, PODS, WIDGETS, config_map, names, widget
from builders.pods import a_bare_pod
from diloco_operator.kube.client import BadRequest, Client, Gone

from .conftest import Backend


async def _labelled(client: Client, namespace: str) -> None:
    for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "y"}), ("c", {"app": "x", "tier": "2"}), ("d", {})):
        await client.create(CONFIG_MAPS, config_map(namespace, name, meta={"labels": labels}))


async def test_list_is_ordered_by_name_and_carries_a_version(client: Client, namespace: str) -> None:
    for name in ("b", "c", "a"):
        made = await client.create(WIDGETS, widget(namespace, name))
    found = await client.list(WIDGETS, namespace)
    assert names(found.items) == ["a", "b", "c"]
    assert int(found.resource_version) >= int(made["metadata"]["resourceVersion"])
    assert found.continue_token == ""


async def test_items_say_what_they_are(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    item = (await client.list(CONFIG_MAPS, namespace, field_selector="metadata.name=a")).items[0]
    assert (item["apiVersion"], item["kind"]) == ("v1", "ConfigMap")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=x", ["a", "c"]),
        ("app!=x", ["b", "d"]),
        ("app notin (x)", ["b", "d"]),
        ("!tier", ["b", "d"]),
        ("app=x,tier!=1", ["c"]),
    ],
)
async def test_label_selectors(client: Client, namespace: str, selector: str, expected: list[str]) -> None:
    await _labelled(client, namespace)
    found = names((await client.list(CONFIG_MAPS, namespace, label_selector=selector)).items)
    assert [name for name in found if name != "kube-root-ca.crt"] == expected


async def test_label_selector_that_cannot_be_read_is_a_bad_request(client: Client, namespace: str) -> None:
    with pytest.raises(BadRequest):
        await client.list(CONFIG_MAPS, namespace, label_selector="a in x")


async def test_field_selectors_of_pods(client: Client, namespace: str, node: str) -> None:
    for name in ("a", "b", "c"):
        await client.create(PODS, a_bare_pod(namespace, name))
    await client.bind(namespace, "b", node)
    assert names((await client.list(PODS, namespace, field_selector=f"spec.nodeName={node}")).items) == ["b"]
    assert names((await client.list(PODS, namespace, field_selector="spec.nodeName=")).items) == ["a", "c"]
    assert names((await client.list(PODS, namespace, field_selector="metadata.name!=a,status.phase=Pending")).items) == ["b", "c"]


async def test_field_selectors_of_custom_resources(client: Client, namespace: str) -> None:
    for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
        await client.create(WIDGETS, widget(namespace, name, color=color))
    assert names((await client.list(WIDGETS, namespace, field_selector="spec.color=red")).items) == ["a", "c"]
    assert names((await client.list(WIDGETS, namespace, field_selector="spec.color!=red,metadata.name=b")).items) == ["b"]


async def test_field_that_cannot_be_selected_by_is_a_bad_request(client: Client, namespace: str) -> None:
    with pytest.raises(BadRequest):
        await client.list(WIDGETS, namespace, field_selector="spec.size=1")


async def test_pages_hold_everything_once(client: Client, namespace: str) -> None:
    for index in range(7):
        await client.create(WIDGETS, widget(namespace, f"w{index}"))
    page = await client.list(WIDGETS, namespace, limit=3)
    found, pages = names(page.items), 1
    while page.continue_token:
        page = await client.list(WIDGETS, namespace, limit=3, continue_token=page.continue_token)
        found, pages = found + names(page.items), pages + 1
    assert (found, pages) == ([f"w{index}" for index in range(7)], 3)


async def test_all_pages_show_the_moment_of_the_first(client: Client, namespace: str) -> None:
    for name in ("a", "b", "c", "d"):
        await client.create(WIDGETS, widget(namespace, name))
    first = await client.list(WIDGETS, namespace, limit=2)
    await client.delete(WIDGETS, namespace, "c")
    await client.create(WIDGETS, widget(namespace, "e"))
    rest = await client.list(WIDGETS, namespace, limit=5, continue_token=first.continue_token)
    assert names(rest.items) == ["c", "d"]
    assert rest.resource_version == first.resource_version
    assert rest.continue_token == ""


async def test_pages_keep_to_the_selector(client: Client, namespace: str) -> None:
    for index in range(6):
        await client.create(WIDGETS, widget(namespace, f"w{index}", meta={"labels": {"odd": str(index % 2)}}))
    first = await client.list(WIDGETS, namespace, label_selector="odd=1", limit=2)
    rest = await client.list(WIDGETS, namespace, label_selector="odd=1", limit=2, continue_token=first.continue_token)
    assert names(first.items + rest.items) == ["w1", "w3", "w5"]


async def test_continue_token_outlived_by_compaction_is_gone(backend: Backend, namespace: str) -> None:
    client = backend.client
    for name in ("a", "b", "c"):
        await client.create(WIDGETS, widget(namespace, name))
    first = await client.list(WIDGETS, namespace, limit=1)
    await client.create(WIDGETS, widget(namespace, "d"))
    await backend.forget()
    with pytest.raises(Gone) as error:
        await client.list(WIDGETS, namespace, limit=1, continue_token=first.continue_token)
    assert error.value.code == 410


async def test_list_over_all_namespaces(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a", meta={"labels": {"test": namespace}}))
    await client.create(WIDGETS, widget("default", f"b-{namespace}", meta={"labels": {"test": namespace}}))
    found = await client.list(WIDGETS, label_selector=f"test={namespace}")
    assert sorted(names(found.items)) == ["a", f"b-{namespace}"]
    await client.delete(WIDGETS, "default", f"b-{namespace}")
