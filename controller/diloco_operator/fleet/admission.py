"""What admission adds to a pod and so changes where it fits: a namespace's default node selector and tolerations, the defaults of a
LimitRange, what webhooks add. Pure.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from diloco_operator.fleet.node import Toleration
from diloco_operator.fleet.resources import Resources, learner_resources
from diloco_operator.kube.fields import Fields, objects, string, strings

_OF_EVERY_POD = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that the API server lets every pod tolerate for some minutes, unless the pod says otherwise."""


class AdmittedPod(NamedTuple):
    """A pod as the API server stores it."""

    node_selector: frozenset[tuple[str, str]]
    tolerations: frozenset[Toleration]
    requests: Resources

    def added_labels(self, asked: Mapping[str, str]) -> dict[str, str]:
        """Return the labels of its node selector whose keys are not in `asked`, the template's."""
        return {key: value for key, value in self.node_selector if key not in asked}

    def added_tolerations(self, asked: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
        """Return the tolerations that neither the template has (`asked`) nor every pod gets."""
        added = (each for each in self.tolerations.difference(asked) if each.key not in _OF_EVERY_POD)
        return tuple(sorted(added, key=lambda each: (each.key, each.operator, each.value, each.effect)))


class KnownAdmission(NamedTuple):
    """What is known of the pods that are made from one template."""

    template_hash: str
    seen: float
    """When the newest of them was last observed, in seconds since the epoch."""
    pod: AdmittedPod


def admitted_pod(spec: Fields) -> AdmittedPod:
    """Project the spec of a stored pod. Raises `MalformedField`."""
    return _shared(frozenset(strings(spec, "nodeSelector", "spec").items()), frozenset(tolerations_of(spec)), learner_resources(spec))


def tolerations_of(spec: Fields) -> tuple[Toleration, ...]:
    """Return the tolerations of a PodSpec. Raises `MalformedField`."""
    at = "spec.tolerations[]"
    return tuple(
        Toleration(string(each, "key", at), string(each, "operator", at) or "Equal", string(each, "value", at), string(each, "effect", at))
        for each in objects(spec, "tolerations", "spec")
    )


@functools.lru_cache(maxsize=4096)
def _shared(node_selector: frozenset[tuple[str, str]], tolerations: frozenset[Toleration], requests: Resources) -> AdmittedPod:
    return AdmittedPod(node_selector, tolerations, requests)
