"""States that units store at a URI, without a unit."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from builders.snapshots import MODEL
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import whole
from diloco.protocol.state_parts import PieceArray
from diloco.snapshots.stored_state import FOLDER, BlockWriter, StoredState, UnitFolder, name_of


def a_stored_state(uri: str, unit: str, *, t: int, attempt: int = 1, local_step: int = 0, layout: Layout = MODEL) -> StoredState:
    """What a unit has stored after a snapshot of outer step `t`, beside those in `uri`: a momentum of ones for each tensor."""
    folder = UnitFolder(f"{uri}/{FOLDER}/{unit}")
    writer = BlockWriter(folder, name_of(attempt, local_step), rank=0)
    for spec in layout.tensors:
        one = PieceArray(whole(spec), "momentum", "float32")
        writer.add([one], np.ones(one.piece.elements, np.float32))
    rest = b"rest"
    state = StoredState(
        unit, attempt, t, local_step, local_step, "torch AdamW", layout.fingerprint, (len(rest), sha256(rest).hexdigest()), writer.finish()
    )
    folder.finish(state, rest)
    return state
