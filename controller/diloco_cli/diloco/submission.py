"""The job that `diloco submit` makes of a training script and a few words, and the ConfigMap that carries the script. Pure.

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

from diloco_cli.diloco.pool_option import PoolRequest

MAX_SCRIPT_BYTES = 128 * 1024
"""Most bytes of a script in a ConfigMap. That takes 1 MiB, but `kubectl apply` keeps a copy, as JSON, in an annotation, and all
annotations of an object take 256 KiB."""
_MOUNT = "/opt/diloco-script"
_VOLUME = "script"
_KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)
_LONGEST_NAME = 32
"""Most characters of a name that is made from a script's: names of jobs are short, because those of pods are made from them."""


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
    """What was asked for."""

    name: str
    script: Script | str
    """A str: its path in the image."""
    image: str
    pools: Sequence[PoolRequest]
    steps: int
    arguments: Sequence[str] = ()
    namespace: str = ""
    """"": the caller's."""
    least: int = 1
    """learners.min."""
    queue: str = ""
    """LocalQueue of Kueue; "": none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    """Processes of a host with GPUs; None: one for each GPU."""
    cpu: str = ""
    memory: str = ""
    """What each pod requests, Kubernetes quantities; "": the defaults of cpu pools, and nothing for others."""
    storage: str = ""
    sync_interval: int | None = None
    fragments: int | None = None

    def on(self, pools: Sequence[PoolRequest]) -> Submission:
        """Return the same on these pools."""
        return replace(self, pools=tuple(pools))

    def in_namespace(self, namespace: str) -> Submission:
        """Return the same in this namespace."""
        return replace(self, namespace=namespace)


def read_script(name: str, content: bytes, command: str) -> Script:
    """Raise BadScript for what a ConfigMap cannot carry. `command`: the beginning of the line that names the script in an image instead."""
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
    """Return the top-level modules that the script imports; none if this Python cannot read it."""
    try:
        tree = ast.parse(script.text)
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def stays_behind(script: Script, beside: Collection[str]) -> list[str]:
    """Return the modules that the script imports from its own folder, which do not travel. `beside`: names of modules in that folder."""
    return sorted(imported_names(script) & set(beside))


def name_of_job(script: str) -> str:
    """Return a name for the job of this script; raises BadScript where there is none in it."""
    stem = script.rpartition("/")[2].removesuffix(".py").lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:_LONGEST_NAME].strip("-")
    if not name or not name[0].isalpha():
        raise BadScript(f"no name for a job can be made of {script!r}: give --name, of lower-case letters, digits and '-'")
    return name


def job_of(wanted: Submission) -> Obj:
    """Return the DiLoCoJob."""
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
    """Return the ConfigMap with the script; None: the script is in the image. It cannot be changed, so that all units of a job, also those
    that start again, run the same program."""
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
    """Return the SHA-256 of its name and text, hexadecimal."""
    return hashlib.sha256(f"{script.name}\0{script.text}".encode()).hexdigest()


def _config_map_name(job: str, script: Script) -> str:
    """Return a name that says which script it is: another one under the same job's name is another object."""
    return f"{job}-script-{digest_of(script)[:8]}"


def _metadata(name: str, namespace: str) -> Obj:
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def _pool(pool: PoolRequest, wanted: Submission) -> Obj:
    mounted = not isinstance(wanted.script, str)
    path = f"{_MOUNT}/{wanted.script.name}" if isinstance(wanted.script, Script) else wanted.script
    container: Obj = {
        "name": LEARNER_CONTAINER,
        "image": wanted.image,
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
    processes = (wanted.processes or pool.gpus) if pool.gpus else 0
    return {**pool.fields(), **({"processesPerHost": processes} if processes > 1 else {}), "template": {"spec": spec}}


def _requests(pool: PoolRequest, wanted: Submission) -> dict[str, str]:
    """Return what a pod asks for. A pod of a cpu pool that asks for nothing may share a core with any number of others."""
    cpu, memory = ("1", "2Gi") if pool.kind.family is Family.CPU else ("", "")
    asked = {"cpu": wanted.cpu or cpu, "memory": wanted.memory or memory}
    return {name: value for name, value in asked.items() if value}
