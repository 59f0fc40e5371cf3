"""How the ranks of a unit agree on their parameters, with torch.distributed. Every rank must call every function.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import distributed

from diloco.algorithm.layout import Layout, LayoutError
from diloco.algorithm.ownership import Group, divide
from diloco.algorithm.pieces import Piece, PieceError, check_cover
from diloco.canonical import Part
from diloco.ranks.samples import DataRank
from diloco.ranks.world import World
from diloco.torch.places import Place


def agree(
    parts: Mapping[str, Part], held: Mapping[str, Place], frozen: Mapping[str, Place], device: torch.device
) -> tuple[list[Replicas], dict[str, Place], dict[str, Place]]:
    """Return the groups of this rank with others that hold the same pieces, and what this rank owns of `held` and of `frozen`.

    Raises LayoutError if the ranks have different models, or do not hold the whole model together.
    """
    layout = Layout(part.spec for part in parts.values())
    every = [place.piece for place in (*held.values(), *frozen.values())]
    description = json.dumps([layout.fingerprint, [[piece.tensor, piece.start, piece.size] for piece in every]])
    of_ranks = [json.loads(x) for x in gather_bytes(description.encode(), device)]
    for rank, (fingerprint, _) in enumerate(of_ranks):
        if fingerprint != of_ranks[0][0]:
            raise LayoutError(
                f"rank {rank} trains other parameters than rank 0: all ranks of a unit call join with the same model, sharded or not; "
                "stages of a pipeline are not supported"
            )
    pieces = [[Piece(name, tuple(start), tuple(size)) for name, start, size in x] for _, x in of_ranks]
    trained = divide([[piece for piece in of_rank if piece.tensor in parts] for of_rank in pieces])
    rest = divide([[piece for piece in of_rank if piece.tensor not in parts] for of_rank in pieces])
    rank = distributed.get_rank()
    try:
        check_cover(layout, [[piece for group in trained for piece in group.of(x)] for x in range(len(pieces))])
    except PieceError as error:
        raise LayoutError(f"the ranks of this unit do not hold the model exactly once: {error}") from error
    replicas = [Replicas(group) for group in trained if len(group.ranks) > 1]
    # Every rank makes all `Replicas`, as each is a collective, and keeps those that it is in.
    return [x for x in replicas if x.index >= 0], _owned(trained, held, rank), _owned(rest, frozen, rank)


def _owned(groups: Sequence[Group], held: Mapping[str, Place], rank: int) -> dict[str, Place]:
    return {piece.tensor: held[piece.tensor].inner(piece) for group in groups for piece in group.of(rank)}


def world_of(device: torch.device, data_parallel: tuple[int, int] | None) -> World | None:
    """Return the ranks of torch.distributed; None if there is only one process. Raises ValueError for a `data_parallel` that cannot be.

    `device`: one that the default process group can send from. `data_parallel`: the argument of `join`.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    data = None if data_parallel is None else DataRank(*data_parallel)
    return World(distributed.get_rank(), distributed.get_world_size(), lambda given: gather_bytes(given, device), data)


def add_up(sums: Mapping[str, int], device: torch.device) -> dict[str, int]:
    """Return the sums over all ranks, by name."""
    total: dict[str, int] = {}
    for given in gather_bytes(json.dumps(dict(sums)).encode(), device):
        for name, value in json.loads(given).items():
            total[name] = total.get(name, 0) + value
    return total


def gather_bytes(data: bytes, device: torch.device) -> list[bytes]:
    """Return the data of each rank, in the order of ranks. `device`: one that the default process group can send from."""
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    sizes = _gather(torch.tensor([len(data)], dtype=torch.int64, device=device), None, distributed.get_world_size())
    padded = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=device)
    padded[: len(data)] = own
    parts = _gather(padded, None, len(sizes)).view(len(sizes), -1).cpu()
    return [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]


class Replicas:
    """A group of ranks that hold the same pieces. Each rank owns a share of them."""

    def __init__(self, group: Group) -> None:
        """Make a process group, unless the group has all ranks. Every rank must call this for all groups in the same order, also for groups
        that it is not in."""
        self.group = group
        rank = distributed.get_rank()
        self.index = group.ranks.index(rank) if rank in group.ranks else -1
        """Index of this process among the ranks of the group; -1 if it is not in the group."""
        everyone = len(group.ranks) == distributed.get_world_size()
        process_group = None if everyone else distributed.new_group(list(group.ranks))
        # Outside of the group, new_group returns a placeholder.
        self._process_group = process_group if isinstance(process_group, distributed.ProcessGroup) else None

    def exchange(self, own: torch.Tensor, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        """Send `own`, flat, to the group, and return what each rank has sent, in one collective. `sizes`: elements that each rank sends."""
        given = own
        if own.numel() < (most := max(sizes)):
            given = torch.zeros(most, dtype=own.dtype, device=own.device)
            given[: own.numel()] = own
        parts = _gather(given, self._process_group, len(sizes)).view(len(sizes), -1)
        return (part[:size] for part, size in zip(parts, sizes, strict=True))


def _gather(own: torch.Tensor, group: distributed.ProcessGroup | None, ranks: int) -> torch.Tensor:
    result = torch.empty(ranks * own.numel(), dtype=own.dtype, device=own.device)
    distributed.all_gather_into_tensor(result, own, group=group)
    return result
