"""The job that `diloco submit` makes of a training script and its options, and the ConfigMap that carries the script. Pure.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diloco_operator.accelerators import Family
from diloco_operator.api.names import API_VERSION, KIND, LEARNER_CONTAINER
from diloco_operator.kube.client import Obj

from diloco_cli.pool_option import PoolRequest

MAX_SCRIPT_BYTES = 128 * 1024
"""A ConfigMap may have 1 MiB, but `kubectl apply` keeps a copy of it, as JSON, in its annotations, which may have 256 KiB."""
_MOUNT = "/opt/diloco-script"
_VOLUME = "script"
_KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)
_LONGEST_NAME = 32
"""Most characters of a job name made from a script's. It is short because names of pods contain it."""


class BadScript(ValueError):
    """A script that cannot travel; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Script:
    """A program that travels in a ConfigMap."""

    name: str
    """The file's name, without its folder."""
    text: str


@dataclass(frozen=True, slots=True)
class Submission:
    """What the user asked for."""

    name: str
    script: Script | str
    """A str is the script's path in the image."""
    image: str
    pools: Sequence[PoolRequest]
    steps: int
    arguments: Sequence[str] = ()
    namespace: str = ""
    """"" if the cluster's configuration decides."""
    least: int = 1
    """learners.min."""
    queue: str = ""
    """LocalQueue of Kueue, or "" for none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    """Processes of a host with GPUs, or None for one process for each GPU."""
    cpu: str = ""
    memory: str = ""
    """`cpu` and `memory` are Kubernetes quantities that each pod requests. "" is a default in cpu pools, and nothing in others."""
    storage: str = ""
    sync_interval: int | None = None
    fragments: int | None = None

    def on(self, pools: Sequence[PoolRequest]) -> Submission:
        return replace(self, pools=tuple(pools))

    def in_namespace(self, namespace: str) -> Submission:
        return replace(self, namespace=namespace)


def read_script(name: str, content: bytes, command: str) -> Script:
    """Return the script. Raises BadScript if a ConfigMap cannot carry it; the message proposes an image and a line that begins with
    `command`."""
    image = (
        f"build it into an image (docs/your-program.md, An image) and give its path there: {command} --in-image --image IMAGE /app/{name}"
    )
    if len(content) > MAX_SCRIPT_BYTES:
        raise BadScript(f"{name} has {len(content):,} bytes, and a script in a ConfigMap may have {MAX_SCRIPT_BYTES:,}: {image}")
    if not _KEY.fullmatch(name):
        raise BadScript(f"{name!r} is no name of a file in a ConfigMap: use letters, digits, '-', '_' and '.'")
    try:
        return Script(name, content.decode())
    except UnicodeDecodeError as error:
        raise BadScript(f"{name} is no text in UTF-8 (byte {error.start}): {image}") from error


def imported_names(script: Script) -> set[str]:
    """Top-level modules that the script imports. Empty if this Python cannot parse it, since the image may have a newer one."""
    try:
        tree = ast.parse(script.text)
    except (SyntaxError, ValueError):
        return set()
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


def stays_behind(script: Script, beside: Collection[str]) -> list[str]:
    """Modules that the script imports from its own folder, whose modules are `beside`. They do not travel with it."""
    return sorted(imported_names(script) & set(beside))


def name_of_job(script: str) -> str:
    """Make a job's name from the script's file name. Raises BadScript if that is not possible."""
    stem = script.rpartition("/")[2].removesuffix(".py").lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:_LONGEST_NAME].strip("-")
    if not name or not name[0].isalpha():
        raise BadScript(f"no name for a job can be made of {script!r}: give --name, of lower-case letters, digits and '-'")
    return name


def job_of(wanted: Submission) -> Obj:
    training = {
        "steps": wanted.steps,
        **({"syncInterval": wanted.sync_interval} if wanted.sync_interval else {}),
        **({"fragments": wanted.fragments} if wanted.fragments else {}),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": _metadata(wanted.name, wanted.namespace),
        "spec": {
            **({"queueName": wanted.queue} if wanted.queue else {}),
            "learners": {"min": wanted.least, "max": sum(pool.units for pool in wanted.pools)},
            "pools": [_pool(pool, wanted) for pool in wanted.pools],
            "training": training,
            **({"syncer": {"storage": {"size": wanted.storage}}} if wanted.storage else {}),
        },
    }


def config_map_of(wanted: Submission) -> Obj | None:
    """The ConfigMap with the script, or None if the script is in the image. It is immutable, so that restarted units run the same program
    as all others."""
    if isinstance(wanted.script, str):
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(_config_map_name(wanted.name, wanted.script), wanted.namespace),
        "data": {wanted.script.name: wanted.script.text},
        "immutable": True,
    }


def digest_of(script: Script) -> str:
    """SHA-256 of the script's name and text, hexadecimal."""
    return hashlib.sha256(f"{script.name}\0{script.text}".encode()).hexdigest()


def _config_map_name(job: str, script: Script) -> str:
    """With the script's digest, so that another script for a job of the same name is another object."""
    return f"{job}-script-{digest_of(script)[:8]}"


def _metadata(name: str, namespace: str) -> Obj:
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def _pool(pool: PoolRequest, wanted: Submission) -> Obj:
    mounted = not isinstance(wanted.script, str)
    path = f"{_MOUNT}/{wanted.script.name}" if isinstance(wanted.script, Script) else wanted.script
    container: Obj = {
        "name": LEARNER_CONTAINER,
        "image": wanted.image,
        # Kubernetes expands $(NAME) in commands and variables; $$( keeps it as text.
        "command": ["diloco-launch", path, *(text.replace("$(", "$$(") for text in wanted.arguments)],
    }
    if wanted.environment:
        container["env"] = [{"name": name, "value": value.replace("$(", "$$(")} for name, value in sorted(wanted.environment.items())]
    if requests := _requests(pool, wanted):
        container["resources"] = {"requests": requests}
    if mounted:
        container["volumeMounts"] = [{"name": _VOLUME, "mountPath": _MOUNT, "readOnly": True}]
    spec: Obj = {"containers": [container]}
    if isinstance(wanted.script, Script):
        spec["volumes"] = [{"name": _VOLUME, "configMap": {"name": _config_map_name(wanted.name, wanted.script)}}]
    return {**pool.fields(), **pool.processes(wanted.processes), "template": {"spec": spec}}


def _requests(pool: PoolRequest, wanted: Submission) -> dict[str, str]:
    """Cpu pools get defaults, because any number of pods that request nothing may share a core."""
    cpu, memory = ("1", "2Gi") if pool.kind.family is Family.CPU else ("", "")
    quantities = {"cpu": wanted.cpu or cpu, "memory": wanted.memory or memory}
    return {name: value for name, value in quantities.items() if value}
