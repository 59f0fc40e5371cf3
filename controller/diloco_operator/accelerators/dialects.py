"""Which dialect of labels the nodes of a cluster speak, and so which labels a pod asks for that names no node. Pure.

See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from diloco_operator.accelerators.catalogue import CATALOGUE, identify
from diloco_operator.accelerators.labels import DIALECTS, LabelDialect, NodeLabels


class Sign(NamedTuple):
    """That some node speaks a dialect."""

    dialect: LabelDialect
    accelerator: str
    """The kind of the node; "": it may have no accelerators, and only a mark of its cloud tells the dialect."""


def signs(labels: Mapping[str, str]) -> Iterable[Sign]:
    """Return the signs of a node with these labels."""
    found = identify(labels)
    if found is not None:
        accelerator, entry = found
        yield Sign(entry.dialect, accelerator.name)
    for dialect in DIALECTS:
        if any(mark in labels for mark in dialect.marks):
            yield Sign(dialect, "")


def spoken_labels(accelerator: str, there: Collection[Sign]) -> Sequence[NodeLabels]:
    """Return the labels by which nodes of this kind are asked for, alternatives; none for a kind without labels. `there`: of the nodes of
    the cluster.

    What a cloud says of nodes of the kind comes first: a node that does not exist yet has these labels, too. Then the marks of clouds, and
    last what feature discoveries say, which is true only of nodes that exist. Where nothing is known, every dialect may be it."""
    row = CATALOGUE[accelerator].labels
    of_kind = {sign.dialect for sign in there if sign.accelerator == accelerator}
    marked = {sign.dialect for sign in there if not sign.accelerator}
    for spoken in ({dialect for dialect in of_kind if not dialect.discovers}, marked, of_kind):
        if found := [entry for entry in row if entry.dialect in spoken]:
            return found
    return row


def only_cloud(there: Collection[Sign]) -> str:
    """Return the domain of the labels that say how nodes are paid for, where all marks are of one cloud; "": of several, or of none."""
    domains = {sign.dialect.payment for sign in there if not sign.accelerator}
    return domains.pop() if len(domains) == 1 else ""
