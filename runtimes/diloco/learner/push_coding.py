"""Codes staged values as the chunks of a push or a seed.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from diloco.algorithm.codec import Coding, NonFiniteError, encode, leave_rounding_error, payload_bytes
from diloco.learner.remainders import Remainders
from diloco.learner.store import Float32Array, ParameterStore, Staged
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk
from diloco.protocol.framing import split

_log = logging.getLogger(__name__)


def push_chunks(
    header: Chunk,
    staged: Staged,
    base: Callable[[], tuple[int, Float32Array]],
    store: ParameterStore,
    names: Sequence[str],
    remainders: Remainders,
) -> Iterator[DataChunk]:
    """Yield the chunks of a push. It is coded when the first chunk is taken.

    Args:
        header: of the push; gets the base's version
        staged: values at the step boundary
        base: returns the (version, values) to code against, when the push is coded
        store: rounds as the model does
        remainders: with INT4_DELTA, what earlier pushes left out is added, and what this one leaves out is kept there
    """
    values = staged.wait()
    header.base, held = base()
    coding = Coding(header.coding)
    _subtract_adopted(coding, values, held, store.rounded(names, held))
    if coding is Coding.INT4_DELTA:
        remainders.add_to(header.fragment, values)
    payload: memoryview | bytes
    try:
        payload = encode(coding, values)
        if coding is Coding.INT4_DELTA:
            leave_rounding_error(coding, payload, values)
            remainders.coded(header.fragment, header.t, values)
    except NonFiniteError as error:
        payload = _refusable(header, values.size, error)
    yield from split(header, payload)


def seed_chunks(header: Chunk, values: Float32Array) -> Iterator[DataChunk]:
    """Yield the chunks of `values`, float32 [size], in the header's coding."""
    payload: memoryview | bytes
    try:
        payload = encode(Coding(header.coding), values)
    except NonFiniteError as error:
        payload = _refusable(header, values.size, error)
    yield from split(header, payload)


def _refusable(header: Chunk, size: int, error: NonFiniteError) -> bytes:
    """Return a payload of NaN in place of values that cannot be coded: the syncer shall see, refuse and count the push. All bits set is NaN
    in every coding."""
    _log.error("fragment %d at outer step %d: %s", header.fragment, header.t, error)
    return b"\xff" * payload_bytes(Coding(header.coding), size)


def _subtract_adopted(coding: Coding, values: Float32Array, base: Float32Array, adopted: Float32Array) -> None:
    """Turn `values` into what the coding sends: the change since the base was adopted, or the base plus that change.

    The model adopts the base rounded to its parameters' types. Subtracting those rounded values makes the change of an untrained parameter
    exactly 0.
    """
    if coding.delta:
        np.subtract(values, adopted, out=values)
    elif adopted is not base:
        np.subtract(values, adopted, out=values)
        np.add(values, base, out=values)
