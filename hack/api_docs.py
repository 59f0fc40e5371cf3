"""Writes docs/api.md, the API reference, from the types: `python hack/api_docs.py > docs/api.md`.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from diloco import contract
from diloco_operator.accelerators import CATALOGUE, Family
from diloco_operator.accelerators.labels import DIALECTS
from diloco_operator.api import conditions, names
from diloco_operator.api.crd import build_crd, job_schema
from diloco_operator.api.reasons import ReasonRow, all_reasons
from diloco_operator.api.status import UnitState
from markdown_text import bullet, paragraph, table

INTRODUCTION = """\
Generated from the types by `hack/api_docs.py`: change the types and run `make docs`. The CustomResourceDefinition is in `crds/`.
`diloco crd` prints it. `diloco validate FILE` checks jobs against it without a cluster.

Short name `dlj`, category `diloco`. Durations are written as in Go: `5s`, `10m`, `1h30m`. A field of the spec may be left out unless
it is *required*; it has its default then.
"""
LINKED = {
    frozenset(UnitState): "a [state](#states-of-a-unit)",
}
"""Enumerations with a table of their own, by their values."""


def reference() -> str:
    """Return the whole page, as Markdown."""
    parts = [
        f"# DiLoCoJob, `{names.API_VERSION}`",
        *map(paragraph, INTRODUCTION.split("\n\n")),
        *_objects(job_schema(), ""),
        _columns(),
        _conditions(),
        *_reasons(),
        _units(),
        _accelerators(),
        _constants("Labels and annotations", names, ("LABEL_", "ANNOTATION_")),
        _constants("Environment of a pod", contract, ("ENV_",)),
        _exits(),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _objects(schema: dict[str, Any], place: str) -> Iterator[str]:
    """Yield one section for every object of the schema, outer ones first."""
    required = schema.get("required", [])
    # Only the operator writes status, so its fields need no defaults here.
    status = place.startswith("status")
    rows = []
    for name, child in schema["properties"].items():
        if (place, name) != ("", "metadata"):
            default = [] if status else ["*required*" if name in required else _default(child)]
            rows.append([f"`{name}`", _type(child), *default, child.get("description", "")])
    text = f"{'##' if place.count('.') == 0 else '###'} {place or 'DiLoCoJob'}\n\n"
    if place:
        text += paragraph(schema.get("description", "")) + "\n"
    text += table(["field", "type", *([] if status else ["default"]), "meaning"], rows)
    rules = list(_rules(schema))
    if rules:
        text += "\nRules:\n\n" + "".join(map(bullet, rules))
    yield text
    for name, child in schema["properties"].items():
        inner = child.get("items", child)
        if "properties" in inner and (place, name) != ("", "metadata") and not inner.get("x-kubernetes-preserve-unknown-fields"):
            yield from _objects(inner, f"{place}.{name}{'[]' if 'items' in child else ''}".lstrip("."))


def _rules(schema: dict[str, Any]) -> Iterator[str]:
    """Yield messages of the rules that stand at an object or directly at its fields."""
    for rule in schema.get("x-kubernetes-validations", []):
        yield rule["message"]
    for child in schema["properties"].values():
        if "properties" not in child:
            for rule in child.get("x-kubernetes-validations", []):
                if "must be a duration" not in rule["message"]:
                    yield rule["message"]


def _type(schema: dict[str, Any]) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    if "enum" in schema:
        return LINKED.get(frozenset(schema["enum"])) or ", ".join(f"`{value}`" for value in schema["enum"])
    if any("must be a duration" in rule["message"] for rule in schema.get("x-kubernetes-validations", [])):
        return "duration"
    name = {"date-time": "time"}.get(schema.get("format", ""), schema["type"])
    return ", ".join([name, *_bounds(schema)])


def _bounds(schema: dict[str, Any]) -> Iterator[str]:
    if "minimum" in schema:
        yield f"{'above' if schema.get('exclusiveMinimum') else 'at least'} {schema['minimum']:g}"
    if "maximum" in schema:
        yield f"{'below' if schema.get('exclusiveMaximum') else 'at most'} {schema['maximum']:g}"


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`" if default != "" else '`""`'


def _columns() -> str:
    columns = build_crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    rows = [[column["name"], "yes" if column.get("priority") else "", column["description"]] for column in columns]
    return "## Columns of `kubectl get dlj`\n\n" + table(["column", "only with `-o wide`", "answers"], rows)


def _conditions() -> str:
    rows = [[f"`{name}`", text] for name, text in _members(conditions.ConditionType)]
    text = "Types and reasons are stable: scripts may match on them. Messages are human-readable and may change."
    return f"## Conditions\n\n{paragraph(text)}\n" + table(["type", "meaning of True"], rows)


def _reasons() -> Iterator[str]:
    rows: dict[str, list[ReasonRow]] = {}
    for reason in all_reasons():
        rows.setdefault(reason.subject, []).append(reason)
    units, pools, events = rows.pop("Unit"), rows.pop("Pool"), rows.pop("Event")
    header = ["reason", "status", "Event", "meaning"]
    for condition, reasons in rows.items():
        cells = [[f"`{each.value}`", f"`{each.status}`", _event(each), each.meaning] for each in reasons]
        yield f"### Reasons of {condition}\n\n" + table(header, cells)
    intro = "A condition that takes another status is reported as an Event with the reason of the condition. The other Events:"
    cells = [[f"`{each.value}`", _event(each), each.meaning] for each in events]
    yield f"### Reasons of Events\n\n{paragraph(intro)}\n" + table(["reason", "type", "meaning"], cells)
    for title, reasons in (("Reasons of units", units), ("Reasons of pools", pools)):
        yield f"### {title}\n\n" + table(["reason", "meaning"], [[f"`{each.value}`", each.meaning] for each in reasons])


def _event(reason: ReasonRow) -> str:
    return f"`{reason.severity}`" if reason.severity else "none"


def _units() -> str:
    rows = [[f"`{state}`", text] for state, text in _members(UnitState)]
    return "## States of a unit\n\n" + table(["state", "meaning"], rows)


def _exits() -> str:
    rows = [[f"{int(contract.Exit[member])}", f"`{member}`", text] for member, text in _documented_members(contract.Exit)]
    return "## Exit status of a pod\n\n" + table(["status", "name", "meaning"], rows)


_UNIT_FIELDS = {Family.TPU: "`topology`", Family.HOST: "`hosts`, `acceleratorsPerHost`", Family.CPU: "`hosts`"}
_ACCELERATOR_NOTES = (
    "The rules of [spec.pools[]](#specpools) list the topologies of each TPU.",
    "Pods request the resource and tolerate taints with these keys.",
    "The peak is a prior for a unit's speed until the unit has reported its own. It never enters a merge weight.",
)
_LABEL_NOTES = (
    """A node has an accelerator when its labels match a row of this table and it offers the accelerator's resource. If rows of
    several accelerators match, the source that comes first in the list below decides.""",
    """A pool with `accelerator: cpu` gets nodes without extended resources, or nodes with exactly the extended resources that its
    template requests.""",
)


def _accelerators() -> str:
    rows, labels, facts = [], [], []
    for kind in CATALOGUE.values():
        sizes = ", ".join(map(str, kind.host_sizes))
        numbers = [f"{kind.peak_tflops:g}", f"{kind.memory_gb:g}"] if kind.peak_tflops else ["", ""]
        resource = [kind.resource] if kind.resource else []
        rows.append([f"`{kind.name}`", _codes(resource), _codes(kind.taints), sizes, _UNIT_FIELDS[kind.family], *numbers])
        for entry in kind.labels:
            qualified = f" with `{entry.dialect.qualifier}` = `{entry.qualifier}`" if entry.qualifier else ""
            labels.append([f"`{kind.name}`", entry.dialect.name, f"`{entry.key}`", _codes(entry.values) + qualified])
        if kind.sources:
            facts.append(f"`{kind.name}`: {', '.join(kind.sources)}")
    pages: dict[str, list[str]] = {}
    for dialect in DIALECTS:
        pages.setdefault(dialect.name, []).extend([dialect.source] if dialect.source not in pages.get(dialect.name, ()) else [])
    header = ["accelerator", "resource", "taints", "per host", "shape of a unit", "peak, dense bf16 TFLOP/s", "memory, GB"]
    return "\n".join(
        [
            "## Accelerators\n",
            table(header, rows),
            *map(paragraph, _ACCELERATOR_NOTES),
            "### Labels of nodes\n",
            table(["accelerator", "set by", "label", "values"], labels),
            *map(paragraph, _LABEL_NOTES),
            "### Sources\n",
            paragraph("Labels, in the order in which they decide:"),
            "".join(bullet(f"{name}: {', '.join(urls)}") for name, urls in pages.items()),
            paragraph("Host sizes, peaks and memory:"),
            "".join(map(bullet, facts)),
        ]
    )


def _codes(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _constants(title: str, module: ModuleType, prefixes: tuple[str, ...]) -> str:
    rows = [[f"`{value}`", meaning] for name, value, meaning in _documented(module) if name.startswith(prefixes)]
    return f"## {title}\n\n" + table(["name", "meaning"], rows)


def _documented(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and the text below it of every commented string constant of a module."""
    for name, text in _texts(ast.parse(inspect.getsource(module)).body):
        value = getattr(module, name)
        if isinstance(value, str):
            yield name, value, _with_values(text, vars(module))


def _with_values(text: str, constants: Mapping[str, object]) -> str:
    """Return `text` with names of constants, which a reader of the page does not know, replaced by their values."""

    def value(found: re.Match[str]) -> str:
        constant = constants.get(found[1])
        return f"`{constant}`" if isinstance(constant, str | int) else found[0]

    return re.sub(r"`?\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b`?", value, text)


def _documented_members(enumeration: type) -> Iterator[tuple[str, str]]:
    tree = ast.parse(inspect.getsource(enumeration)).body[0]
    assert isinstance(tree, ast.ClassDef)
    yield from _texts(tree.body)


def _members(enumeration: type) -> Iterator[tuple[str, str]]:
    """Yield value and the text below it of every commented member of a string enumeration."""
    for name, text in _documented_members(enumeration):
        yield str(getattr(enumeration, name)), text


def _texts(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in itertools.pairwise(body):
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            yield statement.targets[0].id, below.value.value


if __name__ == "__main__":
    print(reference(), end="")
