"""Which label dialects the nodes of a cluster speak, and so for which labels a pod asks that names no node. Pure.

See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from diloco_operator.accelerators.catalogue import CATALOGUE, identify
from diloco_operator.accelerators.labels import DIALECTS, LabelDialect, NodeLabels


class Sign(NamedTuple):
    """Evidence that some node speaks a dialect."""

    dialect: LabelDialect
    accelerator: str
    """The kind of the node. "" if only a mark of its cloud tells the dialect; the node may have no accelerators."""


def signs(labels: Mapping[str, str]) -> Iterable[Sign]:
    """Yield the signs that a node with these labels shows."""
    identified = identify(labels)
    if identified is not None:
        accelerator, entry = identified
        yield Sign(entry.dialect, accelerator.name)
    for dialect in DIALECTS:
        if any(mark in labels for mark in dialect.marks):
            yield Sign(dialect, "")


def spoken_labels(accelerator: str, signs: Collection[Sign]) -> Sequence[NodeLabels]:
    """Return the labels to ask for nodes of this kind with, as alternatives. Empty for a kind without labels. `signs`: of the cluster's
    nodes.

    Cloud labels on nodes of the kind decide first, because a node that does not exist yet will have them, too; then the marks of clouds; at
    last the labels of feature discoveries, which only existing nodes have. If nothing is known, all labels are returned.
    """
    row = CATALOGUE[accelerator].labels
    of_kind = {sign.dialect for sign in signs if sign.accelerator == accelerator}
    marked = {sign.dialect for sign in signs if not sign.accelerator}
    for spoken in ({dialect for dialect in of_kind if not dialect.discovers}, marked, of_kind):
        if entries := [entry for entry in row if entry.dialect in spoken]:
            return entries
    return row


def only_cloud(signs: Collection[Sign]) -> str:
    """Return the domain of the labels that say how nodes are paid for, if all marks are of one cloud. "" if they are of several or none."""
    domains = {sign.dialect.payment for sign in signs if not sign.accelerator}
    return domains.pop() if len(domains) == 1 else ""
