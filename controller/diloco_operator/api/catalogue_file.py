"""Reads the file with which a cluster adds rows to the accelerator catalogue, and incidental resources. Pure.

    apiVersion: config.diloco.dev/v1alpha1
    kind: AcceleratorCatalogue
    accelerators:
      - name: acme-npu2
        resource: acme.com/npu
        labels: [{key: acme.com/product, values: [NPU2]}]
        hostSizes: [4, 8]
    incidentalResources: [acme.com/nic, net.acme.com/*]

See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from diloco_operator.accelerators import CPU, MAX_NAME, NAME_PATTERN, Accelerator, Family, NodeLabels, chip_count, parse_topology
from diloco_operator.accelerators.incidental import covers
from diloco_operator.accelerators.labels import DIALECTS, LabelDialect
from diloco_operator.accelerators.topology import torus
from diloco_operator.api.base import field_path
from diloco_operator.api.names import CONFIG_API_VERSION

KIND = "AcceleratorCatalogue"
MOST_ROWS = 100
# Powers of two only: shares of hosts are fractions that floats add exactly for no other sizes.
_HOST_SIZES = (1, 2, 4, 8, 16)
_MOST_CHIPS_PER_HOST = 8
"""The bound of spec.pools[].chipsPerHost."""
_MOST_TOPOLOGIES = 1000
_KEY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_VALUE = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_RESOURCE = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_DOMAIN_OR_RESOURCE = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/(\*|[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$"

_Key = Annotated[str, Field(pattern=_KEY)]
_Value = Annotated[str, Field(pattern=_VALUE)]


class BadCatalogue(ValueError):
    """`problems`: a sentence each, which begins with the row and the field."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, strict=True)


class Labels(_Part):
    """A label that nodes of the kind have."""

    key: _Key
    values: list[_Value] = Field(min_length=1, max_length=100)
    also: dict[_Key, _Value] = Field(default_factory=dict, max_length=1)
    """A second label that tells the kinds apart, if values of `key` stand for several."""
    topology_key: _Key | None = None
    count_key: _Key | None = None


class _Torus(_Part):
    pod: list[Annotated[int, Field(ge=4, le=128)]] = Field(min_length=3, max_length=3)
    max_chips: Annotated[int, Field(ge=4, le=1_000_000)]


class Row(_Part):
    """One accelerator, as the file has it."""

    name: str = Field(max_length=MAX_NAME, pattern=NAME_PATTERN)
    family: Literal["Host", "TPU"] = "Host"
    resource: str = Field(max_length=253 + 1 + 63, pattern=_RESOURCE)
    labels: list[Labels] = Field(min_length=1, max_length=20)
    taints: list[_Key] = Field(default_factory=list, max_length=20)
    host_sizes: list[int] = Field(default_factory=list, max_length=len(_HOST_SIZES))
    topologies: dict[str, list[int]] = Field(default_factory=dict, max_length=_MOST_TOPOLOGIES)
    torus: _Torus | None = None
    peak_tflops: Annotated[float, Field(ge=0, le=1e6, strict=False)] = 0.0
    memory_gb: Annotated[float, Field(ge=0, le=1e6, strict=False)] = 0.0
    sources: list[Annotated[str, Field(pattern=r"^https?://\S+$", max_length=2000)]] = Field(default_factory=list, max_length=20)


