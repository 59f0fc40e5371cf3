"""Reads the simulated nodes from the file of `--fleet`."""

from __future__ import annotations

from collections.abc import Sequence

from diloco_local.nodes import BadNode, complete, this_machine
from diloco_operator.api.names import NODES
from diloco_operator.kube.client import Obj

from diloco_cli.manifests import ManifestError, load_manifests


class BadFleet(Exception):
    """The file cannot be used. `sentences` has one for each problem."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("\n".join(sentences))


def load_fleet(file: str | None) -> list[Obj]:
    """Read the Node manifests in `file`, completed as by a kubelet. None stands for this machine as cpu nodes. Raises BadFleet."""
    if file is None:
        return [complete(node) for node in this_machine()]
    try:
        manifests = load_manifests([file], kinds=(NODES.kind,))
    except ManifestError as error:
        raise BadFleet([str(problem) for problem in error.problems]) from error
    nodes, wrong = [], []
    for manifest in manifests:
        try:
            nodes.append(complete(manifest.obj))
        except BadNode as error:
            wrong.append(f"{manifest.file}: document {manifest.document}: {error}")
    if wrong:
        raise BadFleet(wrong)
    return nodes
