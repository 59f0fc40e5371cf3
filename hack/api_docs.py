"""Writes docs/api.md, the API reference, from the types: `python hack/api_docs.py > docs/api.md`."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from diloco import contract
from diloco_operator.accelerators import CATALOGUE, Family
from diloco_operator.api import conditions, names
from diloco_operator.api.crd import build_crd, job_schema
from diloco_operator.api.job import UnitState

INTRODUCTION = """\
# DiLoCoJob, `diloco.dev/v1alpha1`

Generated from the types by `hack/api_docs.py`; do not edit. The CustomResourceDefinition is in `crds/`, `diloco crd` prints it, and
`diloco validate FILE` checks jobs against it without a cluster.

Short name `dlj`, category `diloco`. Durations are written as in Go: `5s`, `10m`, `1h30m`. A field without default and not marked
*required* may be left out.
"""


def reference() -> str:
    """The whole page, as Markdown."""
    parts = [INTRODUCTION, *_objects(job_schema(), ""), _columns(), _conditions(), _units(), _accelerators()]
    parts.append(_constants("Labels, annotations and names of objects", names, ("LABEL_", "ANNOTATION_")))
    parts.append(_constants("Environment of a pod", contract, ("ENV_",)))
    parts.append(_exits())
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _objects(schema: dict[str, Any], place: str) -> Iterator[str]:
    """One section for every object of the schema, outer ones first."""
    required = schema.get("required", [])
    rows = [
        [f"`{name}`", _type(child), "*required*" if name in required else _default(child), _cell(child.get("description", ""))]
        for name, child in schema["properties"].items()
        if not (place == "" and name == "metadata")
    ]
    text = f"{'##' if place.count('.') == 0 else '###'} {place or 'DiLoCoJob'}\n\n"
    if place:
        text += f"{schema.get('description', '')}\n\n"
    text += _table(["field", "type", "default", "meaning"], rows)
    rules = list(_rules(schema, place))
    if rules:
        text += "\nRules:\n\n" + "".join(f"- {rule}\n" for rule in rules)
    yield text
    for name, child in schema["properties"].items():
        inner = child.get("items", child)
        if "properties" in inner and (place, name) != ("", "metadata") and not inner.get("x-kubernetes-preserve-unknown-fields"):
            yield from _objects(inner, f"{place}.{name}{'[]' if 'items' in child else ''}".lstrip("."))


def _rules(schema: dict[str, Any], place: str) -> Iterator[str]:
    """Messages of the rules that stand at an object or directly at its fields."""
    for rule in schema.get("x-kubernetes-validations", []):
        yield _cell(rule["message"])
    for child in schema["properties"].values():
        if "properties" not in child:
            for rule in child.get("x-kubernetes-validations", []):
                if "must be a duration" not in rule["message"]:
                    yield _cell(rule["message"])


def _type(schema: dict[str, Any]) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if any("must be a duration" in rule["message"] for rule in schema.get("x-kubernetes-validations", [])):
        return "duration"
    name = {"date-time": "time"}.get(schema.get("format", ""), schema["type"])
    bounds = []
    if "minimum" in schema:
        bounds.append(f"{'>' if schema.get('exclusiveMinimum') else '>='} {schema['minimum']:g}")
    if "maximum" in schema:
        bounds.append(f"{'<' if schema.get('exclusiveMaximum') else '<='} {schema['maximum']:g}")
    return f"{name} {', '.join(bounds)}".strip()


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`" if default != "" else '`""`'


def _columns() -> str:
    columns = build_crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    rows = [[column["name"], "yes" if column.get("priority") else "", column["description"]] for column in columns]
    return "## Columns of `kubectl get dlj`\n\n" + _table(["column", "only with `-o wide`", "answers"], rows)


def _conditions() -> str:
    types = [[f"`{name}`", _cell(text)] for name, text in _members(conditions.ConditionType)]
    text = "## Conditions\n\nStable; messages are for people and may change.\n\n" + _table(["type", "True means"], types)
    constants = list(_documented(conditions))
    for title, prefix in (("Reasons of conditions", "REASON_"), ("Reasons of units", "UNIT_"), ("Reasons of pools", "POOL_")):
        rows = [[f"`{value}`", _cell(meaning)] for name, value, meaning in constants if name.startswith(prefix)]
        text += f"\n### {title}\n\n" + _table(["reason", "meaning"], rows)
    return text


def _units() -> str:
    rows = [[f"`{state}`", _cell(text)] for state, text in _members(UnitState)]
    return "## States of a unit\n\n" + _table(["state", "meaning"], rows)


def _exits() -> str:
    rows = [[f"{int(contract.Exit[member])}", f"`{member}`", _cell(text)] for member, text in _documented_members(contract.Exit)]
    return "## Exit status of a pod\n\n" + _table(["status", "name", "meaning"], rows)


def _accelerators() -> str:
    rows = []
    for kind in CATALOGUE.values():
        shape = kind.topology_rule if kind.family is Family.TPU else "hosts, acceleratorsPerHost" if kind.family is Family.GPU else "hosts"
        sizes = ", ".join(map(str, kind.host_sizes))
        numbers = [f"{kind.peak_tflops:g}", f"{kind.memory_gb:g}"] if kind.peak_tflops else ["", ""]
        rows.append([f"`{kind.name}`", ", ".join(f"`{label}`" for label in kind.gke_labels), sizes, _cell(shape), *numbers])
    header = ["accelerator", "GKE label", "per host", "shape of a unit", "peak, dense bf16 TFLOP/s", "memory, GB"]
    note = "\nThe peak is a prior for a unit's speed until it has reported its own; it never enters a merge weight.\n"
    return "## Accelerators\n\n" + _table(header, rows) + note


def _constants(title: str, module: ModuleType, prefixes: tuple[str, ...]) -> str:
    rows = [[f"`{value}`", _cell(meaning)] for name, value, meaning in _documented(module) if name.startswith(prefixes)]
    return f"## {title}\n\n" + _table(["name", "meaning"], rows)


def _documented(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Name, value and the text below it of every commented string constant of a module."""
    for name, text in _texts(ast.parse(inspect.getsource(module)).body):
        value = getattr(module, name)
        if isinstance(value, str):
            yield name, value, text


def _documented_members(enumeration: type) -> Iterator[tuple[str, str]]:
    tree = ast.parse(inspect.getsource(enumeration)).body[0]
    assert isinstance(tree, ast.ClassDef)
    yield from _texts(tree.body)


def _members(enumeration: type) -> Iterator[tuple[str, str]]:
    """Value and the text below it of every commented member of a string enumeration."""
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


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(reference(), end="")
