"""A pool asks for what its program uses: validate, plan and doctor say where it does not, and no example or document does that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.documents import PRESENT, ROOT, fences
from builders.facts import facts
from builders.jobs import Obj, a_job, a_manifest, cpu_pool, gpu_pool, template, tpu_pool
from builders.nodes import a_fleet_gpu_node, a_fleet_node, a_gpu_node
from click.testing import CliRunner
from diloco_cli.checks import Check, Level, examine
from diloco_cli.diloco.main import main
from diloco_cli.idle_accelerators import idle_accelerators
from diloco_operator.api import names
from diloco_operator.api.spec import Pool

ONE_OF_EIGHT = "each pod asks for 8 accelerators and starts 1 process, and a process computes on one of them in most programs"
REMEDY = (
    "set processesPerHost: 8 and start the program with diloco-launch, or set acceleratorsPerHost: 1. If one process uses several, as in "
    "JAX, say so: acceleratorsPerHost: 8 and processesPerHost: 1"
)
TORCH = ("-m", "diloco.trainers.byte_lm_torch")


def idle(pool: Obj) -> str:
    found = idle_accelerators(Pool.model_validate(pool))
    return found.message if found else ""


@pytest.mark.parametrize(
    ("pool", "processes", "accelerators"),
    [
        pytest.param(gpu_pool(), 1, 8, id="all of a host by default, one process by default"),
        pytest.param(gpu_pool(acceleratorsPerHost=8), 1, 8, id="one process by default"),
        pytest.param(gpu_pool(processesPerHost=4), 4, 8, id="all of a host by default"),
        pytest.param(gpu_pool(accelerator="nvidia-gb200"), 1, 4, id="a host of four"),
        pytest.param(gpu_pool(template=template(command=["diloco-launch", "--nproc-per-node", "2", "train.py"])), 2, 8, id="the launcher"),
        pytest.param(
            gpu_pool(acceleratorsPerHost=8, processesPerHost=8, template=template(command=["python", *TORCH])), 1, 8, id="no launcher"
        ),
        pytest.param(
            gpu_pool(acceleratorsPerHost=8, processesPerHost=1, template=template(command=["diloco-launch", *TORCH])), 1, 8, id="our own"
        ),
    ],
)
def test_accelerators_beyond_the_processes_are_idle(pool: Obj, processes: int, accelerators: int) -> None:
    what = "1 process" if processes == 1 else f"{processes} processes"
    assert idle(pool).startswith(f"each pod asks for {accelerators} accelerators and starts {what},")


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param(gpu_pool(processesPerHost=8), id="one for each"),
        pytest.param(gpu_pool(acceleratorsPerHost=1), id="one"),
        pytest.param(gpu_pool(acceleratorsPerHost=8, processesPerHost=1), id="the job says that one process has all"),
        pytest.param(gpu_pool(template=template(command=["torchrun", "--nproc_per_node=8", "train.py"])), id="the launcher"),
        pytest.param(tpu_pool(topology="2x2x1"), id="one process has all chips of a TPU host"),
        pytest.param(cpu_pool(), id="cpu"),
        pytest.param(gpu_pool(accelerator="acme-npu"), id="an unknown kind, of which other checks say that"),
    ],
)
def test_what_has_a_process_or_is_shared_on_purpose_is_not_idle(pool: Obj) -> None:
    assert idle(pool) == ""


def test_a_program_in_torch_uses_no_chip_of_a_tpu() -> None:
    pool = tpu_pool(topology="2x2x1", template=template(command=["diloco-launch", *TORCH]))
    assert idle(pool) == "a trainer in torch uses none of the 4 chips of each host"


# --- where people see it ------------------------------------------------------------------------------------------------
def written(path: Path, *objs: Obj) -> str:
    path.write_text(yaml.safe_dump_all(objs, sort_keys=False))
    return str(path)


def test_validate_warns_and_the_job_is_valid(tmp_path: Path) -> None:
    file = written(tmp_path / "job.yaml", a_manifest("lm", min=1, pools=[tpu_pool(), gpu_pool()]))
    result = CliRunner().invoke(main, ["validate", file])
    assert (result.exit_code, result.stdout) == (0, f"{file}: document 1 (lm): valid\n")
    line = Path(file).read_text().splitlines().index("  - name: h100") + 1
    assert result.stderr == f"warning: {file}:{line}: document 1 (lm): spec.pools[1]: {ONE_OF_EIGHT}; {REMEDY}\n"
    found = json.loads(CliRunner().invoke(main, ["validate", file, "-o", "json"]).stdout)
    assert (found["valid"], found["problems"]) == (True, [])
    assert [(each["field"], each["line"], each["message"]) for each in found["warnings"]] == [
        ("spec.pools[1]", line, f"{ONE_OF_EIGHT}; {REMEDY}")
    ]


@pytest.mark.slow
def test_plan_has_a_note(tmp_path: Path) -> None:
    job = written(tmp_path / "job.yaml", a_manifest("lm", min=1, pools=[gpu_pool(max=1)]))
    fleet = written(tmp_path / "fleet.yaml", a_fleet_gpu_node("h100-0"), a_fleet_node("cpu-0", cpu=8))
    result = CliRunner().invoke(main, ["plan", job, "--fleet", fleet])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"Note: pool h100 of default/lm: {ONE_OF_EIGHT}; {REMEDY}"


def test_doctor_warns_beside_what_it_says_of_nodes() -> None:
    job = a_job().with_learners(1, 1).with_pool("h100", accelerator="nvidia-h100-80gb", max=1).build()
    found = [each for each in examine(facts({names.NODES: [a_gpu_node("h100-0")]}, job=job)) if each.check is Check.POOLS]
    assert [(each.level, each.where, each.remedy) for each in found] == [
        (Level.WARNING, "pool h100", REMEDY),
        (Level.OK, "pool h100", ""),
    ]
    assert found[0].message == ONE_OF_EIGHT


# --- what we show -------------------------------------------------------------------------------------------------------
def pools_in(value: Any) -> Iterator[Obj]:
    """Every pool of a job or of a part of one."""
    if isinstance(value, dict) and "accelerator" in value and "template" in value:
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from pools_in(each)


def shown_pools() -> Iterator[tuple[str, Obj]]:
    """Every pool of the examples and of the documents, with its place. Parts of jobs leave out what is not their subject."""
    for path in sorted((ROOT / "examples").glob("**/*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield from ((f"examples/{path.name}: {pool['name']}", pool) for pool in pools_in(document))
    for page in PRESENT:
        for language, text, _, line in fences(page):
            if language == "yaml":
                for pool in (found for document in yaml.safe_load_all(text) for found in pools_in(document)):
                    left_out = "spec" not in pool["template"]
                    whole = {"learners": {"max": 1}, **pool, **({"template": template(command=["diloco-launch"])} if left_out else {})}
                    yield f"{page}:{line}: {pool['name']}", whole


SHOWN = dict(shown_pools())


@pytest.mark.parametrize("place", SHOWN)
def test_examples_and_documents_use_what_they_ask_for(place: str) -> None:
    pool = Pool.model_validate(SHOWN[place])
    assert idle_accelerators(pool) is None
    [command] = [each.get("command", ()) for each in pool.template.spec["containers"] if each["name"] == "learner"]
    if pool.accelerator.startswith("tpu"):
        assert any("diloco-launch" in word for word in command), "it raises the limit of locked memory, which TPUs need"


def test_the_walk_finds_examples_and_parts_of_jobs_in_documents() -> None:
    assert {"examples/quickstart.yaml: v6e", "examples/llama.yaml: h100", "examples/flex-start.yaml: h100"} <= set(SHOWN)
    assert {place.partition(":")[0] for place in SHOWN} >= {"docs/your-program.md", "docs/guide/several-gpus.md", "docs/sharing.md"}
