"""The accelerator catalogue: one row says everything about a kind of hardware, and all other code is derived from the rows. Pure.

See docs/decisions/0126-accelerator-catalogue.md.
"""

from diloco_operator.accelerators.catalogue import (
    ACCELERATOR_LABELS,
    ACCELERATOR_NAMES,
    BUILT_IN,
    CATALOGUE,
    UnitShape,
    extend,
    has_accelerator_label,
    identify,
    is_incidental,
    of_family,
    unit_shape,
)
from diloco_operator.accelerators.dialects import Sign, only_cloud, signs, spoken_labels
from diloco_operator.accelerators.labels import NodeLabels
from diloco_operator.accelerators.model import CPU, MAX_NAME, NAME_PATTERN, NVIDIA_GPU, Accelerator, Access, Family
from diloco_operator.accelerators.topology import chip_count, parse_topology

__all__ = [
    "ACCELERATOR_LABELS",
    "ACCELERATOR_NAMES",
    "BUILT_IN",
    "CATALOGUE",
    "CPU",
    "MAX_NAME",
    "NAME_PATTERN",
    "NVIDIA_GPU",
    "Accelerator",
    "Access",
    "Family",
    "NodeLabels",
    "Sign",
    "UnitShape",
    "chip_count",
    "extend",
    "has_accelerator_label",
    "identify",
    "is_incidental",
    "of_family",
    "only_cloud",
    "parse_topology",
    "signs",
    "spoken_labels",
    "unit_shape",
]
