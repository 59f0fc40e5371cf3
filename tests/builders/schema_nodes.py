"""A schema of OpenAPI as a flat list of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from diloco_operator.api.crd import Schema


def schema_nodes(schema: Schema, place: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield each with its place, as `spec.pools[].name`; `{}` are the values of a map."""
    yield place, schema
    for name, child in schema.get("properties", {}).items():
        yield from schema_nodes(child, f"{place}.{name}".lstrip("."))
    if "items" in schema:
        yield from schema_nodes(schema["items"], f"{place}[]")
    if "additionalProperties" in schema:
        yield from schema_nodes(schema["additionalProperties"], f"{place}{{}}")