def _exactly(wanted: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value != wanted:
            raise ValueError(f"must be {wanted}, not {value[:100]!r}")
        return value

    return check


class _File(_Part):
    api_version: Annotated[str, AfterValidator(_exactly(CONFIG_API_VERSION))]
    kind: Annotated[str, AfterValidator(_exactly(KIND))]
    accelerators: list[Row] = Field(default_factory=list, max_length=MOST_ROWS)
    incidental_resources: list[Annotated[str, Field(pattern=_DOMAIN_OR_RESOURCE, max_length=253 + 1 + 63)]] = Field(
        default_factory=list, max_length=MOST_ROWS
    )


class CatalogueFile(NamedTuple):
    rows: tuple[Accelerator, ...]
    incidental: tuple[str, ...]
    """Names of extended resources, or `domain/*`."""


def read_catalogue(content: object, built_in: Mapping[str, Accelerator]) -> CatalogueFile:
    """Read a catalogue file. `content`: its YAML as Python objects. Raises `BadCatalogue` with every mistake."""
    try:
        file = _File.model_validate(content)
    except ValidationError as error:
        raise BadCatalogue(_sentence(content, each["loc"], _text(each)) for each in error.errors()) from error
    problems: list[str] = []
    rows: list[Accelerator] = []
    # If one label stood for two kinds, the order of rows would decide the kind of a node.
    taken = {_claim(labels, value): kind.name for kind in built_in.values() for labels in kind.labels for value in labels.values}
    taken_names = dict.fromkeys(built_in, "is built in; rows that are built in cannot be changed, choose another name")
    for index, row in enumerate(file.accelerators):
        mistakes = [*_wrong(row, taken_names.get(row.name, ""))]
        # No accelerator is made from a wrong row: its topologies may not even be numbers.
        accelerator = None if mistakes else _made(row)
        for label_index, labels in enumerate(accelerator.labels if accelerator is not None else ()):
            for value in labels.values:
                other = taken.setdefault(_claim(labels, value), row.name)
                if other != row.name:
                    mistakes.append(
                        (f"labels[{label_index}]", f"{labels.key}={value} already stands for {other}; a label means one accelerator")
                    )
        problems += [f"accelerators[{index}] ({row.name}): {field}: {text}" for field, text in mistakes]
        taken_names.setdefault(row.name, "stands twice in this file; names are unique")
        if accelerator is not None:
            rows.append(accelerator)
    for index, pattern in enumerate(file.incidental_resources):
        # Nodes that have nothing but incidental resources count as CPU hosts: so would the nodes of this kind.
        hidden = next((kind for kind in (*built_in.values(), *rows) if kind.resource and covers({pattern: None}, kind.resource)), None)
        if hidden is not None:
            problems.append(f"incidentalResources[{index}]: pods request {hidden.name} as {hidden.resource}, which {pattern} would hide")
    if problems:
        raise BadCatalogue(problems)
    return CatalogueFile(tuple(rows), tuple(file.incidental_resources))


def _claim(labels: NodeLabels, value: str) -> tuple[str, str, str]:
    return labels.key, value, labels.qualifier


def _wrong(row: Row, name: str) -> Iterator[tuple[str, str]]:
    """Yield (field, what is wrong) for rules that types cannot express. `name`: what is wrong with the row's name, or ""."""
    if name or row.name == CPU:
        yield "name", name or "is the kind of machines without accelerators; choose another name"
    for index, labels in enumerate(row.labels):
        yield from _wrong_labels(f"labels[{index}]", labels, tpu=row.family == "TPU")
    if row.family == "Host":
        if row.topologies or row.torus is not None:
            yield "topologies" if row.topologies else "torus", "is for family TPU; a unit of hosts has no topology"
        if not row.host_sizes:
            yield "hostSizes", "is required: how many accelerators hosts of this kind come with, such as [8]"
        elif any(size not in _HOST_SIZES for size in row.host_sizes):
            yield "hostSizes", f"must be powers of two up to {_HOST_SIZES[-1]}, not {row.host_sizes}"
        return
    if row.host_sizes:
        yield "hostSizes", "is for family Host; the hosts of a TPU follow from its topologies"
    if bool(row.topologies) == (row.torus is not None):
        yield "topologies", "a TPU needs either topologies, each with its chips per host, such as {2x2: [4]}, or torus: {pod, maxChips}"
    for topology, options in row.topologies.items():
        try:
            chips = chip_count(topology)
        except ValueError as error:
            yield f"topologies.{topology}", str(error)
            continue
        if not options or any(not 1 <= size <= _MOST_CHIPS_PER_HOST or chips % size for size in options):
            yield (
                f"topologies.{topology}",
                f"needs chips per host that divide its {chips} chips, at most {_MOST_CHIPS_PER_HOST}, not {options}",
            )
    if len({len(parse_topology(topology)) for topology in row.topologies if "x" in topology and not _is_wrong(topology)}) > 1:
        yield "topologies", "must all have two or all have three dimensions"


def _is_wrong(topology: str) -> bool:
    try:
        parse_topology(topology)
    except ValueError:
        return True
    return False


def _wrong_labels(where: str, labels: Labels, *, tpu: bool) -> Iterator[tuple[str, str]]:
    known = _dialect(labels.key)
    if known is not None:
        if labels.topology_key or labels.count_key:
            yield where, f"topologyKey and countKey of {labels.key} are known; leave them out"
        if set(labels.also) - {known.qualifier}:
            yield where, f"also of {labels.key} can be {known.qualifier} only" if known.qualifier else f"{labels.key} takes no also"
    if tpu and not (known.topology if known is not None else labels.topology_key):
        yield where, f"a TPU needs the topology of a slice from a label: set topologyKey, or use the key {_tpu_keys()}"
    elif tpu and not (known.count if known is not None else labels.count_key):
        yield where, "a TPU needs the chips of a host from a label: set countKey"
    elif not tpu and (labels.topology_key or (known is not None and known.topology)):
        yield where, "labels with a topology are for family TPU"


def _tpu_keys() -> str:
    return " or ".join(dialect.key for dialect in DIALECTS if dialect.topology)


def _dialect(key: str) -> LabelDialect | None:
    return next((dialect for dialect in DIALECTS if dialect.key == key), None)


def _made(row: Row) -> Accelerator:
    tpu = row.family == "TPU"
    options = {topology: tuple(sorted(set(sizes))) for topology, sizes in row.topologies.items()}
    rule = ", ".join(options)
    if row.torus is not None:
        options = torus(*row.torus.pod, max_chips=row.torus.max_chips)
        size = "x".join(map(str, row.torus.pod))
        rule = f"2x2x1, 2x2x2, 2x2x4, 2x4x4, or AxBxC of multiples of 4 with A <= B <= C, at most {size} and {row.torus.max_chips} chips"
    sizes = {size for each in options.values() for size in each} if tpu else set(row.host_sizes)
    return Accelerator(
        row.name,
        Family.TPU if tpu else Family.HOST,
        resource=row.resource,
        labels=tuple(_node_labels(labels) for labels in row.labels),
        # Pods always tolerate a taint with the resource's name, as with the admission plugin ExtendedResourceToleration.
        taints=tuple(dict.fromkeys([row.resource, *row.taints])),
        host_sizes=tuple(sorted(sizes)),
        peak_tflops=row.peak_tflops,
        memory_gb=row.memory_gb,
        host_options=options,
        topology_rule=rule,
        sources=tuple(row.sources),
    )


def _node_labels(labels: Labels) -> NodeLabels:
    """Find the dialect of the key. A key that no dialect has is a dialect of its own."""
    second, value = next(iter(labels.also.items()), ("", ""))
    known = _dialect(labels.key)
    dialect = known or LabelDialect(
        "catalogue file", "", labels.key, second, count=labels.count_key or "", topology=labels.topology_key or ""
    )
    return NodeLabels(dialect, labels.key, tuple(labels.values), value)


# --- in words ----------------------------------------------------------------------------------------------------------
def _sentence(content: object, location: tuple[int | str, ...], text: str) -> str:
    """`accelerators[1] (acme-npu): hostSizes[0]: …`."""
    rows = content.get("accelerators") if isinstance(content, dict) else None
    place = field_path(location)
    index = location[1] if len(location) > 1 and location[0] == "accelerators" else None
    if isinstance(index, int) and isinstance(rows, list) and isinstance(rows[index], dict):
        row = f"accelerators[{index}]"
        place = f"{row} ({str(rows[index].get('name', 'no name'))[:63]}): {place.removeprefix(row).removeprefix('.')}"
    return f"{place}: {text}" if place else text


def _text(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown field"
    if error["type"] == "model_type":
        return f"must be a map with apiVersion: {CONFIG_API_VERSION}, kind: {KIND}, accelerators and incidentalResources"
    text: str = error["msg"]
    return text.removeprefix("Value error, ")
