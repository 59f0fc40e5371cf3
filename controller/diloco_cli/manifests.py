"""Reads manifests from files, and collects all problems of all files, each with its place and what to do.

What is valid in a job's spec is read although other fields are wrong, so that the user sees the problems of both at once.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from diloco.wording import one_line
from diloco_local.memory.schema import Structural
from diloco_operator.accelerators import BUILT_IN, CATALOGUE, CPU
from diloco_operator.api.crd import Schema, job_schema
from diloco_operator.api.job import InvalidJob, load
from diloco_operator.api.kinds import kind_problems
from diloco_operator.api.names import API_VERSION, KIND, LEARNER_CONTAINER
from diloco_operator.api.spec import PodTemplate, Pool, Spec
from diloco_operator.kube.client import Cause, Obj
from diloco_operator.kube.fields import metadata_of
from diloco_operator.program.yaml_reader import BadYaml, decoded, documents, read_text
from diloco_operator.reconcile.observe.template import template_problems
from pydantic import ValidationError

STDIN = "-"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# All fields that `kubectl get -o yaml` prints, because its output must be valid input.
_METADATA = [
    *("name", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "generateName", "uid", "resourceVersion"),
    *("generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"),
]

_LONGEST = 4000
"""Most characters of a problem. It quotes names and values of the file, which may have any length."""
_MOST_UNKNOWN = 100
"""Most unknown fields of an object that are shown, each with the nearest name."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a file."""

    obj: Obj
    file: str
    document: int
    """Number of the YAML document in the file, from 1."""
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """Line of each field path in the file, from 1."""

    @property
    def name(self) -> str:
        return str(metadata_of(self.obj).get("name") or "")

    def line(self, path: str) -> int:
        """The line of a field, or of the nearest enclosing field that the file has. 0 if not known."""
        return self.lines.get(self._nearest(path), 0)

    def in_order(self, causes: Iterable[Cause]) -> list[Cause]:
        """Sort causes as their fields stand in the file. A missing field has the place of the nearest enclosing one."""
        order = {place: index for index, place in enumerate(self.lines)}
        return sorted(causes, key=lambda cause: (self.line(cause.field), order.get(self._nearest(cause.field), 0)))

    def _nearest(self, path: str) -> str:
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return path


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a file, for people."""

    file: str
    message: str
    document: int = 0
    """Number of the YAML document, or 0 for the whole file."""
    line: int = 0
    """0 if not known."""
    name: str = ""
    """Name of the object, if it has one."""
    field: str = ""
    """Path of the field as Kubernetes writes it, or "" for the whole object."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        document = f" document {self.document}" if self.document else ""
        name = f" ({self.name})" if self.name else ""
        text = f"{place}:{document}{name}{':' if document or name else ''} {f'{self.field}: ' if self.field else ''}{self.message}"
        return one_line(text, _LONGEST)


class ManifestError(Exception):
    """All problems of the input."""

    def __init__(self, problems: Sequence[Problem], manifests: Sequence[Manifest] = ()) -> None:
        self.problems = tuple(problems)
        self.manifests = list(manifests)
        """Objects of a known kind and version, whose fields can be checked, too."""
        super().__init__("\n".join(map(str, problems)))


def load_manifests(paths: Iterable[str | Path], kinds: Collection[str] = (KIND,), *, beside: Collection[str] = ()) -> list[Manifest]:
    """Read all objects of the files, in order. `-` is standard input, and a `kind: List` stands for its items.

    Raises `ManifestError` with all problems at once: unreadable files, malformed YAML, files without an object of `kinds`, other kinds than
    these and those in `beside`, objects without a name, the same object twice. `validate_jobs` checks fields.
    """
    problems: list[Problem] = []
    manifests: list[Manifest] = []
    for path in paths:
        file_manifests = _read(str(path), problems)
        if file_manifests and all(manifest.obj.get("kind") in beside for manifest in file_manifests):
            problems.append(Problem(str(path), f"contains no {' or '.join(kinds)}"))
        manifests += file_manifests
    good = [manifest for manifest in manifests if _check_kind(manifest, kinds, problems, beside)]
    seen: dict[tuple[str, str, str], Manifest] = {}
    for manifest in good:
        if not manifest.name:
            continue
        # With the namespace in which it will be created: the second of two objects with one name would overwrite the first.
        namespace = str(manifest.obj["metadata"].get("namespace") or "default")
        first = seen.setdefault((manifest.obj["kind"], namespace, manifest.name), manifest)
        if first is not manifest:
            where = f"{first.file}, document {first.document}"
            problems.append(
                problem_of(manifest, "metadata.name", f"the same name is used in {where}; names must be unique, choose another")
            )
    if problems:
        raise ManifestError(problems, good)
    return good


def check_text(text: str, name: str) -> None:
    """Check the jobs in a text. Raises `ManifestError`, whose problems name `name` as the file."""
    problems: list[Problem] = []
    manifests = [manifest for manifest in _documents(name, text, problems) if _check_kind(manifest, (KIND,), problems)]
    if problems:
        raise ManifestError(problems)
    validate_jobs(manifests)


