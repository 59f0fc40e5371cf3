"""The arrays of the job's parameters: value, momentum and remainder of every fragment, and the arithmetic on them.

A shard decides nothing: a `Driver` says what is merged, when, and with which weights. The same seed, contributions and `Close` orders give
the same bytes.

An array in place is never written to; a merge makes new ones. So `decode` and `compute` may run in any thread, and a snapshot shares the
arrays. The other methods are for one thread. New arrays reuse the memory of former ones that nothing refers to any more.

See docs/decisions/0148-driver-and-threads.md. See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Buffer, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diloco import contract
from diloco.algorithm import codec
from diloco.algorithm.codec import Coding
from diloco.algorithm.effects import Close, Reason, Refusal
from diloco.algorithm.events import Offer
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.gradients import Coded, InPortions
from diloco.algorithm.merge import MergedGradient, matrices, merge, norms
from diloco.algorithm.outer import nesterov
from diloco.algorithm.pieces import Portion
from diloco.algorithm.spare import SpareMemory
from diloco.wording import plural

Array = NDArray[np.float32]


_EXCHANGES_IN_FLIGHT: Final = 2
"""Exchanges for whose contributions memory is kept. tau + 1 exchanges may be open, but rarely more than two are."""
_ARRAYS_OF_A_MERGE: Final = 4
"""The most arrays that a merge makes: outer gradient, value, momentum and remainder."""
_PAYLOADS_OF_A_MERGE: Final = 2
"""A payload is made while the one before is sent."""


@dataclass(frozen=True, slots=True)
class CheckedPush:
    """A push that can be merged, if it is accepted."""

    gradient: Coded | InPortions
    """In the coding in which it came."""
    norms: tuple[float, ...]
    """The norm of each tensor, or of each matrix of a stack, see `merge.norms`."""
    anchor: int
    """The fragment's version when the push was decoded."""

    @property
    def norm(self) -> float:
        """The norm of the whole outer gradient; may be infinite."""
        return math.hypot(*self.norms)


@dataclass(frozen=True, slots=True)
class Update:
    """A merge that is computed and not yet in place."""

    t: int
    fragment: int
    base: int
    """The fragment's version before."""
    payload: memoryview = field(repr=False)
    """The update in the job's coding; the value itself for FLOAT32."""
    value: Array = field(repr=False)
    momentum: Array = field(repr=False)
    residual: Array | None = field(repr=False)
    gradient: Array = field(repr=False)
    """The merged outer gradient. From it, `Shard.redo` makes the same update again."""
    cosine: float
    """The mean cosine between the contributions, see `merge.MergedGradient`."""


