from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from builders.jobs import a_manifest
from diloco_cli.manifests import ManifestError, load_manifests, validate_jobs


def test_objects_come_in_order_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("---\n" + yaml.safe_dump_all([a_manifest("one"), a_manifest("two")]))
    manifests = load_manifests([file])
    assert [(manifest.name, manifest.file, manifest.document) for manifest in manifests] == [("one", str(file), 1), ("two", str(file), 2)]
    assert manifests[0].obj == a_manifest("one")


def test_other_kinds_are_read_on_demand(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host-0"}}
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(node))
    assert [manifest.obj for manifest in load_manifests([file], kinds=["Node"])] == [node]
    with pytest.raises(ManifestError, match="must be DiLoCoJob, not 'Node'"):
        load_manifests([file])


def test_validated_jobs_have_their_defaults(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(a_manifest()))
    (written,) = load_manifests([file])
    (valid,) = validate_jobs([written])
    assert valid.obj["spec"]["training"]["syncInterval"] == 24
    assert "syncInterval" not in written.obj["spec"]["training"]


def test_one_error_holds_every_problem(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(ManifestError) as caught:
        load_manifests([broken, tmp_path / "missing.yaml"])
    assert [Path(problem.file).name for problem in caught.value.problems] == ["broken.yaml", "missing.yaml"]


def test_documents_after_a_broken_one_are_not_guessed_at_but_those_before_it_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump(a_manifest("one")) + "---\nspec: [\n")
    with pytest.raises(ManifestError) as caught:
        load_manifests([file])
    assert [problem.document for problem in caught.value.problems] == [2]
    assert [manifest.name for manifest in caught.value.manifests] == ["one"]
