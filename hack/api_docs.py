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
from diloco_operator.accelerators import ACCELERATOR_NAMES, CATALOGUE
from diloco_operator.accelerators.labels import DIALECTS
from diloco_operator.api import conditions, names
from diloco_operator.api.crd import build_crd, job_schema
from diloco_operator.api.reasons import ReasonRow, all_reasons
from diloco_operator.api.status import UnitState
from markdown_text import bullet, paragraph, table

INTRODUCTION = """\
Generated from the types by `hack/api_docs.py`: change the types and run `make docs`. `diloco crd` prints the
CustomResourceDefinition; `diloco validate FILE` checks jobs against it without a cluster.

Short name `dlj`, category `diloco`. Durations are written as in Go: `5s`, `10m`, `1h30m`. A field of the spec that is not *required*
may be left out. One of status is absent while there is nothing to say.
"""
LINKED = {
    frozenset(UnitState): "a [state](states.md)",
}
"""Values of an enumeration that has a table of its own -> the link to it."""
_NAMES_OF_ACCELERATORS = f"Built in are {', '.join(ACCELERATOR_NAMES)}"
_AT_LEAST = re.compile(r"must be (at least \S+)$")
"""Finds the least value in the message of a duration's rule."""


def reference() -> str:
    """The whole page, as Markdown."""
    parts = [
        f"# DiLoCoJob, `{names.API_VERSION}`",
        *map(paragraph, INTRODUCTION.split("\n\n")),
        *_objects(job_schema(), ""),
        _columns(),
        _conditions(),
        *_reasons(),
        _accelerators(),
        _constants("Labels and annotations", names, ("LABEL_", "ANNOTATION_")),
        _constants("Environment of a pod", contract, ("ENV_",)),
        _exits(),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _objects(schema: dict[str, Any], place: str) -> Iterator[str]:
    """Yield a section each for the job, its spec, its status, and every object directly in these. Deeper objects are rows of that section.

    Args:
        place: the path of the section's object, such as `spec.pools[]`; "" for the job
    """
    depth = place.count(".") + bool(place)
    # Only the operator writes status, so its fields need no defaults here.
    status = place.startswith("status")
    rows = list(_rows(schema, place, "", status=status))
    text = f"{'##' if depth < 2 else '###'} {place or 'DiLoCoJob'}\n\n"
    if place:
        text += paragraph(schema.get("description", "")) + "\n"
    text += table(["field", "type", *([] if status else ["default"]), "meaning"], rows)
    # Behind the semicolon a message says what to do about a broken rule. The page leaves that to the API server.
    rules = [message.partition(";")[0] for message in _rules(schema, nested=_is_section(place))]
    if rules:
        text += "\nRules:\n\n" + "".join(map(bullet, rules))
    yield text
    if _is_section(place):
        return
    for name, child in schema["properties"].items():
        if _has_fields(child) and (place, name) != ("", "metadata"):
            yield from _objects(child.get("items", child), f"{place}.{name}{_list(child)}".lstrip("."))


def _is_section(place: str) -> bool:
    """Whether the objects inside this one are rows of its section."""
    return "." in place


def _has_fields(schema: dict[str, Any]) -> bool:
    inner = schema.get("items", schema)
    return "properties" in inner and not inner.get("x-kubernetes-preserve-unknown-fields")


def _list(schema: dict[str, Any]) -> str:
    return "[]" if "items" in schema else ""


def _rows(schema: dict[str, Any], place: str, prefix: str, *, status: bool) -> Iterator[list[str]]:
    """Yield the rows of a section's table. `prefix`: the path from the section's object to `schema`."""
    required = schema.get("required", [])
    for name, child in schema["properties"].items():
        if (place, name) == ("", "metadata"):
            continue
        default = [] if status else ["*required*" if name in required else _default(child)]
        nested = _has_fields(child)
        meaning = child.get("description", "").replace(_NAMES_OF_ACCELERATORS, "Built in are those of the [table](#accelerators)")
        if nested and not _is_section(place):
            section = f"{place}.{name}{_list(child)}".lstrip(".")
            meaning = f"See [{section}](#{re.sub(r'[^a-z]', '', section.lower())})."
        yield [f"`{prefix}{name}`", _type(child, bounds=not status), *default, meaning]
        if nested and _is_section(place):
            yield from _rows(child.get("items", child), place, f"{prefix}{name}{_list(child)}.", status=status)


def _rules(schema: dict[str, Any], *, nested: bool) -> Iterator[str]:
    """Yield the messages of the rules of an object and of its fields; with `nested`, also those of the objects inside it."""
    for rule in schema.get("x-kubernetes-validations", []):
        yield rule["message"]
    for child in schema["properties"].values():
        if nested and _has_fields(child):
            yield from _rules(child.get("items", child), nested=nested)
        if "properties" not in child:
            for rule in child.get("x-kubernetes-validations", []):
                if "must be a duration" not in rule["message"] and not _AT_LEAST.search(rule["message"]):
                    yield rule["message"]


def _type(schema: dict[str, Any], *, bounds: bool = True) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'], bounds=bounds)}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'], bounds=bounds)}"
    if "enum" in schema:
        return LINKED.get(frozenset(schema["enum"])) or ", ".join(f"`{value}`" for value in schema["enum"])
    messages = [rule["message"] for rule in schema.get("x-kubernetes-validations", [])]
    if any("must be a duration" in message for message in messages):
        return ", ".join(["duration", *(match[1] for message in messages if (match := _AT_LEAST.search(message)))])
    name = {"date-time": "time"}.get(schema.get("format", ""), schema["type"])
    return ", ".join([name, *(_bounds(schema) if bounds else ())])


