"""Which images there are, and the file by which `docker buildx bake` builds them all: `make images`.

    hack/image_plan.py --registry registry.example.com/diloco [--push] | docker buildx bake -f -

See docs/decisions/0107-packages-and-images.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

from versions import project_version

REGISTRY = "ghcr.io/diloco-operator"
AMD64, ARM64 = "linux/amd64", "linux/arm64"


@dataclass(frozen=True)
class Variant:
    """One image, for one or several kinds of processors."""

    image: str
    dockerfile: str
    accelerator: str = ""
    """Value of the build argument; "": the Dockerfile has none."""
    suffix: str = ""
    """Behind the version in the tag."""
    platforms: tuple[str, ...] = (AMD64, ARM64)

    @property
    def target(self) -> str:
        """Its name in the plan."""
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


def plan(registry: str, *, push: bool) -> dict[str, Any]:
    """Return what bake reads. Without `push` each image becomes an archive in dist/images, as no local store holds two platforms of one."""
    targets = {
        variant.target: {
            "context": ".",
            "dockerfile": variant.dockerfile,
            "platforms": list(variant.platforms),
            "tags": [variant.tag(registry)],
            "args": {"ACCELERATOR": variant.accelerator} if variant.accelerator else {},
            # What an image was built from, and what is in it, stand beside it in the registry.
            "attest": ["type=provenance,mode=max", "type=sbom"] if push else [],
            "output": ["type=registry"] if push else [f"type=oci,dest=dist/images/{variant.target}.tar"],
        }
        for variant in VARIANTS
    }
    return {"group": {"default": {"targets": list(targets)}}, "target": targets}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the file by which docker buildx bake builds all images.")
    parser.add_argument("--registry", default=REGISTRY, help="what stands before the images' names (default: %(default)s)")
    parser.add_argument("--push", action="store_true", help="push them; without it archives go to dist/images")
    arguments = parser.parse_args()
    json.dump(plan(arguments.registry, push=arguments.push), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
