"""Renders the Helm chart with the real Helm, and finds objects in what comes out."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from builders.control_plane import PROGRAMS, RARE_COLLECTIONS, ROOT

type Json = dict[str, Any]

CHART = ROOT / "helm" / "diloco-operator"
VALUES = ROOT / "tests" / "cluster" / "helm" / "values"
NAMESPACE = "diloco-system"
RELEASE = "diloco-operator"


class Refused(Exception):
    """Helm did not render; the message is what it said."""


def helm(*args: str, input: str | None = None, program: str = "helm") -> subprocess.CompletedProcess[str]:
    """`helm ARGS` without a cluster."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "HELM_"))}
    environment = {**inherited, **RARE_COLLECTIONS}
    return subprocess.run([str(PROGRAMS / program), *args], env=environment, input=input, capture_output=True, text=True, check=False)


def render_text(
    values: Mapping[str, Any] | None = None, *, files: Iterable[Path] = (), release: str = RELEASE, known: Iterable[str] = ()
) -> str:
    """All manifests and hooks as `helm template` prints them. `values` win over `files`. `known`: further kinds that the cluster has.
    Raises `Refused`."""
    chosen = [argument for file in files for argument in ("--values", str(file))]
    chosen += [argument for kind in known for argument in ("--api-versions", kind)]
    return _rendered(release, tuple(chosen), json.dumps(values or {}))


@functools.cache
def _rendered(release: str, chosen: tuple[str, ...], values: str) -> str:
    """Once for each question: the chart does not change while tests run."""
    done = helm("template", release, str(CHART), "--namespace", NAMESPACE, *chosen, "--values", "-", input=values)
    if done.returncode != 0:
        raise Refused(done.stderr)
    return done.stdout


def render(
    values: Mapping[str, Any] | None = None, *, files: Iterable[Path] = (), release: str = RELEASE, known: Iterable[str] = ()
) -> list[Json]:
    """The same as objects."""
    return [obj for obj in yaml.load_all(render_text(values, files=files, release=release, known=known), yaml.CSafeLoader) if obj]


def of_kind(objects: Iterable[Json], kind: str) -> list[Json]:
    return [obj for obj in objects if obj["kind"] == kind]


def one(objects: Iterable[Json], kind: str, name: str | None = None) -> Json:
    """The one object of this kind (and name)."""
    found = [obj for obj in objects if obj["kind"] == kind and name in (None, obj["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} and name {name}: {[obj['metadata']['name'] for obj in found]}"
    return found[0]
