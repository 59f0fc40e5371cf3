"""The list of images, and the file with which `docker buildx bake` builds them all: `make images`.

    hack/image_plan.py --registry registry.example.com/diloco [--push | --load] | docker buildx bake -f -

See docs/decisions/0107-packages-and-images.md.
"""

from __future__ import annotations

import argparse
import enum
import json
import platform
import sys
from dataclasses import dataclass
from typing import Any

from versions import project_version

REGISTRY = "ghcr.io/diloco-operator"
AMD64, ARM64 = "linux/amd64", "linux/arm64"
_PLATFORMS = {"x86_64": AMD64, "aarch64": ARM64}


@dataclass(frozen=True)
class Variant:
    """One image, for one or more platforms."""

    image: str
    dockerfile: str
    accelerator: str = ""
    """Value of the build argument ACCELERATOR. "" if the Dockerfile has none."""
    suffix: str = ""
    """Follows the version in the tag."""
    platforms: tuple[str, ...] = (AMD64, ARM64)

    @property
    def target(self) -> str:
        """The image's name in the plan."""
        return self.image + self.suffix

    def tag(self, registry: str) -> str:
        return f"{registry}/{self.image}:{project_version()}{self.suffix}"


VARIANTS = (
    Variant("operator", "controller/Dockerfile"),
    Variant("syncer", "runtimes/syncer.Dockerfile"),
    Variant("learner-torch", "runtimes/torch.Dockerfile", "cuda"),
    Variant("learner-torch", "runtimes/torch.Dockerfile", "cuda12", "-cuda12"),
    # torch has no build for ROCm on Arm.
    Variant("learner-torch", "runtimes/torch.Dockerfile", "rocm", "-rocm", (AMD64,)),
    Variant("learner-torch", "runtimes/torch.Dockerfile", "cpu", "-cpu"),
    # Hosts of TPUs are x86-64, and libtpu has no other build.
    Variant("learner-jax", "runtimes/jax.Dockerfile", "tpu", platforms=(AMD64,)),
    Variant("learner-jax", "runtimes/jax.Dockerfile", "cuda", "-cuda"),
    Variant("learner-jax", "runtimes/jax.Dockerfile", "cuda12", "-cuda12"),
    Variant("learner-jax", "runtimes/jax.Dockerfile", "cpu", "-cpu"),
)


class Output(enum.Enum):
    """Where the images go."""

    ARCHIVES = "type=oci,dest=dist/images/{target}.tar"
    """A file for each image, with all its platforms."""
    REGISTRY = "type=registry"
    LOCAL = "type=docker"
    """Docker's images on this machine, with one platform each: no local store takes two, and `kind load` needs whole images."""


def plan(registry: str, output: Output, machine: str = "") -> dict[str, Any]:
    """The file that bake reads. `machine`: build only for this one, named as by `uname -m`; "" means all platforms. Raises ValueError for
    a machine that has no images."""
    only = _PLATFORMS.get(machine)
    if machine and only is None:
        raise ValueError(f"there are no images for {machine}: they are for {', '.join(_PLATFORMS)}")
    targets = {
        variant.target: {
            "context": ".",
            "dockerfile": variant.dockerfile,
            "platforms": [only] if only else list(variant.platforms),
            "tags": [variant.tag(registry)],
            "args": {"ACCELERATOR": variant.accelerator} if variant.accelerator else {},
            # The registry keeps beside each image what it was built from and what is in it.
            "attest": ["type=provenance,mode=max", "type=sbom"] if output is Output.REGISTRY else [],
            "output": [output.value.format(target=variant.target)],
        }
        for variant in VARIANTS
        if only is None or only in variant.platforms
    }
    return {"group": {"default": {"targets": list(targets)}}, "target": targets}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the file by which docker buildx bake builds all images.")
    parser.add_argument("--registry", default=REGISTRY, help="what stands before the images' names (default: %(default)s)")
    destination = parser.add_mutually_exclusive_group()
    destination.add_argument("--push", action="store_true", help="push them; without it archives go to dist/images")
    destination.add_argument("--load", action="store_true", help="build for this machine alone, and put them among Docker's images here")
    arguments = parser.parse_args()
    output = Output.REGISTRY if arguments.push else Output.LOCAL if arguments.load else Output.ARCHIVES
    try:
        bake_file = plan(arguments.registry, output, platform.machine() if arguments.load else "")
    except ValueError as error:
        parser.error(str(error))
    json.dump(bake_file, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
