"""The plan by which one command builds all images."""

from __future__ import annotations

import re

import pytest
from image_plan import AMD64, ARM64, VARIANTS, Output, plan
from versions import ROOT, project_version

TABLE = (ROOT / "hack" / "images" / "README.md").read_text()


def test_one_command_builds_every_image_for_both_processors_where_its_framework_has_a_build() -> None:
    built = plan("r.example/diloco", Output.REGISTRY)
    assert built["group"]["default"]["targets"] == list(built["target"])
    platforms = {name: target["platforms"] for name, target in built["target"].items()}
    assert platforms.pop("learner-torch-rocm") == platforms.pop("learner-jax") == [AMD64]
    assert all(each == [AMD64, ARM64] for each in platforms.values())
    assert {"operator", "syncer", "learner-torch", "learner-jax-cuda"} <= set(platforms)


def test_images_have_the_projects_version_and_names_of_their_own() -> None:
    tags = [tag for target in plan("r.example/diloco", Output.REGISTRY)["target"].values() for tag in target["tags"]]
    assert len(set(tags)) == len(VARIANTS)
    assert f"r.example/diloco/learner-torch:{project_version()}-cuda12" in tags


def test_what_is_not_pushed_becomes_one_archive_each() -> None:
    outputs = [target["output"] for target in plan("r", Output.ARCHIVES)["target"].values()]
    assert outputs[0] == ["type=oci,dest=dist/images/operator.tar"]
    assert len({str(output) for output in outputs}) == len(VARIANTS)
    assert plan("r", Output.REGISTRY)["target"]["operator"]["output"] == ["type=registry"]


@pytest.mark.parametrize(("machine", "platform"), [("x86_64", AMD64), ("aarch64", ARM64)])
def test_what_is_loaded_has_the_platform_of_the_machine_alone(machine: str, platform: str) -> None:
    targets = plan("r", Output.LOCAL, machine)["target"]
    assert {(*target["platforms"], *target["output"]) for target in targets.values()} == {(platform, "type=docker")}
    assert ("learner-jax" in targets) == (platform == AMD64), "hosts of TPUs are x86-64"


def test_a_machine_without_images_is_told_which_have_some() -> None:
    with pytest.raises(ValueError, match="there are no images for riscv64: they are for x86_64, aarch64"):
        plan("r", Output.LOCAL, "riscv64")


def test_every_image_is_in_the_table_with_its_processors() -> None:
    rows = {match[1]: match[2] for match in re.finditer(r"^\| `(\S+)` \|.*\| ([a-z0-9, ]+) \|$", TABLE, re.MULTILINE)}
    words = {variant.target: ", ".join(each.removeprefix("linux/") for each in variant.platforms) for variant in VARIANTS}
    assert rows == words
