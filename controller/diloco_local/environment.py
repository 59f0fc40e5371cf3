"""A container's command, arguments and environment on this machine. Pure.

A process here has no mount namespace and no cluster DNS. Therefore paths below a mount are replaced by the folder of its volume, and names
of pods by loopback addresses, in the command, the arguments and the environment.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from diloco.contract import ENV_ACCELERATORS_PER_HOST, ENV_PROCESSES_PER_HOST
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
"""Many units share the cores of one machine. With one thread each they do not slow each other down."""
NO_ACCELERATORS = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
"""A simulated node has no real accelerator. A pod uses a real one of this machine only if it sets these variables itself."""


LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""All hosts of a unit are on this machine, and these libraries would otherwise look up its host name, which need not resolve."""


def cpu_devices(container: Mapping[str, Any]) -> dict[str, str]:
    """Variables with which JAX finds as many devices in each process of a learner as it would have accelerators. The devices are parts of
    the CPU, between which a program shards its model as between chips; together they compute no faster than one."""
    declared = {each["name"]: str(each.get("value") or "") for each in container.get("env") or ()}
    accelerators, processes = (declared.get(name, "") for name in (ENV_ACCELERATORS_PER_HOST, ENV_PROCESSES_PER_HOST))
    if not (accelerators.isdecimal() and processes.isdecimal()) or not 0 < int(processes) < int(accelerators):
        return {}
    return {"JAX_NUM_CPU_DEVICES": str(int(accelerators) // int(processes))}


class ContainerConfigError(Exception):
    """The container cannot be configured, because something that it refers to is missing (CreateContainerConfigError)."""


@dataclass(frozen=True, slots=True)
class Sources:
    """ConfigMaps and Secrets of the pod's namespace, decoded: name -> key -> content. Objects that do not exist are missing."""

    config_maps: Mapping[str, Mapping[str, bytes]]
    secrets: Mapping[str, Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class Mount:
    """A path in the container, and the folder or file of this machine that replaces it."""

    container_path: str
    local_path: str


@dataclass(frozen=True, slots=True)
class LocalNames:
    """What the paths and names in a container are on this machine."""

    mounts: Sequence[Mount]
    resolve: Callable[[str], str]
    """Replaces names of pods by addresses."""

    def translate(self, text: str) -> str:
        """Return `text` with paths below a mount and names of pods replaced by local folders and addresses.

        A path is replaced only where a path can begin, not inside a longer one. The longest mount wins, and replaced text is not scanned
        again. A mount on /tmp is not replaced: a program that opens "/tmp/x" by itself gets this machine's file, so the same path in the
        text must mean that file too.
        """
        local = {path: mount.local_path for mount in self.mounts if (path := mount.container_path.rstrip("/")) != TEMPORARY}
        if local:
            longest_first = sorted(local, key=len, reverse=True)
            pattern = _PATH_START + "(?P<path>" + "|".join(map(re.escape, longest_first)) + ")" + _PATH_END
            text = re.sub(pattern, lambda match: local[match["path"]], text)
        return self.resolve(text)


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: PurePath | None
    """None if the container sets no working directory."""


def field_value(pod: Obj, path: str) -> str:
    """The value of a field of the downward API. Raises ContainerConfigError for a field that real kubelets do not offer either."""
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
    if subscript := _SUBSCRIPT.match(path):
        return str((metadata.get(subscript[1]) or {}).get(subscript[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        items = metadata.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f'{key}="{items[key]}"' for key in sorted(items))
    raise ContainerConfigError(f"fieldRef {path!r} is not a field of the downward API")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value and `$$` by `$`. A reference to an unknown name stays, as in Kubernetes."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match["name"], match[0])

    return _REFERENCE.sub(replace, text)


def declared_environment(pod: Obj, container: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """The variables of a container's env and envFrom, with references resolved and expanded in order. Raises ContainerConfigError."""
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
        raise ContainerConfigError(f"{kind.lower()} {reference['name']!r} not found")
    return data


def _text(value: bytes, kind: str, name: str, key: str) -> str:
    """The value as text for an environment variable. Raises ContainerConfigError if it is not UTF-8 or contains NUL."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ContainerConfigError(
            f"key {key} of {kind.lower()} {name!r} is not text, so it cannot be an environment variable; mount it as a file"
        )
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
            raise ContainerConfigError(
                f"couldn't find key {reference['key']} in {kind.removesuffix('KeyRef').lower()} {reference['name']!r}"
            )
    kinds = ", ".join(source)
    raise ContainerConfigError(
        f"valueFrom {kinds} is not supported on simulated nodes; use value, fieldRef, configMapKeyRef or secretKeyRef"
    )


def command(
    pod: Obj,
    container: Mapping[str, Any],
    *,
    base: Mapping[str, str],
    defaults: Mapping[str, str],
    sources: Sources,
    names: LocalNames,
    shorten: Callable[[str], str] = str,
) -> Command:
    """What to run for a container. Raises ContainerConfigError.

    Args:
        base: the machine's part of the environment (PATH, HOME), with paths of this machine
        defaults: variables that this kubelet sets; the pod's declarations win over both
        shorten: gives the folder that is mounted on /tmp a short name for TMPDIR
    """
    declared = declared_environment(pod, container, sources)
    variables = {name: names.translate(value) for name, value in declared.items()}
    if declared.get("HOME") == TEMPORARY:  # set for containers with a read-only root; here the machine's home is used
        del variables["HOME"]
    temporary = [("TMPDIR", shorten(mount.local_path)) for mount in names.mounts if mount.container_path.rstrip("/") == TEMPORARY]
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not container.get("command"):
        raise ContainerConfigError(
            f"container {container['name']!r} has no command. Simulated nodes run processes, not images, "
            "so they do not know the entry point of an image; set command"
        )
    argv = [names.translate(expand(str(word), declared)) for word in words]
    directory = container.get("workingDir")
    cwd = PurePath(names.translate(directory)) if directory else None
    return Command(tuple(argv), {**base, **dict(temporary), **defaults, **variables}, cwd)