def validate_jobs(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the jobs with the defaults of the CRD filled in. Raises `ManifestError` with every wrong field of every job.

    It is as strict as `kubectl apply`: a field that the CRD does not have is an error, and the message suggests the nearest name.
    """
    schema, structural = _schema()
    problems: list[Problem] = []
    jobs = []
    for manifest in manifests:
        obj = structural.apply_defaults(manifest.obj)
        unknown = _unknown_fields(schema, manifest.obj)
        causes = [*itertools.islice(unknown, _MOST_UNKNOWN), *structural.validate(obj)]
        if next(unknown, None) is not None:
            causes.append(Cause("", f"has more than {_MOST_UNKNOWN} unknown fields, of which these are the first"))
        causes += _beyond_schema(obj, causes)
        problems += [problem_of(manifest, cause.field, cause.message) for cause in manifest.in_order(causes)]
        jobs.append(replace(manifest, obj=obj))
    if problems:
        raise ManifestError(problems)
    return jobs


def _beyond_schema(obj: Obj, wrong: Sequence[Cause]) -> list[Cause]:
    """What the operator would refuse beyond the schema, as far as it can be judged without the fields of `wrong`."""
    try:
        spec = _readable_spec(obj.get("spec")) if wrong else load(obj).spec
    except InvalidJob as error:
        return list(error.causes)
    # For built-in kinds the schema has the rules.
    others = ((index, pool) for index, pool in enumerate(spec.pools) if pool.accelerator not in BUILT_IN)
    causes = [cause for index, pool in others for cause in kind_problems(pool, f"spec.pools[{index}]")]
    known = {cause.field for cause in wrong}
    return [cause for cause in (*causes, *template_problems(spec)) if cause.field not in known]


@functools.cache
def _schema() -> tuple[Schema, Structural]:
    schema = job_schema()
    return schema, Structural(schema)


def problem_of(manifest: Manifest, path: str, message: str) -> Problem:
    return Problem(manifest.file, message, manifest.document, manifest.line(path), manifest.name, path)


# --- reading ----------------------------------------------------------------------------------------------------------
def _read(path: str, problems: list[Problem]) -> list[Manifest]:
    """Read the objects of one file, and add its errors to `problems`."""
    try:
        text = decoded(sys.stdin.buffer) if path == STDIN else read_text(Path(path))
    except FileNotFoundError:
        problems.append(Problem(path, "does not exist; check the path"))
        return []
    except IsADirectoryError:
        problems.append(Problem(path, "is a directory; name the files in it"))
        return []
    except OSError as error:
        problems.append(Problem(path, f"cannot be read: {error.strerror or error}"))
        return []
    except BadYaml as error:
        problems.append(Problem(path, error.message, line=error.line))
        return []
    before = len(problems)
    manifests = list(_documents(path, text, problems))
    if not manifests and len(problems) == before:
        problems.append(Problem(path, f"contains no object; it needs a {KIND} of {API_VERSION}"))
    return manifests


def _documents(path: str, text: str, problems: list[Problem]) -> Iterator[Manifest]:
    try:
        for document, (node, content) in enumerate(documents(text), start=1):
            if content is not None:
                yield from _objects(content, node, path, document, problems)
    except BadYaml as error:
        problems.append(Problem(path, error.message, error.document, error.line))


def _objects(content: Any, node: yaml.Node, path: str, document: int, problems: list[Problem]) -> Iterator[Manifest]:
    lines = _lines_of(node)
    if not isinstance(content, dict):
        problems.append(
            Problem(path, f"must be an object with apiVersion, kind, metadata and spec, not a {_noun(content)}", document, lines[""])
        )
        return
    if content.get("kind") != "List":
        yield Manifest(content, path, document, lines)
        return
    items = content.get("items")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        problems.append(Problem(path, "must be a list of objects", document, lines.get("items", 0), field="items"))
        return
    [nodes] = [value.value for key, value in node.value if key.value == "items"]
    for item, item_node in zip(items, nodes, strict=True):
        yield Manifest(item, path, document, _lines_of(item_node))


def _noun(value: Any) -> str:
    return {list: "list", str: "string", bool: "boolean", int: "number", float: "number"}.get(type(value), type(value).__name__)


def _lines_of(node: yaml.Node) -> dict[str, int]:
    lines: dict[str, int] = {}
    _lines(node, "", lines)
    return lines


def _lines(node: yaml.Node, path: str, lines: dict[str, int]) -> None:
    """Find the line of every field under `node`. A field that an alias repeats keeps the line of its anchor."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                place = f"{path}.{key.value}".lstrip(".")
                if place not in lines:
                    lines[place] = key.start_mark.line + 1
                    _lines(value, place, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _lines(value, f"{path}[{index}]", lines)


# --- what it must be --------------------------------------------------------------------------------------------------
def _check_kind(manifest: Manifest, kinds: Collection[str], problems: list[Problem], beside: Collection[str] = ()) -> bool:
    """Add to `problems` what is wrong with kind, version and name of the object. True if kind and version are known, so that its fields can
    be checked."""
    obj, known = manifest.obj, False
    kind = obj.get("kind")
    if kind not in kinds and kind not in beside:
        wanted = " or ".join(kinds)
        near = difflib.get_close_matches(str(kind), list(kinds), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        problems.append(problem_of(manifest, "kind", f"must be {wanted}, {'not ' + repr(kind) if kind else 'it is missing'}{hint}"))
    elif kind == KIND and obj.get("apiVersion") != API_VERSION:
        version = obj.get("apiVersion")
        problems.append(
            problem_of(manifest, "apiVersion", f"must be {API_VERSION}, {'not ' + repr(version) if version else 'it is missing'}")
        )
    else:
        known = True
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        problems.append(problem_of(manifest, "metadata", "must be an object with a name"))
        return known
    if not isinstance(metadata.get("name"), str) or not metadata["name"]:
        problems.append(problem_of(manifest, "metadata.name", "is required: a name of lower-case letters, digits and -"))
    elif kind != KIND and not _SUBDOMAIN.fullmatch(metadata["name"]):  # the CRD has the rule for jobs
        problems.append(problem_of(manifest, "metadata.name", "must be of lower-case letters, digits, - and ., as host names are"))
    namespace = metadata.get("namespace") or ""
    if namespace and (not isinstance(namespace, str) or not _LABEL.fullmatch(namespace)):
        problems.append(problem_of(manifest, "metadata.namespace", "must be at most 63 lower-case letters, digits and -"))
    return known


def _unknown_fields(schema: Schema, obj: Obj) -> Iterator[Cause]:
    metadata = metadata_of(obj)
    for name in metadata:
        if name not in _METADATA:
            yield Cause(f"metadata.{name}", _unknown(name, _METADATA))
    for kind in ("labels", "annotations"):
        values = metadata.get(kind) or {}
        if not isinstance(values, dict):
            yield Cause(f"metadata.{kind}", "must be an object of strings")
            continue
        for name, value in values.items():
            if not isinstance(value, str):
                yield Cause(f"metadata.{kind}.{name}", f"must be a string; put {value!r} in quotes")
    for name, value in obj.items():
        if name == "metadata":
            continue
        if name not in schema["properties"]:
            yield Cause(name, _unknown(name, schema["properties"]))
        else:
            yield from _unknown_in(schema["properties"][name], value, name)


def _unknown_in(schema: Schema, value: Any, path: str) -> Iterator[Cause]:
    properties = schema.get("properties", {})
    if isinstance(value, dict) and "additionalProperties" not in schema:
        for name, child in value.items():
            place = f"{path}.{name}"
            if name in properties:
                yield from _unknown_in(properties[name], child, place)
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield Cause(place, _unknown(name, properties))
    elif isinstance(value, list) and "items" in schema:
        for index, child in enumerate(value):
            yield from _unknown_in(schema["items"], child, f"{path}[{index}]")


def _unknown(name: str, known: Iterable[str]) -> str:
    known = list(known)
    lowered = {known_field.lower(): known_field for known_field in known}
    near = difflib.get_close_matches(name.lower(), list(lowered), 1, cutoff=0.6)
    if near:
        return f"unknown field; did you mean {lowered[near[0]]}?"
    return f"unknown field; the fields here are {', '.join(known)}" if known else "unknown field; it has no fields"


_HARDWARE = {"topology", "chipsPerHost", "hosts", "acceleratorsPerHost", "processesPerHost"}
_FAULTLESS: Mapping[str, Any] = {
    "name": "pool",
    "accelerator": CPU,
    "learners": {"max": 1},
    "template": {"spec": {"containers": [{"name": LEARNER_CONTAINER}]}},
}
"""Replaces required fields of a pool that cannot be read. No check complains about it."""


def _readable_spec(given: object) -> Spec:
    """Read pools and templates of a job's spec, as far as they are valid. Pools keep their index. The rest is left out or replaced by
    something without faults."""
    spec = given if isinstance(given, dict) else {}
    pools, priority, syncer = spec.get("pools"), spec.get("priorityClassName"), spec.get("syncer")
    return Spec.model_validate(
        {
            "learners": _FAULTLESS["learners"],
            "training": {"steps": 1},
            "pools": [_pool(pool) for pool in pools] if isinstance(pools, list) and pools else [_FAULTLESS],
            "priorityClassName": priority if isinstance(priority, str) else "",
            "syncer": {"template": _template(syncer.get("template")) if isinstance(syncer, dict) else None},
        }
    )


def _pool(given: object) -> Pool:
    kept = dict(given) if isinstance(given, dict) else {}
    wrong: set[str] = set()
    while True:
        try:
            return Pool.model_validate({**_FAULTLESS, **kept})
        except ValidationError as error:
            wrong |= {str(problem["loc"][0]) for problem in error.errors()}
        kept = {name: value for name, value in kept.items() if name not in wrong}
        if wrong & _HARDWARE and kept.get("accelerator") in CATALOGUE:
            kept["accelerator"] = CPU  # without its hardware fields the kind could break rules


def _template(given: object) -> PodTemplate | None:
    try:
        return PodTemplate.model_validate(given)
    except ValidationError:
        return None
