"""From staged values to the chunks of a push or a seed.

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
    """Yield the transfer of one fragment, coded once the first chunk is asked for. `base`: (version, values) to code against by then.
    `remainders`: what pushes before it left out, with INT4_DELTA; what this one leaves out is put there."""
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
    """Return a payload in place of one that cannot be: the syncer must see it, refuse it and count it. All bits set is NaN in every
    coding."""
    _log.error("fragment %d at outer step %d: %s", header.fragment, header.t, error)
    return b"\xff" * payload_bytes(Coding(header.coding), size)


def _subtract_adopted(coding: Coding, values: Float32Array, base: Float32Array, adopted: Float32Array) -> None:
    """Make of `values` what the coding sends: the change against what the model held when it had adopted the base, or the base with
    that change. The model adopts the base rounded to its parameters' types; so one that is not trained changes nothing."""
    if coding.delta:
        np.subtract(values, adopted, out=values)
    elif adopted is not base:
        np.subtract(values, adopted, out=values)
        np.add(values, base, out=values)
