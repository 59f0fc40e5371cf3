"""What JAX and torch compiled in one pod is there for the next."""

import os
from pathlib import Path

import pytest
from builders.exploration import full
from builders.local import has_phase, local_nodes
from builders.pods import a_pod
from diloco_local.compilation_cache import CACHE_VARIABLES, cache_folders, trim_caches
from diloco_local.state_dir import StateDir
from diloco_operator.api.names import PODS

# JAX tells its listeners of each program that it finds; what it computes with one is printed to the last bit.
JAX = """
import jax
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
print(float(jax.jit(lambda x: jax.numpy.vdot(jax.numpy.sin(x), x))(jax.numpy.arange(64.0))).hex())
print(found.count("/jax/compilation_cache/cache_hits"), found.count("/jax/compilation_cache/cache_misses"))
"""
# Inductor counts the graphs that it finds.
TORCH = """
import torch
from torch._dynamo.utils import counters
print(float(torch.compile(lambda x: torch.dot(torch.sin(x), x))(torch.arange(64.0))).hex())
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.slow
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("program", [JAX, full(TORCH)], ids=["jax", "torch"])
async def test_a_later_pod_compiles_nothing_again_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    for variable in CACHE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)  # that of these tests
    async with local_nodes(tmp_path) as local:
        for name in ("first", "second"):
            await local.create(PODS, a_pod(name, "python", "-c", program))
            await local.pod(name, has_phase("Succeeded"), timeout=900)
        first, second = (local.log(name).split() for name in ("first", "second"))
    value, found, compiled = first
    assert int(found) == 0 < int(compiled)
    assert second == [value, compiled, "0"]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{}, {"JAX_COMPILATION_CACHE_DIR": "/chosen"}])
async def test_the_folder_of_the_users_shell_wins_and_a_chosen_one_wins_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str]
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/of-the-shell")
    async with local_nodes(tmp_path, environment=chosen) as local:
        await local.run(a_pod("pod", "sh", "-c", "echo $JAX_COMPILATION_CACHE_DIR $JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"))
        assert local.log("pod") == f"{chosen.get('JAX_COMPILATION_CACHE_DIR', '/of-the-shell')} 0\n"


@pytest.mark.slow
async def test_every_compiler_has_a_folder_of_its_own_in_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in CACHE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    async with local_nodes(tmp_path) as local:
        await local.run(a_pod("pod", "sh", "-c", "echo $JAX_COMPILATION_CACHE_DIR; echo $TORCHINDUCTOR_CACHE_DIR; echo $TRITON_CACHE_DIR"))
        folders = [Path(line) for line in local.log("pod").splitlines()]
    assert folders == [*cache_folders(folders[0].parents[1])]
    assert all(folder.is_relative_to(tmp_path) for folder in folders)


def test_programs_of_several_files_go_as_a_whole(tmp_path: Path) -> None:
    *_, folder = cache_folders(tmp_path)
    for age, name in enumerate(("newer", "older")):
        (folder / name / "deep").mkdir(parents=True)
        for file in (folder / name / "kernel", folder / name / "deep" / "kernel.json"):
            file.write_bytes(bytes(50))
            os.utime(file, (1_000_000 - age, 1_000_000 - age))
    trim_caches(tmp_path, most=199)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == [
        "newer",
        "newer/deep",
        "newer/deep/kernel.json",
        "newer/kernel",
    ]


def test_the_oldest_programs_go_when_all_are_too_large(tmp_path: Path) -> None:
    folder, *_ = cache_folders(tmp_path)
    folder.mkdir(parents=True)
    for age, name in enumerate(("newest", "middle", "oldest")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1_000_000 - age, 1_000_000 - age))
    trim_caches(tmp_path, most=299)
    assert sorted(path.name for path in folder.iterdir()) == ["middle", "newest"]
    with StateDir(tmp_path):  # far below its limit
        assert sorted(path.name for path in folder.iterdir()) == ["middle", "newest"]
