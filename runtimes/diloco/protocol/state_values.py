"""The small rest of a learner's state as bytes, without pickle: what a `state_dict` holds besides tensors in the shape of parameters.

The bytes are the length of a JSON document, the document, and the data of its arrays, one after the other. Pure.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco.protocol.state_parts import StateError

MOST_BYTES = 64 << 20
"""The most bytes of the small rest, which is read at one step boundary. More would hold up the program."""
_LENGTH = 8
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Leaf:
    """An array as its framework keeps it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)
    on_host: bool = True
    """The program keeps it in host memory, even if the parameters are on a device."""


def encode(tree: Any) -> bytes:
    """Encode a tree of dicts with scalar keys, lists, tuples, scalars and `Leaf`s.

    Raises StateError for anything else in it, with the place, and for more than MOST_BYTES.
    """
    data: list[bytes] = []
    text = json.dumps(_to_json(tree, data, "state"), separators=(",", ":")).encode()
    encoded = b"".join((len(text).to_bytes(_LENGTH), text, *data))
    if len(encoded) > MOST_BYTES:
        raise StateError(f"state beside the parameters' own has {len(encoded) >> 20} MiB; {MOST_BYTES >> 20} MiB can be handed over")
    return encoded


def decode(raw: bytes | bytearray | memoryview) -> Any:
    """Return the tree that `encode` was given. Raises StateError."""
    view = memoryview(raw).cast("B")
    end = _LENGTH + int.from_bytes(view[:_LENGTH])
    try:
        document = json.loads(bytes(view[_LENGTH:end]))
        tree, rest = _from_json(document, view[end:])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StateError(f"the peer's state cannot be read: {error}") from error
    if len(rest):
        raise StateError(f"the peer's state has {len(rest)} bytes too many")
    return tree


def _to_json(tree: Any, data: list[bytes], where: str) -> Any:
    if isinstance(tree, Leaf):
        data.append(tree.data)
        return {"array": [tree.dtype, list(tree.shape), len(tree.data), tree.on_host]}
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, _SCALARS):
                raise StateError(f"{where} has a key of type {type(key).__name__}, which cannot be handed over")
        return {"map": [[key, _to_json(value, data, f"{where}[{key!r}]")] for key, value in tree.items()]}
    if type(tree) in (list, tuple):
        items = [_to_json(value, data, f"{where}[{index}]") for index, value in enumerate(tree)]
        return {"tuple": items} if isinstance(tree, tuple) else {"list": items}
    if type(tree) in _SCALARS:
        return tree
    raise StateError(f"{where} is {type(tree).__name__}, which cannot be handed over: only numbers, texts, arrays, lists and dicts can be")


def _from_json(document: Any, data: memoryview) -> tuple[Any, memoryview]:
    """Return (the tree, the data behind it)."""
    if type(document) in _SCALARS:
        return document, data
    ((kind, value),) = document.items()
    if kind == "array":
        dtype, shape, size, on_host = value
        if len(data) < size or size < 0 or any(length < 0 for length in shape) or not math.prod(shape) <= max(size, 1):
            raise ValueError("an array without its data")
        return Leaf(str(dtype), tuple(map(int, shape)), bytes(data[:size]), bool(on_host)), data[size:]
    if kind == "map":
        tree = {}
        for key, child in value:
            tree[key], data = _from_json(child, data)
        return tree, data
    if kind not in ("list", "tuple"):
        raise ValueError(f"an unknown kind of value: {kind}")
    items = []
    for child in value:
        item, data = _from_json(child, data)
        items.append(item)
    return tuple(items) if kind == "tuple" else items, data
