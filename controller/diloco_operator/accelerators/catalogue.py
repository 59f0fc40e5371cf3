"""Look-ups in the accelerator catalogue: by name, by family, and by the labels of a node; and the shape of a unit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from diloco_operator.accelerators.labels import DIALECTS, VENDOR_LABELS, NodeLabels
from diloco_operator.accelerators.model import Accelerator, Family
from diloco_operator.accelerators.rows import ROWS
from diloco_operator.accelerators.topology import chip_count

CATALOGUE: Mapping[str, Accelerator] = MappingProxyType({accelerator.name: accelerator for accelerator in ROWS})
"""Every kind by its name."""
ACCELERATOR_NAMES: tuple[str, ...] = tuple(CATALOGUE)


def of_family(*families: Family) -> tuple[str, ...]:
    """Names of the kinds of these families."""
    return tuple(accelerator.name for accelerator in ROWS if accelerator.family in families)


def _index() -> dict[str, dict[str, list[tuple[Accelerator, NodeLabels]]]]:
    """Label key -> value -> rows, in the order in which the dialects decide."""
    found: dict[str, dict[str, list[tuple[Accelerator, NodeLabels]]]] = {}
    entries = [(accelerator, labels) for accelerator in ROWS for labels in accelerator.labels]
    for accelerator, labels in sorted(entries, key=lambda entry: DIALECTS.index(entry[1].dialect)):
        for value in labels.values:
            found.setdefault(labels.key, {}).setdefault(value, []).append((accelerator, labels))
    return found


_BY_LABEL = _index()
ACCELERATOR_LABELS: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            *(dialect.key for dialect in DIALECTS if dialect.key and not dialect.shared),
            *(labels.key for accelerator in ROWS for labels in accelerator.labels if not labels.dialect.shared),
            *VENDOR_LABELS,
        ]
    )
)
"""Keys of labels that only nodes with accelerators have."""


def identify(labels: Mapping[str, str]) -> tuple[Accelerator, NodeLabels] | None:
    """The accelerator of a node with these labels, and the entry of its row that says so; None when no row matches."""
    for key, by_value in _BY_LABEL.items():
        for accelerator, entry in by_value.get(labels.get(key, ""), ()):
            if entry.matches(labels):
                return accelerator, entry
    return None


def has_accelerator_label(labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels has accelerators, be they in the catalogue or not."""
    return any(key in labels for key in ACCELERATOR_LABELS)


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
        """Prior for the speed of a unit, dense bfloat16 TFLOP/s; 0 for cpu."""
        return self.accelerators * CATALOGUE[self.accelerator].peak_tflops


def unit_shape(
    accelerator: str,
    *,
    topology: str = "",
    chips_per_host: int | None = None,
    hosts: int | None = None,
    accelerators_per_host: int | None = None,
) -> UnitShape:
    """Hosts and accelerators of a unit, from the fields of a pool. Raises ValueError where the CRD's rules do not hold.

    TPU: hosts = chips of the topology / chips per host. Other families: hosts as given, 1 by default.
    """
    kind = CATALOGUE.get(accelerator)
    if kind is None:
        raise ValueError(f"accelerator {accelerator!r} is not in the catalogue: {', '.join(ACCELERATOR_NAMES)}")
    if kind.family is Family.TPU:
        options = kind.host_options.get(topology)
        if options is None:
            raise ValueError(f"{accelerator} has no topology {topology!r}; it has {kind.topology_rule}")
        size = chips_per_host if chips_per_host is not None else options[0] if len(options) == 1 else None
        if size not in options:
            raise ValueError(f"{accelerator} {topology} needs chipsPerHost of {' or '.join(map(str, options))}, not {chips_per_host}")
        return UnitShape(accelerator, chip_count(topology) // size, size, kind.resource, topology)
    per_host = 0 if kind.family is Family.CPU else accelerators_per_host or kind.host_sizes[-1]
    return UnitShape(accelerator, hosts or 1, per_host, kind.resource)
