"""Makes a release: one version wherever it stands, a heading in the changelog, and in a folder wheels, chart, images and their checksums.

    hack/release.py 0.2.0 [--output dist] [--registry ghcr.io/diloco-operator] [--push] [--parts wheels,chart,images] [--require PARTS]
                          [--dry-run]

If this machine lacks the program for a part, the part is left out, and a line says so; with --require that is an error, raised before
anything is written. Nothing is committed, and nothing is uploaded but images with --push, which needs a commit that has the version.

See docs/decisions/0107-packages-and-images.md.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import image_plan
import versions
from packaging.version import InvalidVersion, Version

CHANGELOG = "CHANGELOG.md"
UNRELEASED = "## [Unreleased]\n"
PARTS = ("wheels", "chart", "images")
CHART = "helm/diloco-operator"


class CannotRelease(Exception):
    """There can be no release. The message says why, and what to do."""


@dataclass(frozen=True)
class Options:
    version: str
    day: str
    """The day in the changelog, ISO 8601."""
    output: Path
    registry: str
    push: bool
    parts: frozenset[str]
    """Parts to build, some of `PARTS`."""
    required: frozenset[str]
    """If one of these parts cannot be built, nothing is written."""


# --- what would change ------------------------------------------------------------------------------------------------
def check_version(wanted: str, current: str) -> None:
    """Raise CannotRelease unless `wanted` is a version, and the current one or a later one."""
    if not re.fullmatch(versions.VERSION, wanted):
        raise CannotRelease(f"{wanted!r} is no version: write three numbers, such as 0.2.0, or a candidate, such as 0.2.0rc1")
    try:
        later = Version(wanted) >= Version(current)
    except InvalidVersion as error:
        raise CannotRelease(f"pyproject.toml has no version to compare with: {error}") from error
    if not later:
        raise CannotRelease(f"{wanted} comes before {current}, which pyproject.toml has; give a later one, or {current} itself")


def changed_files(root: Path, version: str, day: str) -> dict[str, str]:
    """File -> its new text, for each file that the release changes. Empty if the tree has the release already, and is only built again."""
    changed: dict[str, str] = {}
    for file, pattern in versions.places():
        before = changed.get(file) or (root / file).read_text()
        after = versions.replaced(before, pattern, version)
        if after != before:
            changed[file] = after
    changelog = changed.get(CHANGELOG) or (root / CHANGELOG).read_text()
    if not changed and _has(changelog, version):
        return {}
    return {**changed, CHANGELOG: released(changelog, version, day)}


def released(changelog: str, version: str, day: str) -> str:
    """The changelog with a heading for this version above what was unreleased. Raises CannotRelease if nothing was unreleased, or if there
    is a heading for the version already."""
    if _has(changelog, version):
        raise CannotRelease(f"{CHANGELOG} has a heading for {version} already; give the next version")
    _, heading, rest = changelog.partition(UNRELEASED)
    if not heading or not re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip():
        raise CannotRelease(f"{CHANGELOG} has nothing below {UNRELEASED.strip()}; write what users get with {version} there")
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n## [{version}] - {day}\n", 1)


def _has(changelog: str, version: str) -> bool:
    return bool(re.search(rf"^## \[{re.escape(version)}\]", changelog, re.MULTILINE))


# --- what is built ----------------------------------------------------------------------------------------------------
def missing(which: Callable[[str], str | None] = shutil.which) -> Mapping[str, str]:
    """Part -> what this machine lacks to build it, for each part that it cannot build."""
    lacking = {}
    uv = versions.ROOT / ".tools" / "uv" / "bin" / "uv"
    if which("uv") is None and not uv.exists():
        lacking["wheels"] = "uv is not installed; make setup brings it"
    if which("helm") is None:
        lacking["chart"] = "helm is not on PATH"
    docker = which("docker")
    if docker is None:
        lacking["images"] = "docker is not on PATH"
    elif subprocess.run([docker, "buildx", "version"], capture_output=True, check=False).returncode:
        lacking["images"] = "docker has no buildx"
    elif subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        lacking["images"] = "docker reaches no daemon"
    return lacking


def build(options: Options, parts: Sequence[str]) -> None:
    """Build these parts from the tree as it is, and write the list of their checksums."""
    options.output.mkdir(parents=True, exist_ok=True)
    if "wheels" in parts:
        _run("wheels", [str(versions.ROOT / "hack" / "wheels.sh"), str(options.output)])
    if "chart" in parts:
        _run("chart", ["helm", "package", str(versions.ROOT / CHART), "--destination", str(options.output)])
    if "images" in parts:
        (versions.ROOT / "dist" / "images").mkdir(parents=True, exist_ok=True)
        plan = json.dumps(image_plan.plan(options.registry, image_plan.Output.REGISTRY if options.push else image_plan.Output.ARCHIVES))
        # The metadata file has the digests of the images. Signatures are for these.
        _run("images", ["docker", "buildx", "bake", "--file", "-", "--metadata-file", str(options.output / "images.json")], text=plan)
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
        for path in sorted(options.output.glob(f"diloco*-{options.version}*"))
    ]
    (options.output / "SHA256SUMS").write_text("".join(f"{line}\n" for line in sums))


def _run(part: str, command: Sequence[str], text: str | None = None) -> None:
    # Without UV_PYTHON, uv would look for another Python, or download one, if the checkout has no .venv.
    environment = {**os.environ, "UV_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=versions.ROOT, env=environment, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise CannotRelease(f"{part}: {' '.join(command[:3])} ended with status {done.returncode}:\n{done.stdout}")


# --- the command ------------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="such as 0.2.0 or 0.2.0rc1")
    parser.add_argument("--output", type=Path, default=versions.ROOT / "dist", help="folder of what is built; default dist")
    parser.add_argument("--date", default="", help="day in the changelog, as 2026-11-26; default today, UTC")
    parser.add_argument("--registry", default=image_plan.REGISTRY, help="prefix of the images' names")
    parser.add_argument("--push", action="store_true", help="push the images; else they become archives in dist/images")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to build; default all that this machine has the programs for")
    parser.add_argument("--require", default="", help=f"parts without which there is no release: some of {','.join(PARTS)}")
    parser.add_argument("--dry-run", action="store_true", help="change and build nothing")
    given = parser.parse_args(arguments)
    required, parts = (frozenset(filter(None, text.split(","))) for text in (given.require, given.parts))
    if unknown := sorted((required | parts) - set(PARTS)):
        parser.error(f"{unknown[0]} is no part of a release; the parts are {', '.join(PARTS)}")
    day = given.date or datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        release(
            Options(given.version, day, given.output.resolve(), given.registry, given.push, parts | required, required),
            dry_run=given.dry_run,
        )
    except CannotRelease as error:
        sys.exit(f"error: {error}")


def release(options: Options, *, dry_run: bool) -> None:
    """Write the version and build. Raises CannotRelease before anything is written if a required part cannot be built."""
    check_version(options.version, versions.project_version())
    changes = changed_files(versions.ROOT, options.version, options.day)
    if changes and options.push and not dry_run:
        raise CannotRelease(
            f"{', '.join(sorted(changes)[:3])} … would change, and images are pushed of what is committed: "
            f"run this without --push, commit, tag the commit v{options.version}, and run it again there"
        )
    lacking = missing()
    if short := [f"{part}: {lacking[part]}" for part in PARTS if part in lacking and part in options.required]:
        raise CannotRelease(f"this machine cannot build what --require names. {'; '.join(short)}")
    for file in sorted(changes):
        print(f"{'would change' if dry_run else 'changed'} {file}")
        if not dry_run:
            (versions.ROOT / file).write_text(changes[file])
    wanted = [part for part in PARTS if part in options.parts]
    for part in wanted:
        if part in lacking:
            print(f"left out {part}: {lacking[part]}", flush=True)
        else:
            print(f"{'would build' if dry_run else 'builds'} {part}", flush=True)
    if dry_run:
        return
    build(options, [part for part in wanted if part not in lacking])
    print(f"{options.version} is in {options.output}. Commit the files above, and tag the commit v{options.version}")


if __name__ == "__main__":
    main()
