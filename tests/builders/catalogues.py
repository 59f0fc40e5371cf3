"""Accelerators of a catalogue file, for the time of a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from diloco_operator.accelerators import BUILT_IN, catalogue, extend
from diloco_operator.api.catalogue_file import read_catalogue

NPU = {"name": "acme-npu2", "resource": "acme.com/npu", "labels": [{"key": "acme.com/product", "values": ["NPU2"]}], "hostSizes": [4, 8]}
"""A kind of single hosts, with no more than it needs."""
MESH = {
    "name": "acme-mesh1",
    "family": "TPU",
    "resource": "acme.com/mesh",
    "labels": [{"key": "acme.com/mesh", "values": ["one"], "topologyKey": "acme.com/topology", "countKey": "acme.com/count"}],
    "topologies": {"2x2": [4], "2x4": [4, 8]},
}
"""A kind of slices."""


def a_file(*rows: dict[str, Any], incidental: Sequence[str] = ()) -> dict[str, Any]:
    head = {"apiVersion": "config.diloco.dev/v1alpha1", "kind": "AcceleratorCatalogue"}
    return {**head, "accelerators": list(rows), "incidentalResources": list(incidental)}


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Whatever is done to the catalogue is undone at the end: a process extends it once, a test process runs many tests."""
    states: tuple[dict[str, Any], ...] = (
        catalogue._kinds,
        catalogue._by_label,
        catalogue._label_keys,
        catalogue._incidental,
    )
    before = [dict(state) for state in states]
    try:
        yield
    finally:
        for state, old in zip(states, before, strict=True):
            state.clear()
            state.update(old)


@contextlib.contextmanager
def extended_by(*rows: dict[str, Any], incidental: Sequence[str] = ()) -> Iterator[None]:
    """With these rows and incidental resources in the catalogue."""
    with restored():
        extend(*read_catalogue(a_file(*rows, incidental=incidental), BUILT_IN))
        yield
