"""Defaulting, pruning and validation of objects by a CRD's structural schema, as an API server does it. Pure.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from diloco_operator.kube.client import Cause, Obj

from diloco_local.memory.copy_json import copy_json
from diloco_local.memory.structural import IMPLICIT, MISSING, Node, compile_schema
from diloco_local.memory.validation import Validator

UNCHECKED = Cause(
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)
# Anchored: the value in a message may contain anything.
_BLOCKING = re.compile(
    r"\A(Required|Unsupported) value|must have at most \d+ (characters|items|properties)\Z|must be of type [a-z ]+(, not [a-z]+)?\Z"
)


class Structural:
    """A compiled openAPIV3Schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.root = compile_schema(schema)

    def apply_defaults(self, obj: Obj) -> Obj:
        """A copy with defaults, and without nulls where the schema allows none."""
        filled: Obj = copy_json(obj)
        _fill(self.root, filled)
        return filled

    def completed(self, obj: Obj, old: Obj | None = None) -> Obj:
        """The object, pruned and with defaults. Top-level parts that `obj` shares with `old` are complete already, and are not copied."""
        out: Obj = {}
        for name, value in obj.items():
            child = self.root.child(name)
            if name in IMPLICIT or (old is not None and value is old.get(name, MISSING)) or (child is None and self.root.preserve):
                out[name] = value
            elif child is not None and not (value is None and child.type):
                out[name] = copy_json(value)
                _prune(child, out[name])
                _fill(child, out[name])
        for name, child in self.root.properties.items():
            if name not in out and child.default is not MISSING:
                out[name] = copy_json(child.default)
                _fill(child, out[name])
        return out

    def validate(self, obj: Obj, old: Obj | None = None) -> list[Cause]:
        """All errors at once, of the schema and of CEL rules. Paths are as Kubernetes writes them: `spec.pools[0].topology`. A rule is not
        evaluated if the structure below its node is wrong.

        Args:
            obj: with defaults filled in
            old: for an update, the object before it; then transition rules count, and, as in Kubernetes, unchanged parts are not rejected
                for rules that they broke already ("ratcheting")
        """
        return Validator().run(self.root, obj, MISSING if old is None else old)

    def violations(self, obj: Obj, old: Obj | None = None) -> list[Cause]:
        """The errors that an API server answers for an object. Unlike `validate`, a server evaluates either every rule or, after certain
        errors in the structure, none; then the last error says so."""
        validator = Validator(skip_broken=False)
        causes = validator.run(self.root, obj, MISSING if old is None else old)
        structural = [cause for index, cause in enumerate(causes) if index not in validator.from_rules]
        return [*structural, UNCHECKED] if any(map(_blocks_rules, structural)) else causes


def _blocks_rules(cause: Cause) -> bool:
    """Whether Kubernetes evaluates no rule after this error: a field is missing, too long, of the wrong type, or not in its enum."""
    return _BLOCKING.search(cause.message) is not None


def _fill(node: Node, value: Any) -> None:
    if isinstance(value, dict):
        for name, child in node.properties.items():
            present = value.get(name, MISSING)
            # As in Kubernetes, a null that the schema does not allow counts as absent, so that the default applies.
            if present is None and child.type:
                del value[name]
                present = MISSING
            if present is MISSING:
                if child.default is MISSING:
                    continue
                # Copy it: defaults below are filled in, and later writes change it. The schema's own value must stay as it is.
                present = value[name] = copy_json(child.default)
            if isinstance(present, (dict, list)):
                _fill(child, present)
        if node.additional:
            for name, each in value.items():
                if name not in node.properties and isinstance(each, (dict, list)):
                    _fill(node.additional, each)
    elif isinstance(value, list) and node.items:
        for each in value:
            if isinstance(each, (dict, list)):
                _fill(node.items, each)


def _prune(node: Node, value: Any) -> None:
    if isinstance(value, dict):
        for name in list(value):
            child = node.child(name)
            if child is not None:
                _prune(child, value[name])
            elif not node.preserve:
                del value[name]
    elif isinstance(value, list) and node.items:
        for each in value:
            _prune(node.items, each)
