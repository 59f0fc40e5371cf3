"""From staged values to the chunks of a push or a seed.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from diloco.algorithm.codec import Coding, NonFiniteError, encode, payload_bytes
from diloco.learner.store import Float32Array, ParameterStore, Staged
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk
from diloco.protocol.framing import split

_log = logging.getLogger(__name__)


def push_chunks(
    header: Chunk, staged: Staged, base: Callable[[], tuple[int, Float32Array]], store: ParameterStore, names: Sequence[str]
) -> Iterator[DataChunk]:
    """The transfer of one fragment, coded once the first chunk is asked for. `base`: (version, values) to code against by then."""
    values = staged.wait()
    header.base, held = base()
    _subtract_adopted(Coding(header.coding), values, held, store.rounded(names, held))
    yield from coded(header, values)


def coded(header: Chunk, values: Float32Array) -> Iterator[DataChunk]:
    """The chunks of `values`, float32 [size], in the header's coding."""
    coding = Coding(header.coding)
    payload: memoryview | bytes
    try:
        payload = encode(coding, values)
    except NonFiniteError as error:
        # The syncer must see it, refuse it and count it. All bits set is NaN in every coding.
        _log.error("fragment %d at outer step %d: %s", header.fragment, header.t, error)
        payload = b"\xff" * payload_bytes(coding, values.size)
    yield from split(header, payload)


def _subtract_adopted(coding: Coding, values: Float32Array, base: Float32Array, adopted: Float32Array) -> None:
    """Make of `values` what the coding sends: the change against what the model held when it had adopted the base, or the base with
    that change. The model adopts the base rounded to its parameters' types; so one that is not trained changes nothing."""
    if coding.delta:
        np.subtract(values, adopted, out=values)
    elif adopted is not base:
        np.subtract(values, adopted, out=values)
        np.add(values, base, out=values)
