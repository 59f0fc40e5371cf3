"""The commented job that `diloco init` writes, for the hardware that a cluster has. Pure.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from diloco.wording import plural
from diloco_operator.accelerators import Accelerator, Family
from diloco_operator.api.names import API_VERSION, KIND
from diloco_operator.api.spec import MAX_LEARNERS
from diloco_operator.program.yaml_reader import BadYaml, load

from diloco_cli.pool_option import PoolRequest

_IMAGE_COMMENT = "Python, diloco and your program: docs/your-program.md"


def starter_job(name: str, image: str, pools: Sequence[PoolRequest], remarks: Sequence[str] = ()) -> str:
    """The job file as text. Each of the `pools`, at least one, has as many units as the cluster has slices. `remarks` are about hardware
    that no pool can name, and become comments."""
    units = min(MAX_LEARNERS, sum(pool.units for pool in pools))
    lines = [
        "# A starter job, written by diloco init from the nodes of the cluster. Change what is marked TODO, then:",
        "#   diloco validate FILE          checks it",
        "#   diloco plan FILE              says where its units would run, before anything is applied",
        "#   kubectl apply -f FILE",
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
        "metadata:",
        f"  name: {_scalar(name)}",
        "spec:",
        "  learners:",
        "    min: 1                     # with fewer the job says Degraded; it goes on with training.quorum of them",
        f"    max: {units:<22} # over all pools; kubectl scale changes it",
        "  pools:                       # in order of preference where placement.objective is Preference",
    ]
    for pool in pools:
        lines += _pool(pool, image)
    lines += [f"  # {remark}" for remark in remarks]
    lines += [
        "  training:",
        "    steps: 1000                # TODO: outer steps of the whole job",
        "    syncInterval: 24           # local steps between two merges of one fragment",
        "    fragments: 24              # at most syncInterval, and one for each tensor of the model",
        "    checkpoint:",
        "      everySteps: 100          # the syncer writes a snapshot to its volume",
        "      keep: 3",
        "  syncer:",
        "    storage:",
        "      size: 10Gi               # TODO: checkpoint.keep + 1 snapshots, each two to three times the size of the model in float32",
        "      # className: fast        # where the cluster has no default StorageClass",
        "      retain: Delete           # Keep: the model outlives the job",
    ]
    return "\n".join(lines) + "\n"


def _pool(pool: PoolRequest, image: str) -> list[str]:
    has = plural(pool.units, "slice" if pool.kind.family is Family.TPU else "host")
    fields = pool.fields()
    lines = [f"  - name: {pool.name}", f"    accelerator: {pool.kind.name:<17} # the cluster has {has}{_of(pool)}"]
    lines += [f"    {key}: {fields[key]}" for key in ("topology", "chipsPerHost", "acceleratorsPerHost") if key in fields]
    lines += [f"    {field}: {count:<10} # one process for each accelerator" for field, count in pool.processes().items()]
    lines += [
        f"    learners: {{max: {pool.units}}}",
        "    template:                  # a pod, as in a Deployment; the operator adds devices, tolerations and the choice of nodes",
        "      spec:",
        "        containers:",
        "        - name: learner        # this container is the unit's; others are sidecars",
        f"          image: {_scalar(image) if image else 'registry.example.com/my-training:1  # TODO'}",
        f"          # {_IMAGE_COMMENT}",
        "          command: [diloco-launch, train.py]   # TODO: relative to the image's working directory",
    ]
    if pool.kind.family is Family.CPU:
        lines.append('          resources: {requests: {cpu: "1", memory: 2Gi}}')
    return lines


def _scalar(text: str) -> str:
    """The text as a value in YAML, with quotes if YAML would read it as something else."""
    try:
        plain = load(f"value: {text}") == {"value": text}
    except BadYaml:
        plain = False
    return text if plain else json.dumps(text)


def _of(pool: PoolRequest) -> str:
    kind: Accelerator = pool.kind
    if kind.family is Family.TPU:
        return f" of {pool.topology}"
    return f" with {pool.per_host} each" if pool.per_host else ""
