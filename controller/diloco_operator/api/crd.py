"""The CustomResourceDefinition of DiLoCoJob, made from the types of `api.job` and the rules in `api.rules`. Pure.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import yaml

from diloco_operator.api.durations import format_duration
from diloco_operator.api.job import DiLoCoJob
from diloco_operator.api.names import API_VERSION, DILOCO_JOBS, KIND
from diloco_operator.api.rules import RULES, duration_rule

CRD_NAME = f"{DILOCO_JOBS.plural}.{DILOCO_JOBS.group}"

type Schema = dict[str, Any]

_COPIED = ("format", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "minimum", "maximum")
_LIST_MAP_KEYS = {"spec.pools": "name", "status.conditions": "type"}
"""status.units and status.pools are atomic lists, because only the operator writes them, and always whole. As maps, their managedFields
would have an entry for each field of each unit: more than the status itself, and with 1,000 units near etcd's limit of 1.5 MB."""
_POD_SPECS = ("spec.pools[].template.spec", "spec.syncer.template.spec")
_HEADER = "# Generated from the types by `diloco crd`; change controller/diloco_operator/api and run `make crds`.\n"


def _column(name: str, type: str, path: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    column = {"name": name, "type": type, "jsonPath": path, "description": description}
    return {**column, "priority": 1} if wide else column


_COLUMNS = [
    _column("State", "string", ".status.state", "Where the job is in its life."),
    _column("Reason", "string", ".status.reason", "Why it is in this state."),
    _column("Learners", "integer", ".status.learners.contributing", "Learners that contribute."),
    _column("Of", "integer", ".status.learners.desired", "Learners wanted now."),
    _column("Step", "integer", ".status.progress.step", "Outer steps done."),
    _column("Steps", "integer", ".status.progress.steps", "Outer steps in all."),
    _column("Loss", "number", ".status.progress.loss", "Training loss."),
    _column("Cosine", "number", ".status.progress.cosine", "Mean cosine between contributions.", wide=True),
    _column("Tokens/s", "number", ".status.progress.tokensPerSecond", "Tokens per second over all learners.", wide=True),
    _column("Pools", "string", ".status.poolSummary", "Contributing of placed units in each pool.", wide=True),
    _column("Age", "date", ".metadata.creationTimestamp", "Since its creation."),
]


def build_crd() -> dict[str, Any]:
    """The CRD as an object for `kubectl apply` and for `diloco_local.memory`. The caller may change it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": DILOCO_JOBS.group,
            "scope": "Namespaced",
            "names": {
                "kind": DILOCO_JOBS.kind,
                "listKind": f"{DILOCO_JOBS.kind}List",
                "plural": DILOCO_JOBS.plural,
                "singular": DILOCO_JOBS.kind.lower(),
                "shortNames": ["dlj"],
                "categories": ["diloco"],
            },
            "versions": [
                {
                    "name": DILOCO_JOBS.version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [dict(column) for column in _COLUMNS],
                    "selectableFields": [{"jsonPath": path} for path in _SELECTABLE],
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.learners.max",
                            "statusReplicasPath": ".status.learners.contributing",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": job_schema()},
                }
            ],
        },
    }


_SELECTABLE = (".status.state", ".spec.suspend", ".spec.queueName", ".spec.priorityClassName", ".spec.managedBy")
"""Fields that `kubectl get dlj --field-selector` can select by; an API server allows eight."""


def job_schema() -> Schema:
    """The structural schema of a DiLoCoJob. The caller may change it."""
    schema: Schema = json.loads(_job_schema())
    return schema


@functools.cache
def _job_schema() -> str:
    """The schema as JSON. It is made once, because pydantic takes 25 ms for it."""
    document = DiLoCoJob.model_json_schema(by_alias=True)
    schema = _Converter(document["$defs"]).convert(document, "")
    properties = schema["properties"]
    # The API server defines these three itself; a CRD may only constrain metadata.name.
    properties["apiVersion"] = {"type": "string", "description": f"{API_VERSION}."}
    properties["kind"] = {"type": "string", "description": f"{KIND}."}
    properties["metadata"] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}}
    schema["required"] = ["spec"]
    return json.dumps(schema)


def crd_yaml() -> str:
    """The content of the file in crds/, byte for byte."""
    return _HEADER + yaml.dump(build_crd(), Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes no anchors: an API server can read them, but they make the file hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Converter:
    """Converts pydantic's JSON schema (2020-12, with references) to Kubernetes' structural schema (OpenAPI 3.0 subset, in one piece)."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions

    def convert(self, source: Schema, place: str, *, optional: bool = True) -> Schema:
        node, nullable = self._resolve(source)
        result: Schema = {}
        if "type" in node:
            result["type"] = node["type"]
        if description := node.get("description"):
            result["description"] = " ".join(description.split())
        result |= {key: node[key] for key in _COPIED if key in node}
        if node.get("type") == "integer":
            result["format"] = "int64"
        _bounds(node, result)
        if "properties" in node:
            required = node.get("required", [])
            result["properties"] = {
                name: self.convert(child, f"{place}.{name}".lstrip("."), optional=name not in required)
                for name, child in node["properties"].items()
            }
            if required:
                result["required"] = list(required)
        elif isinstance(node.get("additionalProperties"), dict):
            result["additionalProperties"] = self.convert(node["additionalProperties"], f"{place}{{}}")
        if "items" in node:
            result["items"] = self.convert(node["items"], f"{place}[]")
        if place.startswith("spec.") and optional and not nullable:  # only the operator writes status, so it needs no defaults
            _default(node, result)
        _extensions(node, result, place)
        return result

    def _resolve(self, node: Schema) -> tuple[Schema, bool]:
        """Follow references, and strip the null of an optional field. Keywords beside a reference win over its target's. Return the schema,
        and whether the field may be null."""
        nullable = False
        while "$ref" in node or "anyOf" in node:
            if "$ref" in node:
                target = self._definitions[node["$ref"].rsplit("/", 1)[-1]]
            else:
                options = [option for option in node["anyOf"] if option.get("type") != "null"]
                if len(options) != 1:
                    raise ValueError(f"a union of types has no structural schema: {node}")
                nullable = True
                target = options[0]
            node = {**target, **{key: value for key, value in node.items() if key not in ("$ref", "anyOf", "default" if nullable else "")}}
        return node, nullable


def _default(node: Schema, result: Schema) -> None:
    if "default" in node:
        default = node["default"]
        result["default"] = format_duration(default) if "x-diloco-duration" in node else default
    elif "properties" in result and "required" not in result:
        # An object that is left out gets its fields' defaults. They are written out in full, because an API server checks the rules on a
        # default before it fills in the defaults within it.
        result["default"] = {name: child["default"] for name, child in result["properties"].items() if "default" in child}


def _bounds(node: Schema, result: Schema) -> None:
    """Translate exclusive bounds: JSON schema has them as numbers, Kubernetes as flags."""
    for key, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            result[key] = node[exclusive]
            result[exclusive] = True


def _extensions(node: Schema, result: Schema, place: str) -> None:
    if place in _POD_SPECS:
        result.pop("additionalProperties", None)
        result["properties"] = {"containers": _containers()}
        result["x-kubernetes-preserve-unknown-fields"] = True
    if key := _LIST_MAP_KEYS.get(place):
        result |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    rules = list(RULES.get(place, ()))
    if "x-diloco-duration" in node:
        rules.insert(0, duration_rule(place.rsplit(".", 1)[-1]))
    if rules:
        result["x-kubernetes-validations"] = [
            {"rule": rule.rule, "message": rule.message, **({"fieldPath": rule.field_path} if rule.field_path else {})} for rule in rules
        ]


def _containers() -> Schema:
    """The part of a PodSpec that rules read. The rest passes through to the pod, where the API server checks it."""
    return {
        "type": "array",
        "description": "Containers of the pod.",
        "maxItems": 32,
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 63, "description": "DNS label, unique in the pod."}},
            "required": ["name"],
            "x-kubernetes-preserve-unknown-fields": True,
        },
    }