class Shard:
    """The parameters and the outer optimizer's state. Values are flat float32 arrays, one per fragment."""

    def __init__(self, fragments: Sequence[Fragment], training: contract.Training) -> None:
        self.fragments = tuple(fragments)
        self.coding = codec.coding_for(training.compression)
        self._merge = training.merge
        self._optimizer = training.outer_optimizer
        self._versions: list[int] = [0] * len(self.fragments)
        self._values: list[Array] | None = None
        self._momentum: list[Array] = []
        self._residual: list[Array | None] = []
        self._accepted: defaultdict[int, dict[str, CheckedPush]] = defaultdict(dict)
        """Contributions that wait for their order, by outer step of the exchange and by unit."""
        self._held: dict[tuple[str, int], CheckedPush] = {}
        """Pushes that are neither accepted nor dropped yet, by unit and outer step."""
        self._computed: dict[int, Update | None] = {}
        """Updates that are not installed yet, by outer step."""
        arrays = {4 * fragment.size for fragment in self.fragments}
        payloads = {codec.payload_bytes(self.coding, fragment.size) for fragment in self.fragments}
        self.memory = SpareMemory(arrays | payloads)
        """Memory for arrays and payloads of fragments."""
        self._array_pieces = {self.memory.piece_size(size) for size in arrays}
        """Sizes of the pieces of memory that arrays fit into."""
        self._payload_pieces = {self.memory.piece_size(size) for size in payloads}

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def seeded(self) -> bool:
        """Whether the job has parameters."""
        return self._values is not None

    @property
    def versions(self) -> tuple[int, ...]:
        """The outer step of each fragment's last merge; 0 after the seed."""
        return tuple(self._versions)

    @property
    def values(self) -> tuple[Array, ...]:
        """Every fragment, see `value`. Raises ValueError before the seed."""
        return tuple(self._seeded_values())

    @property
    def momentum(self) -> tuple[Array, ...]:
        """The outer optimizer's buffer of each fragment, float32 [size], read-only."""
        return tuple(self._momentum)

    @property
    def residual(self) -> tuple[Array | None, ...]:
        """For each fragment, what the coding of the last updates has left out, float32 [size], read-only; None if nothing."""
        return tuple(self._residual)

    def value(self, p: int) -> Array:
        """Fragment p as float32 [size], read-only. A later merge makes a new array and leaves this one as it is. Raises ValueError before
        the seed."""
        return self._seeded_values()[p]

    def whole(self, p: int) -> memoryview:
        """The payload of fragment p in FLOAT32. It shares the value's memory. A shard's values are finite, so they need no check."""
        return memoryview(self.value(p).astype("<f4", copy=False)).cast("B")

    def value_norms(self) -> list[float]:
        """The Euclidean norm of each fragment's value. Reads all values. Raises ValueError before the seed."""
        return [math.hypot(*norms(f, value)) for f, value in zip(self.fragments, self._seeded_values(), strict=True)]

    def restore(
        self, versions: Sequence[int], values: Sequence[Array], momentum: Sequence[Array], residual: Sequence[Array | None]
    ) -> None:
        """Take a stored state, with one entry for each fragment. The arrays are shared and must be read-only."""
        self._versions = list(versions)
        self._values = list(values)
        self._momentum = list(momentum)
        self._residual = list(residual)

    def seed(self, values: Sequence[Array]) -> Refusal | None:
        """Take the job's first parameters: one float32 [size] for each fragment, by index. The caller must not use the arrays any more.

        Returns a refusal if there are parameters already (STALE), for a wrong number or shape (BAD_SIZE), for NaN or infinity (NON_FINITE).
        """
        if self.seeded:
            return Refusal(Reason.STALE, "the job has parameters already; only the first seed counts")
        if len(values) != len(self.fragments):
            return Refusal(Reason.BAD_SIZE, f"the seed has {plural(len(values), 'fragment')}, the job {len(self.fragments)}")
        for fragment, value in zip(self.fragments, values, strict=True):
            if value.shape != (fragment.size,):
                return Refusal(Reason.BAD_SIZE, f"the seed of fragment {fragment.index} has shape {value.shape}, not ({fragment.size},)")
            if not codec.finite(value):
                names = ", ".join(x.name for x, where in fragment.slices() if not codec.finite(value[where]))
                return Refusal(Reason.NON_FINITE, f"the seed holds NaN or infinity in {names}")
        self._values = [_frozen(np.ascontiguousarray(value, np.float32)) for value in values]
        self._momentum = [_frozen(np.zeros(fragment.size, np.float32)) for fragment in self.fragments]
        self._residual = [None] * len(self.fragments)
        return None

    # --- contributions ------------------------------------------------------------------------------------------------

    def decode(self, offer: Offer, payload: Buffer) -> CheckedPush:
        """Check an answer that the coordinator has admitted, and compute its norms. The payload is kept as it came. Changes nothing, so any
        thread may call it.

        Raises codec.NonFiniteError for NaN or infinity, codec.CodecError if the payload has not the fragment's size in this coding.
        """
        version, anchor = self._versions[offer.fragment], self.value(offer.fragment)
        coded = codec.payload_of(offer.coding, payload, anchor.size)
        sizes = [where.stop - where.start for _, where in matrices(self.fragments[offer.fragment])]
        squares = codec.gradient_squares(offer.coding, coded, anchor, sizes)
        return CheckedPush(Coded(offer.coding, coded, anchor), tuple(np.sqrt(squares).tolist()), version)

    def decode_portions(self, offer: Offer, parts: Sequence[tuple[Portion, Buffer]]) -> CheckedPush:
        """As `decode`, for an answer in portions that cover the fragment exactly once, each coded as its own vector."""
        fragment = self.fragments[offer.fragment]
        version, anchor = self._versions[offer.fragment], self.value(offer.fragment)
        coded = [(portion, codec.payload_of(offer.coding, payload, portion.size)) for portion, payload in parts]
        gradient = InPortions(offer.coding, coded, anchor)
        return CheckedPush(gradient, norms(fragment, gradient.values(self.memory.floats(anchor.size))), version)

    def hold(self, unit: str, offer: Offer, push: CheckedPush) -> None:
        """Keep a push until it is accepted or dropped."""
        self._held[unit, offer.t] = push

    def drop(self, unit: str, offer: Offer) -> None:
        """Forget a push that is not accepted. Idempotent."""
        self._held.pop((unit, offer.t), None)

    def accept(self, unit: str, offer: Offer) -> None:
        """Keep a held push for the order that merges it.

        Raises ValueError if the fragment has changed since the push was decoded, which the coordinator rules out.
        """
        push = self._held.pop((unit, offer.t))
        if push.anchor != self._versions[offer.fragment]:
            raise ValueError(
                f"fragment {offer.fragment} of outer step {offer.t} from unit {unit} was decoded against version {push.anchor}; "
                f"the fragment is at version {self._versions[offer.fragment]} now"
            )
        self._accepted[offer.t][unit] = push

    def discard(self, t: int, unit: str) -> None:
        """Forget an accepted contribution that must not be merged. Idempotent."""
        waiting = self._accepted.get(t, {})
        waiting.pop(unit, None)
        if not waiting:
            self._accepted.pop(t, None)

    # --- merging ------------------------------------------------------------------------------------------------------

    def compute(self, close: Close) -> Update | None:
        """Merge as ordered and compute the outer step; None if the result is not finite. Changes nothing, so any thread may call it.

        Raises ValueError if the fragment is not at version `close.base`, KeyError if a contribution is missing.
        """
        p = close.fragment
        if self._versions[p] != close.base:
            raise ValueError(
                f"the order to merge outer step {close.t} is about version {close.base} of fragment {p}, not {self._versions[p]}"
            )
        given = [self._accepted[close.t][unit] for unit in close.units]
        how = self._merge
        fragment, take = self.fragments[p], self.memory.floats
        vectors, norms = [push.gradient.vector(take) for push in given], [push.norms for push in given]
        merged = merge(fragment, vectors, norms, close.weights, how.method, how.embeddings, take(fragment.size))
        return self._step(close.t, p, merged)

    def redo(self, t: int, p: int, gradient: Array) -> Update | None:
        """Repeat the outer step of a former merge, which made version t of fragment p from this merged outer gradient. The value has the
        same bytes as then. None if it is not finite. Raises ValueError before the seed."""
        update = self._step(t, p, MergedGradient(gradient))
        if update is not None:
            self._put(update)
        return update

    def _step(self, t: int, p: int, merged: MergedGradient) -> Update | None:
        """Compute the outer step for a merged outer gradient; None if the result is not finite. Changes nothing."""
        optimizer, take = self._optimizer, self.memory.floats
        onto = self._residual[p] if self.coding.delta else self.value(p)
        stepped = nesterov(merged.delta, self._momentum[p], onto, optimizer.learning_rate, optimizer.momentum, take)
        if stepped is None or (coded := self._code(p, stepped[0])) is None:
            return None
        payload, value, residual = coded
        return Update(t, p, self._versions[p], payload, value, _frozen(stepped[1]), residual, merged.delta, merged.cosine)

    def hold_update(self, close: Close, update: Update | None) -> None:
        """Keep the result of `compute` until it is installed."""
        self._computed[close.t] = update

    def install(self, close: Close) -> memoryview | None:
        """Put the held update in place, and forget the contributions. Returns the update in the job's coding, None if it was not finite.
        Takes no time."""
        update = self._computed.pop(close.t)
        self._accepted.pop(close.t, None)
        self._keep_memory(len(close.units))
        if update is None:
            return None
        self._put(update)
        return update.payload

    def _put(self, update: Update) -> None:
        p = update.fragment
        self._seeded_values()[p], self._momentum[p], self._residual[p] = update.value, update.momentum, update.residual
        self._versions[p] = update.t

    def _code(self, p: int, stepped: Array) -> tuple[memoryview, Array, Array | None] | None:
        """Return (payload, new value, new residual) of fragment p; None if one is not finite. `stepped`: the new value for FLOAT32, else
        the update plus what the coding of former updates has left out."""
        try:
            payload = codec.encode(self.coding, stepped, take=self.memory.take)
            if not self.coding.delta:
                return payload, _frozen(stepped), None
            if self.coding is not Coding.INT4_DELTA:
                return payload, _frozen(codec.value_of(self.coding, payload, self.value(p), stepped)), None
            value = _frozen(codec.value_of(self.coding, payload, self.value(p), self.memory.floats(stepped.size)))
            # The levels of Int4 are coarse: without the residual, an update below half a level would be lost each time.
            codec.leave_rounding_error(self.coding, payload, stepped)
            return payload, value, _frozen(stepped)
        except codec.NonFiniteError:
            return None

    def _keep_memory(self, units: int) -> None:
        """Keep memory for exchanges with `units` contributions each, and for one more payload of each unit that is on its way."""
        for size in self._array_pieces | self._payload_pieces:  # in FLOAT32 payloads are as large as arrays
            limit = 0
            if size in self._array_pieces:
                limit += _ARRAYS_OF_A_MERGE
            if size in self._payload_pieces:
                limit += (_EXCHANGES_IN_FLIGHT + 1) * units + _PAYLOADS_OF_A_MERGE
            self.memory.keep(size, limit)

    def _seeded_values(self) -> list[Array]:
        if self._values is None:
            raise ValueError("the job has no parameters yet")
        return self._values


def _frozen(x: Array) -> Array:
    x.flags.writeable = False
    return x
