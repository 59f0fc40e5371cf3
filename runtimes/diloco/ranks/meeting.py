"""The meeting of a unit's ranks: whether what each says of itself agrees with the leader. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diloco.ranks.ranks_pb2 import RankHello
from diloco.wording import plural


def disagreement(leader: RankHello, other: RankHello) -> str:
    """Return for people why a rank cannot be of the leader's unit. Empty if it can."""
    who = f"rank {other.rank} of unit {leader.unit}"
    if (other.job_uid, other.unit, other.attempt) != (leader.job_uid, leader.unit, leader.attempt):
        return (
            f"{who} is attempt {other.attempt} of unit {other.unit} in job {other.job_uid}; the leader is attempt {leader.attempt} of unit "
            f"{leader.unit} in job {leader.job_uid}"
        )
    if other.ranks != leader.ranks:
        return f"{who} counts {plural(other.ranks, 'rank')}, the leader {leader.ranks}: start all of them with one world size"
    if not 0 < other.rank < leader.ranks:
        return f"{who} does not exist: its ranks are 0 to {leader.ranks - 1}, and 0 is the leader"
    if other.framework != leader.framework:
        return f"{who} trains with {other.framework}, the leader with {leader.framework}"
    if other.fingerprint != leader.fingerprint:
        return f"{who} has another model than the leader: names and shapes of the parameters must be the same on all ranks"
    differing = sorted(name for name, dtype in leader.dtypes.items() if other.dtypes.get(name) != dtype)
    if differing:
        name = differing[0]
        first = f" (the first of {len(differing)} that differ)" if len(differing) > 1 else ""
        kept, expected = other.dtypes.get(name, "no type"), leader.dtypes[name]
        return (
            f"{who} keeps tensor {name!r} in {kept}, rank 0 (the leader) in {expected}{first}: give the model the same types on all ranks, "
            "which bring each other what they hold in common"
        )
    if other.data_ranks != leader.data_ranks or other.data_rank >= leader.data_ranks:
        return (
            f"{who} trains part {other.data_rank} of {other.data_ranks} of the unit's batch, and the leader cuts it into "
            f"{leader.data_ranks}: give join the same data_parallel count on all ranks"
        )
    return ""


def absent(ranks: int, present: Collection[int]) -> str:
    """Return the ranks that have not come, in words: `rank 3`, `ranks 1, 2 and 5`, of many the first ten. Empty if all have come."""
    missing = [rank for rank in range(ranks) if rank not in present]
    if not missing:
        return ""
    if len(missing) == 1:
        return f"rank {missing[0]}"
    if len(missing) > 10:
        return f"ranks {', '.join(map(str, missing[:10]))} and {len(missing) - 10} more"
    return f"ranks {', '.join(map(str, missing[:-1]))} and {missing[-1]}"


def counting(data_ranks: Sequence[int]) -> list[int]:
    """Return the ranks whose tokens count: the first rank of each part of the unit's batch. `data_ranks` has each rank's part."""
    return [rank for rank, part in enumerate(data_ranks) if data_ranks.index(part) == rank]
