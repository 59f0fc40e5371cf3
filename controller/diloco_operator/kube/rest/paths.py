"""The URL paths of resources and objects. Pure."""

from __future__ import annotations

from urllib.parse import quote

from diloco_operator.kube.client import BadRequest, Resource

PODS = Resource("", "v1", "Pod", "pods")


def collection_path(resource: Resource, namespace: str) -> str:
    """Return the path of all objects in `namespace`; "": in every namespace."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    if namespace and resource.namespaced:
        return f"{root}/namespaces/{_segment(namespace, 'namespace')}/{resource.plural}"
    return f"{root}/{resource.plural}"


def object_path(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    """Return the path of one object. Raises `BadRequest` without a name: the path would be that of the collection."""
    if resource.namespaced and not namespace:
        raise BadRequest(400, "BadRequest", f"{resource.kind} {name!r}: a namespace is needed")
    path = f"{collection_path(resource, namespace)}/{_segment(name, 'name')}"
    return f"{path}/{subresource}" if subresource else path


def _segment(text: str, what: str) -> str:
    """Return one segment of a path. `.` and `..` would lead to other paths."""
    if not text or text in (".", ".."):
        raise BadRequest(400, "BadRequest", f"{text!r} is not a {what}")
    return quote(text, safe="")
