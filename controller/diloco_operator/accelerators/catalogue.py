"""Look-ups in the accelerator catalogue by name, family, and labels of a node; and the shape of a unit. Pure, except that a program may
`extend` the catalogue once, when it starts.

See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from diloco_operator.accelerators.incidental import BUILT_IN_INCIDENTAL, covers, patterns
from diloco_operator.accelerators.labels import DIALECTS, VENDOR_LABELS, NodeLabels
from diloco_operator.accelerators.model import Accelerator, Family
from diloco_operator.accelerators.rows import ROWS
from diloco_operator.accelerators.topology import chip_count

BUILT_IN: Mapping[str, Accelerator] = MappingProxyType({accelerator.name: accelerator for accelerator in ROWS})
"""The built-in kinds, by name."""
ACCELERATOR_NAMES: tuple[str, ...] = tuple(BUILT_IN)
"""Names of the built-in kinds."""
_kinds = dict(BUILT_IN)
CATALOGUE: Mapping[str, Accelerator] = MappingProxyType(_kinds)
"""All kinds by name, also from the catalogue file of this process."""


def of_family(*families: Family) -> tuple[str, ...]:
    """Return the names of the built-in kinds of these families."""
    return tuple(accelerator.name for accelerator in ROWS if accelerator.family in families)


type _Index = dict[str, dict[str, list[tuple[Accelerator, NodeLabels]]]]


def _index(kinds: Iterable[Accelerator]) -> _Index:
    """Return label key -> value -> rows, with keys in the order in which the dialects decide."""
    index: _Index = {}
    entries = [(accelerator, labels) for accelerator in kinds for labels in accelerator.labels]
    order = {dialect: position for position, dialect in enumerate(DIALECTS)}
    # Labels of a dialect that only a catalogue file has come first: the cluster's administrator knows its nodes best.
    for accelerator, labels in sorted(entries, key=lambda entry: order.get(entry[1].dialect, -1)):
        for value in labels.values:
            index.setdefault(labels.key, {}).setdefault(value, []).append((accelerator, labels))
    return index


def _own_labels(kinds: Iterable[Accelerator]) -> dict[str, None]:
    return dict.fromkeys(labels.key for accelerator in kinds for labels in accelerator.labels if not labels.dialect.shared)


_by_label = _index(ROWS)
_label_keys = dict.fromkeys(dialect.key for dialect in DIALECTS if dialect.key and not dialect.shared)
_label_keys |= _own_labels(ROWS) | dict.fromkeys(VENDOR_LABELS)
ACCELERATOR_LABELS: Mapping[str, None] = MappingProxyType(_label_keys)
"""Keys of the labels that only nodes with accelerators have, in a fixed order."""
_incidental = patterns(BUILT_IN_INCIDENTAL)


def extend(rows: Sequence[Accelerator], incidental: Iterable[str] = ()) -> None:
    """Add the rows and the incidental resources of a catalogue file, for the life of this process. A program must call it before it reads a
    job or a node, or whatever it derived from the catalogue until then would be wrong. Raises RuntimeError at a second call."""
    if len(_kinds) != len(BUILT_IN) or len(_incidental) != len(BUILT_IN_INCIDENTAL):
        raise RuntimeError("the accelerator catalogue is extended already")
    _incidental.update(dict.fromkeys(incidental))
    _kinds.update((row.name, row) for row in rows)
    _by_label.clear()
    _by_label.update(_index(_kinds.values()))
    _label_keys.update(_own_labels(rows))


def identify(labels: Mapping[str, str]) -> tuple[Accelerator, NodeLabels] | None:
    """Return the accelerator of a node with these labels, and the entry of its row that matches them. None if no row matches."""
    for key, by_value in _by_label.items():
        for accelerator, entry in by_value.get(labels.get(key, ""), ()):
            if entry.matches(labels):
                return accelerator, entry
    return None


def has_accelerator_label(labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels has accelerators, in the catalogue or not."""
    return any(key in labels for key in ACCELERATOR_LABELS)


def is_incidental(resource: str) -> bool:
    """Whether an extended resource says nothing about what a node is for, so that units which do not request it may run there."""
    return covers(_incidental, resource)


@dataclass(frozen=True, slots=True)
class UnitShape:
    """What one learner unit occupies."""

    accelerator: str
    hosts: int
    accelerators_per_host: int
    """0 for cpu."""
    resource: str
    topology: str = ""

    @property
    def accelerators(self) -> int:
        return self.hosts * self.accelerators_per_host

    @property
    def peak_tflops(self) -> float:
        """Prior for the speed of a unit, in dense bfloat16 TFLOP/s. 0 for cpu."""
        return self.accelerators * CATALOGUE[self.accelerator].peak_tflops


def unit_shape(
    accelerator: str,
    *,
    topology: str = "",
    chips_per_host: int | None = None,
    hosts: int | None = None,
    accelerators_per_host: int | None = None,
) -> UnitShape:
    """Return the hosts and accelerators of a unit, from the fields of a pool. Raises ValueError if they break the CRD's rules.

    A TPU unit has (chips of the topology / chips per host) hosts. Units of other families have `hosts`, by default 1.
    """
    kind = CATALOGUE.get(accelerator)
    if kind is None:
        raise ValueError(f"accelerator {accelerator!r} is not in the catalogue: {', '.join(CATALOGUE)}")
    if kind.family is Family.TPU:
        options = kind.host_options.get(topology)
        if options is None:
            raise ValueError(f"{accelerator} has no topology {topology!r}; it has {kind.topology_rule}")
        size = chips_per_host
        if size is None and len(options) == 1:
            size = options[0]
        if size not in options:
            raise ValueError(f"{accelerator} {topology} needs chipsPerHost of {' or '.join(map(str, options))}, not {chips_per_host}")
        return UnitShape(accelerator, chip_count(topology) // size, size, kind.resource, topology)
    per_host = 0 if kind.family is Family.CPU else accelerators_per_host or kind.host_sizes[-1]
    return UnitShape(accelerator, hosts or 1, per_host, kind.resource)
