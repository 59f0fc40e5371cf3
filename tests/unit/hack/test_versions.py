"""One version, in all files that name it."""

from __future__ import annotations

import pytest
import versions
from versions import IMAGE, IN_FILES, ROOT, found, places, project_version, replaced


def test_each_place_in_all_files_has_the_projects_version() -> None:
    versions = {(file, pattern): found((ROOT / file).read_text(), pattern) for file, pattern in places()}
    assert [where for where, there in versions.items() if set(there) - {project_version()}] == []
    named = [(file, pattern) for file, patterns in IN_FILES.items() for pattern in patterns]
    assert [where for where in named if not versions[where]] == []


def test_another_version_is_written_into_packages_and_names_of_images() -> None:
    text = "image: ghcr.io/x/learner-torch:0.1.0-cpu, r/syncer:0.1.0. Not: r/mine:0.1.0"
    assert replaced(text, IMAGE, "0.2.0rc1") == "image: ghcr.io/x/learner-torch:0.2.0rc1-cpu, r/syncer:0.2.0rc1. Not: r/mine:0.1.0"
    [own, dependency] = IN_FILES["pyproject.toml"]
    project = (ROOT / "pyproject.toml").read_text()
    changed = replaced(replaced(project, own, "0.2.0"), dependency, "0.2.0")
    assert found(changed, own) + found(changed, dependency) == ["0.2.0", "0.2.0"]
    assert changed.count("0.2.0") == project.count("0.2.0") + 2


def test_a_version_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["versions.py", "latest"])
    with pytest.raises(SystemExit, match="usage"):
        versions.main()
