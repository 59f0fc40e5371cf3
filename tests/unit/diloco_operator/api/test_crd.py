from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.schema_nodes import schema_nodes
from diloco_local.memory.schema import Structural
from diloco_operator.accelerators import ACCELERATOR_NAMES
from diloco_operator.api.crd import build_crd, crd_yaml, job_schema
from diloco_operator.api.rules import RULES

ROOT = Path(__file__).parents[4]
SCHEMA = job_schema()
NODES = dict(schema_nodes(SCHEMA))


def test_crd_in_the_repository_is_up_to_date() -> None:
    assert (ROOT / "crds" / "diloco.dev_dilocojobs.yaml").read_text() == crd_yaml(), "run `make crds`"


@pytest.mark.slow
def test_yaml_says_what_the_object_says() -> None:
    assert yaml.safe_load(crd_yaml()) == build_crd()


def test_rules_and_patterns_of_the_schema_compile() -> None:
    Structural(SCHEMA)


def test_every_field_is_described() -> None:
    bare = [place for place, node in NODES.items() if "description" not in node and not place.startswith("metadata")]
    assert [place for place in bare if not place.endswith(("{}", "[]"))] == []


def test_fields_to_select_jobs_by_are_scalars_of_the_schema() -> None:
    [version] = build_crd()["spec"]["versions"]
    paths = [each["jsonPath"].removeprefix(".") for each in version["selectableFields"]]
    assert {NODES[path]["type"] for path in paths} <= {"string", "boolean", "integer"}
    assert len(paths) <= 8, "the limit of an API server"


def test_every_rule_stands_somewhere() -> None:
    assert set(RULES) <= set(NODES), "a field that was renamed would lose its rules without an error"
    written = sum(len(node.get("x-kubernetes-validations", [])) for node in NODES.values())
    durations = sum(node.get("maxLength") == 20 for node in NODES.values())
    assert written == sum(map(len, RULES.values())) + durations


def test_every_rule_blames_a_field_that_exists() -> None:
    for place, rules in RULES.items():
        for rule in rules:
            assert f"{place}{rule.field_path}".lstrip(".") in NODES, rule


def test_every_rule_says_what_to_do_and_names_its_field() -> None:
    for place, node in NODES.items():
        for rule in node.get("x-kubernetes-validations", []):
            field = (rule.get("fieldPath") or f".{place}").rpartition(".")[2]
            assert field in rule["message"], rule
            assert "\n" not in rule["message"]


def test_what_rules_iterate_over_or_match_is_bounded() -> None:
    for place, node in NODES.items():
        if node.get("type") == "array" and place.startswith("spec"):
            assert "maxItems" in node, place
        if node.get("type") == "string" and place.startswith("spec") and not place.endswith("{}"):
            assert "maxLength" in node or "enum" in node, place


def test_transition_rules_below_arrays_stand_in_arrays_keyed_by_name() -> None:
    for place, node in NODES.items():
        if any("oldSelf" in rule["rule"] for rule in node.get("x-kubernetes-validations", [])):
            for array in re.findall(r"[^\[]+(?=\[\])", place):
                assert NODES[array]["x-kubernetes-list-type"] == "map"


def test_lists_that_others_may_write_to_are_keyed_and_those_of_the_operator_alone_are_atomic() -> None:
    keys = {place: node["x-kubernetes-list-map-keys"] for place, node in NODES.items() if node.get("x-kubernetes-list-type") == "map"}
    assert keys == {
        "spec.pools": ["name"],
        "status.conditions": ["type"],
    }


def test_status_has_no_defaults() -> None:
    assert [place for place, node in NODES.items() if place.startswith("status") and "default" in node] == []


def test_accelerator_may_be_of_a_catalogue_file_and_those_that_need_none_are_listed() -> None:
    field = NODES["spec.pools[].accelerator"]
    assert all(name in field["description"] for name in ACCELERATOR_NAMES)
    assert all(re.fullmatch(field["pattern"], name) and len(name) <= field["maxLength"] for name in (*ACCELERATOR_NAMES, "acme-npu2"))
    assert "enum" not in field


def test_columns_and_scale_point_at_fields() -> None:
    version = build_crd()["spec"]["versions"][0]
    scale = version["subresources"]["scale"]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]] + [
        scale["specReplicasPath"],
        scale["statusReplicasPath"],
    ]
    for path in paths:
        place = re.sub(r"\[\?\([^)]*\)\]", "[]", path).lstrip(".")
        assert place in NODES or place == "metadata.creationTimestamp", path


def test_narrow_columns_answer_the_first_questions() -> None:
    columns: list[dict[str, Any]] = build_crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    assert narrow == ["State", "Reason", "Learners", "Of", "Step", "Steps", "Loss", "Age"]
    assert "Pools" in [column["name"] for column in columns if column.get("priority")]


def test_names_are_as_the_specification_has_them() -> None:
    names = build_crd()["spec"]["names"]
    assert (names["plural"], names["shortNames"], names["categories"]) == ("dilocojobs", ["dlj"], ["diloco"])


def test_the_caller_owns_what_it_gets() -> None:
    build_crd()["spec"]["versions"].clear()
    assert build_crd()["spec"]["versions"]
