"""What a container's command, arguments and environment are on this machine. Pure.

A process has no mount namespace and no cluster DNS. So what a cluster would do below the program is done to its words: paths
under a mount become the folder that stands for it, names of pods become loopback addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from diloco_operator.kube.client import Obj

_REFERENCE = re.compile(r"\$\$|\$\((?P<name>[A-Za-z_.-][\w.-]*)\)")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")
_PATH_END = r"(?=$|[/\s:;,\"'])"
TEMPORARY = "/tmp"  # noqa: S108 - the container's, not this machine's
_PATH_START = r"(?:(?<![\w./-])|(?<=file://))"

LIBRARY_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""Many units share one machine's cores: one thread for each, or they stand in each other's way."""
NO_ACCELERATORS = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
"""A simulated node has no real accelerator; a real one in this machine is not shared out unless the pod asks for it itself."""


class ConfigError(Exception):
    """A container cannot be configured as long as something that it refers to is missing (CreateContainerConfigError)."""


@dataclass(frozen=True, slots=True)
class Sources:
    """ConfigMaps and Secrets of the pod's namespace, decoded, by name; what does not exist is left out."""

    config_maps: Mapping[str, Mapping[str, bytes]]
    secrets: Mapping[str, Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine that stands for a path in the container."""

    container_path: str
    local_path: str


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: PurePath | None
    """None: not said."""


def field_value(pod: Obj, path: str) -> str:
    """A field of the downward API. Raises ConfigError for one that a kubelet does not offer either."""
    metadata, status = pod["metadata"], pod.get("status", {})
    plain: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: metadata["name"],
        "metadata.namespace": lambda: metadata.get("namespace", ""),
        "metadata.uid": lambda: metadata["uid"],
        "spec.nodeName": lambda: pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": lambda: pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": lambda: status.get("podIP", ""),
        "status.podIPs": lambda: status.get("podIP", ""),
        "status.hostIP": lambda: status.get("hostIP", ""),
        "status.hostIPs": lambda: status.get("hostIP", ""),
    }
    if path in plain:
        return plain[path]()
    if found := _SUBSCRIPT.match(path):
        return str((metadata.get(found[1]) or {}).get(found[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        items = metadata.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f'{key}="{items[key]}"' for key in sorted(items))
    raise ConfigError(f"fieldRef {path!r} is not a field of the downward API")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` by its value, `$$` by `$`; an unknown name stays as it is, as in Kubernetes."""

    def replace(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return variables.get(found["name"], found[0])

    return _REFERENCE.sub(replace, text)


def declared_environment(pod: Obj, container: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """env and envFrom of a container, references resolved and expanded in order. Raises ConfigError."""
    declared: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        for kind, known in (("configMapRef", sources.config_maps), ("secretRef", sources.secrets)):
            if reference := source.get(kind):
                data = _data(known, kind.removesuffix("Ref"), reference)
                declared |= {prefix + key: _text(value, kind.removesuffix("Ref"), reference["name"], key) for key, value in data.items()}
    for item in container.get("env") or ():
        name = item["name"]
        if source := item.get("valueFrom"):
            value = _referenced(pod, source, sources)
            if value is not None:
                declared[name] = value
        else:
            declared[name] = expand(str(item.get("value") or ""), declared)
    return declared


def _data(known: Mapping[str, Mapping[str, bytes]], kind: str, reference: Mapping[str, Any]) -> Mapping[str, bytes]:
    data = known.get(reference["name"])
    if data is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f"{kind.lower()} {reference['name']!r} not found")
    return data


def _text(value: bytes, kind: str, name: str, key: str) -> str:
    """A value as an environment variable can hold it. Raises ConfigError."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(f"key {key} of {kind.lower()} {name!r} is not text, so it cannot be an environment variable; mount it as a file")
    return text


def _referenced(pod: Obj, source: Mapping[str, Any], sources: Sources) -> str | None:
    if reference := source.get("fieldRef"):
        return field_value(pod, reference["fieldPath"])
    for kind, known in (("configMapKeyRef", sources.config_maps), ("secretKeyRef", sources.secrets)):
        if reference := source.get(kind):
            data = _data(known, kind.removesuffix("KeyRef"), reference)
            if reference["key"] in data:
                return _text(data[reference["key"]], kind.removesuffix("KeyRef"), reference["name"], reference["key"])
            if reference.get("optional"):
                return None
            raise ConfigError(f"couldn't find key {reference['key']} in {kind.removesuffix('KeyRef').lower()} {reference['name']!r}")
    kinds = ", ".join(source)
    raise ConfigError(f"valueFrom {kinds} is not supported here; use value, fieldRef, configMapKeyRef or secretKeyRef")


def translate(text: str, mounts: Sequence[Mount], resolve: Callable[[str], str]) -> str:
    """`text` with paths under a mount and names of pods replaced by what stands for them here.

    Paths count where a path can begin (not inside a longer one); the longest mount wins, and what was replaced is not looked at again.
    A mount on /tmp itself is left out: a program that writes "/tmp/x" gets this machine's, so a word that says it must mean the same.
    """
    local = {path: mount.local_path for mount in mounts if (path := mount.container_path.rstrip("/")) != TEMPORARY}
    if local:
        longest_first = sorted(local, key=len, reverse=True)
        pattern = _PATH_START + "(?P<path>" + "|".join(map(re.escape, longest_first)) + ")" + _PATH_END
        text = re.sub(pattern, lambda found: local[found["path"]], text)
    return resolve(text)


def command(
    pod: Obj,
    container: Mapping[str, Any],
    *,
    base: Mapping[str, str],
    defaults: Mapping[str, str],
    sources: Sources,
    mounts: Sequence[Mount],
    resolve: Callable[[str], str],
) -> Command:
    """What to run for a container.

    `base` is the machine's part of the environment (PATH, HOME), in this machine's own paths; `defaults` are ours. What the pod
    declares wins over both. A mount on /tmp becomes TMPDIR. Raises ConfigError.
    """
    declared = declared_environment(pod, container, sources)
    variables = {name: translate(value, mounts, resolve) for name, value in declared.items()}
    if declared.get("HOME") == TEMPORARY:  # of a container whose root is read-only; here the home is the machine's
        del variables["HOME"]
    temporary = [("TMPDIR", mount.local_path) for mount in mounts if mount.container_path.rstrip("/") == TEMPORARY]
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not container.get("command"):
        raise ConfigError(
            f"container {container['name']!r} has no command: the embedded control plane runs processes, not images, "
            "so an image's entry point is unknown; set command"
        )
    argv = [translate(expand(str(word), declared), mounts, resolve) for word in words]
    directory = container.get("workingDir")
    cwd = PurePath(translate(directory, mounts, resolve)) if directory else None
    return Command(tuple(argv), {**base, **dict(temporary), **defaults, **variables}, cwd)