def _bounds(schema: dict[str, Any]) -> Iterator[str]:
    least, most = (f"{schema[key]:,}".removesuffix(".0") if key in schema else "" for key in ("minimum", "maximum"))
    if least and most and not schema.get("exclusiveMinimum") and not schema.get("exclusiveMaximum"):
        yield f"{least} to {most}"
        return
    if least:
        yield f"{'above' if schema.get('exclusiveMinimum') else 'at least'} {least}"
    if most:
        yield f"{'below' if schema.get('exclusiveMaximum') else 'at most'} {most}"


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    if default is None or isinstance(default, dict):
        return ""
    if default == "":
        return '`""`'
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _columns() -> str:
    columns = build_crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    rows = [[column["name"], "yes" if column.get("priority") else "", column["description"]] for column in columns]
    return "## Columns of `kubectl get dlj`\n\n" + table(["column", "only with `-o wide`", "answers"], rows)


def _conditions() -> str:
    rows = [[f"`{name}`", text] for name, text in _members(conditions.ConditionType)]
    text = "Types and reasons are stable: scripts may match on them. A message says which, why and what to do, and may change."
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


def _exits() -> str:
    rows = [[f"{int(contract.Exit[member])}", f"`{member}`", text] for member, text in _documented_members(contract.Exit)]
    return "## Exit status of a pod\n\n" + table(["status", "name", "meaning"], rows)


_ACCELERATOR_NOTES = (
    """A unit of a TPU has the hosts of its `topology`, which the rules of [spec.pools[]](#specpools) list; one of other kinds has `hosts`,
    with `acceleratorsPerHost` of each. Pods request the resource, and tolerate taints with its name and with the further keys. The peak
    is a prior for a unit's speed until the unit has reported its own. It never enters a merge weight. Sources stand in
    `controller/diloco_operator/accelerators/rows.py`.""",
)
_LABEL_NOTES = (
    """A node has an accelerator when one of its labels has a value of these lists and it offers the accelerator's resource. If labels name
    several accelerators, the list that comes first decides.""",
    """A pool with `accelerator: cpu` gets nodes without extended resources, or nodes with exactly the extended resources that its
    template requests.""",
)


def _accelerators() -> str:
    rows = []
    for kind in CATALOGUE.values():
        sizes = ", ".join(map(str, kind.host_sizes))
        numbers = [f"{kind.peak_tflops:g}", f"{kind.memory_gb:g}"] if kind.peak_tflops else ["", ""]
        resource = [kind.resource] if kind.resource else []
        taints = [key for key in kind.taints if key not in resource]
        rows.append([f"`{kind.name}`", _codes(resource), _codes(taints), sizes, *numbers])
    header = ["accelerator", "resource", "further taints", "per host", "peak, dense bf16 TFLOP/s", "memory, GB"]
    return "\n".join(
        [
            "## Accelerators\n",
            table(header, rows),
            *map(paragraph, _ACCELERATOR_NOTES),
            "### Labels of nodes\n",
            *map(paragraph, _LABEL_NOTES),
            *_labels(),
        ]
    )


def _labels() -> Iterator[str]:
    """Yield a list for each dialect, in the order in which dialects decide."""
    for dialect in DIALECTS:
        items = []
        for kind in CATALOGUE.values():
            for entry in kind.labels:
                if entry.dialect is dialect:
                    label = f"`{entry.key}` = " if entry.key != dialect.key else ""
                    qualified = f" with `{dialect.qualifier}` = `{entry.qualifier}`" if entry.qualifier else ""
                    items.append(f"`{kind.name}`: {label}{_codes(entry.values)}{qualified}")
        key = f", label `{dialect.key}`" if dialect.key else ""
        yield paragraph(f"{dialect.name}{key} ({dialect.source}):") + "\n" + "".join(map(bullet, items))


def _codes(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _constants(title: str, module: ModuleType, prefixes: tuple[str, ...]) -> str:
    rows = [[f"`{value}`", meaning] for name, value, meaning in _documented(module) if name.startswith(prefixes)]
    return f"## {title}\n\n" + table(["name", "meaning"], rows)


def _documented(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and docstring of every string constant of a module that has one."""
    for name, text in _texts(ast.parse(inspect.getsource(module)).body):
        value = getattr(module, name)
        if isinstance(value, str):
            yield name, value, _with_values(text, vars(module))


def _with_values(text: str, constants: Mapping[str, object]) -> str:
    """`text` with the values of constants in place of their names, which a reader of the page does not know."""

    def value(found: re.Match[str]) -> str:
        constant = constants.get(found[1])
        return f"`{constant}`" if isinstance(constant, str | int) else found[0]

    return re.sub(r"`?\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b`?", value, text)


def _documented_members(enumeration: type) -> Iterator[tuple[str, str]]:
    tree = ast.parse(inspect.getsource(enumeration)).body[0]
    assert isinstance(tree, ast.ClassDef)
    yield from _texts(tree.body)


def _members(enumeration: type) -> Iterator[tuple[str, str]]:
    """Yield value and docstring of every member of a string enumeration that has one."""
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
