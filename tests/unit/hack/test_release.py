"""A release on a copy of the tree: one version everywhere, and what each machine can build. tests/images builds one whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import release
import versions
from builders.checkouts import a_copy_of_the_tree
from release import CannotRelease, check_version, released

LOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-01\n\n- The first.\n"


@pytest.mark.parametrize("version", ["0.1.0", "0.1.1", "0.2.0rc1", "1.0.0"])
def test_the_same_version_or_a_later_one_can_be_released(version: str) -> None:
    check_version(version, "0.1.0")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.0.9", "0.0.9 comes before 0.1.0"),
        ("0.1.0rc1", "comes before"),
        ("latest", "write three numbers"),
        ("v0.2.0", "write three numbers"),
    ],
)
def test_what_is_no_later_version_is_refused(version: str, words: str) -> None:
    with pytest.raises(CannotRelease, match=words):
        check_version(version, "0.1.0")


def test_what_was_unreleased_stands_below_the_version_and_the_day() -> None:
    begin = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- A thing.\n\n## [0.1.0]"
    assert released(LOG, "0.2.0", "2026-12-01").startswith(begin)


def test_a_release_without_a_change_or_with_a_heading_that_is_there_is_refused() -> None:
    with pytest.raises(CannotRelease, match=r"has a heading for 0\.1\.0 already; give the next version"):
        released(LOG, "0.1.0", "2026-12-01")
    with pytest.raises(CannotRelease, match=r"nothing below ## \[Unreleased\]; write what users get with 0\.3\.0"):
        released(released(LOG, "0.2.0", "2026-12-01"), "0.3.0", "2026-12-02")


# --- on a copy of the tree --------------------------------------------------------------------------------------------
@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return a_copy_of_the_tree(tmp_path / "tree")


HELM = """#!/bin/sh
while [ "$1" != --destination ]; do shift; done
echo chart >"$2/diloco-operator-9.9.9.tgz"
"""
DOCKER = """#!/bin/sh
[ "$2" = bake ] && /bin/cat >"${0%/*}/plan.json"
exit 0
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH with git alone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").symlink_to(shutil.which("git") or "")
    return folder


def make(tree: Path, programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the script of the tree."""
    command = [sys.executable, str(tree / "hack" / "release.py"), *arguments, "--date", "2026-12-01"]
    return subprocess.run(command, env={**os.environ, "PATH": str(programs)}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_dry_run_names_every_file_and_changes_none(tree: Path, programs: Path) -> None:
    done = make(tree, programs, "9.9.9", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert {"would change pyproject.toml", "would change CHANGELOG.md", "would change helm/diloco-operator/Chart.yaml"} <= {
        *done.stdout.splitlines()
    }
    assert subprocess.run(["git", "status", "--porcelain"], cwd=tree, capture_output=True, text=True, check=True).stdout == ""
    assert not (tree / "dist").exists()


@pytest.mark.slow
def test_every_version_is_the_new_one_and_parts_that_cannot_be_built_are_said(tree: Path, programs: Path, tmp_path: Path) -> None:
    for name, text in {"helm": HELM, "docker": DOCKER}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    done = make(tree, programs, "9.9.9", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out wheels: uv is not installed; make setup brings it" in done.stdout
    old = versions.project_version()
    for file, pattern in versions.places():
        assert set(versions.found((tree / file).read_text(), pattern)) <= {"9.9.9"}, file
    assert "## [9.9.9] - 2026-12-01" in (tree / "CHANGELOG.md").read_text()
    assert f"/learner-torch:{old}" not in (tree / "docs" / "your-program.md").read_text()
    images = json.loads((programs / "plan.json").read_text())["target"]
    assert {tag.rpartition(":")[2].split("-")[0] for image in images.values() for tag in image["tags"]} == {"9.9.9"}
    sums = f"{hashlib.sha256(b'chart' + bytes([10])).hexdigest()}  diloco-operator-9.9.9.tgz\n"
    assert (tmp_path / "out" / "SHA256SUMS").read_text() == sums
    again = make(tree, programs, "9.9.9", "--output", str(tmp_path / "out"))
    assert again.returncode == 0, again.stderr
    assert "changed " not in again.stdout, "what was released is only built again"


@pytest.mark.slow
def test_images_are_pushed_only_of_a_tree_that_has_the_version(tree: Path, programs: Path) -> None:
    for name, text in {"helm": HELM, "docker": DOCKER}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    refused = make(tree, programs, "9.9.9", "--push")
    assert refused.returncode == 1
    assert "run this without --push, commit, tag the commit v9.9.9, and run it again there" in refused.stderr
    assert not (programs / "plan.json").exists()
    assert make(tree, programs, "9.9.9").returncode == 0
    assert make(tree, programs, "9.9.9", "--push").returncode == 0
    image = json.loads((programs / "plan.json").read_text())["target"]["operator"]
    assert image["attest"] == ["type=provenance,mode=max", "type=sbom"]


@pytest.mark.slow
def test_without_what_is_required_nothing_is_written(tree: Path, programs: Path) -> None:
    done = make(tree, programs, "9.9.9", "--require", "chart,images")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: this machine cannot build what --require names. chart: helm is not on PATH; images: docker is not on PATH"
    )
    assert subprocess.run(["git", "status", "--porcelain"], cwd=tree, capture_output=True, text=True, check=True).stdout == ""


def test_a_part_that_does_not_exist_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        release.main(["9.9.9", "--require", "rpm"])
    assert ended.value.code == 2
    assert "rpm is no part of a release; the parts are wheels, chart, images" in capsys.readouterr().err
