"""Free slices by where they are: a unit of several hosts gets slices that are near to each other. Pure.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from diloco_operator.api.spec import Locality
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.slices import Slice

DEPTH = {Locality.ANY: 0, Locality.ZONE: 1, Locality.BLOCK: 2}
"""Length of the domain that all hosts of a unit must share."""


class DomainRooms:
    """Free slices, sorted into every domain that contains them and is as near as a unit needs."""

    def __init__(self, slices: Iterable[Slice], locality: Locality) -> None:
        self._depth = DEPTH[locality]
        self._paths: dict[str, Domain] = {}
        """Key of a slice -> its nearest domain. Within a network block, or a zone without blocks, a node pool counts as a domain."""
        self._slices: dict[Domain, dict[str, Slice]] = {}
        for slice_ in slices:
            self._paths[slice_.key] = path = (*slice_.locality, f"pool {slice_.node_pool}")
            for domain in self._around(path):
                self._slices.setdefault(domain, {})[slice_.key] = slice_

    def _around(self, path: Domain) -> Iterator[Domain]:
        """Yield the domains that contain the slice of this path, from the widest that is near enough to the nearest."""
        return (path[:depth] for depth in range(self._depth, len(path) + 1))

    def take(self, count: int) -> list[Slice]:
        """Take `count` slices of the nearest domain that has as many, or of the smallest of these. Empty if no domain that is near enough
        has as many."""
        # The smallest, so that large domains stay large.
        fitting = (domain for domain, slices in self._slices.items() if len(slices) >= count)
        nearest = min(fitting, key=lambda domain: (-len(domain), len(self._slices[domain])), default=None)
        taken = list(itertools.islice(self._slices[nearest].values(), count)) if nearest is not None else []
        for slice_ in taken:
            self.discard(slice_)
        return taken

    def discard(self, slice_: Slice) -> None:
        """Remove a slice that was taken by other means, if it is here."""
        path = self._paths.pop(slice_.key, None)
        if path is not None:
            for domain in self._around(path):
                del self._slices[domain][slice_.key]
