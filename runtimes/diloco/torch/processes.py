"""What the ranks of a unit say to each other about their parameters, with torch.distributed: every rank calls every function.

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
    """Return the groups of ranks, this one among them, that hold the same pieces, and what this rank owns of `held` and of `frozen`.

    Raises LayoutError when the ranks have different models, or do not hold all of one between them.
    """
    layout = Layout(part.spec for part in parts.values())
    every = [place.piece for place in (*held.values(), *frozen.values())]
    said = json.dumps([layout.fingerprint, [[piece.tensor, piece.start, piece.size] for piece in every]])
    of_ranks = [json.loads(one) for one in gather_bytes(said.encode(), device)]
    for rank, (fingerprint, _) in enumerate(of_ranks):
        if fingerprint != of_ranks[0][0]:
            raise LayoutError(
                f"rank {rank} trains other parameters than rank 0: all ranks of a unit call join with the same model, sharded or not; "
                "stages of a pipeline are not supported"
            )
    pieces = [[Piece(name, tuple(start), tuple(size)) for name, start, size in one] for _, one in of_ranks]
    trained = divide([[piece for piece in each if piece.tensor in parts] for each in pieces])
    rest = divide([[piece for piece in each if piece.tensor not in parts] for each in pieces])
    rank = distributed.get_rank()
    try:
        check_cover(layout, [[piece for group in trained for piece in group.of(one)] for one in range(len(pieces))])
    except PieceError as error:
        raise LayoutError(f"the ranks of this unit do not hold the model exactly once: {error}") from error
    replicas = [Replicas(group) for group in trained if len(group.ranks) > 1]
    return [one for one in replicas if one.index >= 0], _owned(trained, held, rank), _owned(rest, frozen, rank)


def _owned(groups: Sequence[Group], held: Mapping[str, Place], rank: int) -> dict[str, Place]:
    return {piece.tensor: held[piece.tensor].inner(piece) for group in groups for piece in group.of(rank)}


def world_of(device: torch.device, data_parallel: tuple[int, int] | None) -> World | None:
    """Return the ranks of torch.distributed; None: there is one process. `device`: one that the default process group can send from.
    `data_parallel`: as of `join`. Raises ValueError if that cannot be."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    data = None if data_parallel is None else DataRank(*data_parallel)
    return World(distributed.get_rank(), distributed.get_world_size(), lambda given: gather_bytes(given, device), data)


def add_up(sums: Mapping[str, int], device: torch.device) -> dict[str, int]:
    """Return the sums over all ranks, by name."""
    total: dict[str, int] = {}
    for one in gather_bytes(json.dumps(dict(sums)).encode(), device):
        for name, value in json.loads(one).items():
            total[name] = total.get(name, 0) + value
    return total


def gather_bytes(data: bytes, device: torch.device) -> list[bytes]:
    """Return what each rank has given, in the order of ranks. `device`: one that the default process group can send from."""
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    sizes = _gather(torch.tensor([len(data)], dtype=torch.int64, device=device), None, distributed.get_world_size())
    padded = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=device)
    padded[: len(data)] = own
    parts = _gather(padded, None, len(sizes)).view(len(sizes), -1).cpu()
    return [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]


class Replicas:
    """A group of ranks that hold the same pieces, of which each owns a share."""

    def __init__(self, group: Group) -> None:
        """Make a process group unless these are all ranks. On every rank, also outside of the group, in one order."""
        self.group = group
        rank = distributed.get_rank()
        self.index = group.ranks.index(rank) if rank in group.ranks else -1
        """Index of this process among the ranks of the group; -1: it is none of them."""
        everyone = len(group.ranks) == distributed.get_world_size()
        made = None if everyone else distributed.new_group(list(group.ranks))
        self._process_group = made if isinstance(made, distributed.ProcessGroup) else None  # of other ranks: a placeholder

    def exchange(self, own: torch.Tensor, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        """Give `own`, flat, and get what each rank of the group gave: one collective. `sizes`: elements that each gives."""
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
