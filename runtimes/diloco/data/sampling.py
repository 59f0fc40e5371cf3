"""Maps sequence numbers to samples, by arithmetic that is equal in every process and needs no memory that grows with the data.

The job's work is the sequence 0, 1, 2, …; epoch e is the numbers [e*n, (e+1)*n) for n samples. Within an epoch every sample occurs once,
in the order of a seeded permutation. The permutation is a Feistel network over the smallest power of two >= n. Results outside 0..n-1 go
through it again until they fall inside (cycle walking; fewer than two rounds on average).

See docs/decisions/0003-sessions-and-work.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diloco.wording import plural

Numbers = NDArray[np.int64]

_ROUNDS: Final = 8
"""Each round changes one half by a hash of the other. With an ideal hash four rounds make a strong pseudo-random permutation (Luby,
Rackoff)."""
_MASK64: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): 64 bits to 64 bits, one to one."""
    x &= _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _mix_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same as `_mix` for an array, in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@dataclass(frozen=True, slots=True)
class Permutation:
    """A seeded one-to-one map of 0..size-1 onto itself. `size` from 1 to 2^62."""

    size: int
    key: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 1 << 62:
            raise ValueError(f"cannot permute {plural(self.size, 'sample')}; there must be from 1 to 2^62")

    def forward(self, positions: Numbers) -> Numbers:
        """Return the sample at each position of the order. Raises ValueError for a position outside 0..size-1."""
        if positions.size and (positions.min() < 0 or positions.max() >= self.size):
            raise ValueError(f"numbers from {positions.min()} to {positions.max()} are not all in 0..{self.size - 1}")
        out = self._network(np.ravel(positions).astype(np.uint64))
        outside = np.flatnonzero(out >= self.size)
        while outside.size:
            again = self._network(out[outside])
            out[outside] = again
            outside = outside[again >= self.size]
        return out.astype(np.int64).reshape(positions.shape)

    def _network(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        bits = max(2, (self.size - 1).bit_length())  # at least one bit in each half
        low_bits = np.uint64(bits // 2)
        low_mask, high_mask = np.uint64((1 << (bits // 2)) - 1), np.uint64((1 << (bits - bits // 2)) - 1)
        low, high = x & low_mask, x >> low_bits
        for r in range(_ROUNDS):
            key = np.uint64(_mix(self.key + (r + 1) * _GOLDEN))
            if r % 2:
                high ^= _mix_array(low + key) & high_mask
            else:
                low ^= _mix_array(high + key) & low_mask
        return (high << low_bits) | low


def epoch_permutation(samples: int, seed: int, epoch: int) -> Permutation:
    return Permutation(samples, _mix(_mix(seed) + epoch * _GOLDEN))


def sample_indices(numbers: Numbers, samples: int, seed: int) -> Numbers:
    """Return the sample, 0..samples-1, of each sequence number (>= 0, any shape)."""
    if samples < 1:
        raise ValueError(f"there are {samples} samples, so nothing to train on")
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"sequence numbers count from 0, not {numbers.min()}")
    epochs, positions = np.divmod(numbers.astype(np.int64, copy=False), samples)
    out = np.empty_like(positions)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        out[in_epoch] = epoch_permutation(samples, seed, int(epoch)).forward(positions[in_epoch])
    return out
