"""Generates the chart's documents: fields of `config` in values.schema.json from the operator's types, README.md from the schema.

`hack/chart_docs.py [CHART]`: CHART is the folder of the chart, by default this repository's.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import yaml
from diloco_operator.api.durations import format_duration
from diloco_operator.operator import RunConfig
from diloco_operator.operator import run as run_module
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.reconcile import config as config_module
from markdown_text import between, table
from pydantic.alias_generators import to_camel

CHART = Path(__file__).resolve().parents[1] / "helm" / "diloco-operator"
BEGIN, END = "<!-- values, written by hack/chart_docs.py -->\n", "<!-- end of values -->\n"
WHOLE = {"resources", "affinity", "podSecurityContext", "securityContext", "livenessProbe", "readinessProbe", "config", "namespaceSelector"}
"""Values with one row each: Kubernetes or the operator defines their fields."""
RUN_FIELDS = {"workers", "concurrency", "job_concurrency", "watch_other_pods"}
"""Fields of RunConfig that the configuration file has."""
SEPARATE = {"syncer_image", "storage_class_name", "image_pull_secrets"}
"""Fields that are not in `config`, since the chart has a value of its own for each."""
STRINGS = {"type": "array", "items": {"type": "string"}}
SHAPES: dict[object, dict[str, Any]] = {
    float: {"$ref": "#/definitions/duration"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    str: {"type": "string"},
    tuple[str, ...]: STRINGS,
    tuple[tuple[str, str], ...]: {"type": "array", "items": {**STRINGS, "minItems": 2, "maxItems": 2}},
}


def config_fields() -> dict[str, dict[str, Any]]:
    """The properties of `config`, as JSON schema."""
    properties = {}
    for owner, module, wanted in ((OperatorConfig, config_module, None), (RunConfig, run_module, RUN_FIELDS)):
        types, texts = get_type_hints(owner), docstrings(module, owner.__name__)
        for each in dataclasses.fields(owner):
            if each.name not in SEPARATE and (wanted is None or each.name in wanted):
                if not texts[each.name]:
                    raise SystemExit(f"{module.__name__}.{owner}: {each.name} needs a docstring")
                # RunConfig's numbers say how many workers and writes there may be at once. An operator needs at least one of each.
                least = {"minimum": 1} if owner is RunConfig and types[each.name] is int else {}
                properties[to_camel(each.name)] = {**SHAPES[types[each.name]], **least, "description": texts[each.name]}
    return properties


def docstrings(module: ModuleType, owner: str) -> dict[str, str]:
    """Attribute -> its docstring. If an attribute has none and its default is a constant of the module, the constant's docstring."""

    def texts(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
        for statement, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                yield statement, " ".join(str(following.value.value).split())
            elif isinstance(statement, ast.AnnAssign):
                yield statement, ""

    tree = ast.parse(inspect.getsource(module))
    constants = {
        target.id: text
        for statement, text in texts(tree.body)
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    (body,) = (statement.body for statement in tree.body if isinstance(statement, ast.ClassDef) and statement.name == owner)
    by_attribute = {}
    for statement, text in texts(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            default = statement.value.id if isinstance(statement.value, ast.Name) else ""
            by_attribute[statement.target.id] = text or constants.get(default, "")
    return by_attribute


def rows(values: dict[str, Any], schema: dict[str, Any], definitions: dict[str, Any], path: str = "") -> Iterator[list[str]]:
    for key, default in values.items():
        described = schema["properties"][key]
        if "$ref" in described:
            described = {**definitions[described["$ref"].rpartition("/")[2]], **described}
        if isinstance(default, dict) and "properties" in described and key not in WHOLE:
            yield from rows(default, described, definitions, f"{path}{key}.")
        else:
            yield [f"`{path}{key}`", f"`{json.dumps(default)}`", described["description"]]


def tables(schema: dict[str, Any], values: dict[str, Any]) -> str:
    config = schema["properties"]["config"]["properties"]
    defaults = config_defaults()
    return "\n".join(
        [
            table(["value", "default", "meaning"], list(rows(values, schema, schema["definitions"]))),
            "Fields of `config`. Durations are written `30s`, `10m`, `1h30m`.\n",
            table(["field", "default", "meaning"], [[f"`{key}`", defaults[key], each["description"]] for key, each in config.items()]),
        ]
    )


def config_defaults() -> dict[str, str]:
    """Field of `config` -> its default, as one would write it in a values file."""
    defaults = {}
    for owner in (OperatorConfig, RunConfig):
        types = get_type_hints(owner)
        for each in dataclasses.fields(owner):
            default: Any = each.default
            if types[each.name] in SHAPES:
                defaults[to_camel(each.name)] = f"`{format_duration(default) if types[each.name] is float else json.dumps(default)}`"
    return defaults


def main() -> None:
    chart = Path(sys.argv[1]) if len(sys.argv) > 1 else CHART
    schema_file, readme = chart / "values.schema.json", chart / "README.md"
    schema = json.loads(schema_file.read_text())
    schema["properties"]["config"]["properties"] = config_fields()
    schema_file.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")
    readme.write_text(between(readme.read_text(), BEGIN, END, tables(schema, yaml.safe_load((chart / "values.yaml").read_text()))))


if __name__ == "__main__":
    main()
