from __future__ import annotations

import re
from pathlib import Path

import api_docs
from builders.schema_nodes import schema_nodes
from diloco import contract
from diloco_operator.api.crd import job_schema
from diloco_operator.api.reasons import all_reasons
from markdown_text import WIDTH, bullet, outside_code, table

ROOT = Path(__file__).parents[4]


def test_reference_in_the_repository_is_up_to_date() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == api_docs.reference(), "run `make docs`"


def test_reference_has_every_field_and_every_reason() -> None:
    text = api_docs.reference()
    fields = {
        place.rpartition(".")[2].removesuffix("[]").removesuffix("{}")
        for place, _ in schema_nodes(job_schema())
        if place.startswith(("spec", "status"))
    }
    named = set(re.findall(r"`(?:[\w.\[\]]+\.)?(\w+)`", text))
    assert fields - named == {"containers"}
    assert [reason for reason in all_reasons() if f"`{reason.value}`" not in text or reason.meaning not in text] == []


def test_reference_has_values_in_place_of_names_of_constants() -> None:
    names = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", api_docs.reference()))
    variables = {value for name, value in vars(contract).items() if name.startswith("ENV_")}
    assert names - variables - set(contract.Exit.__members__) == set()


def test_reference_is_wrapped_outside_tables_and_escapes_nothing_in_code() -> None:
    text = api_docs.reference()
    assert [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith("|")] == []
    assert [span for span in re.findall(r"`[^`]*`", text) if "&" in span] == []


def test_text_escapes_only_what_would_begin_a_tag_outside_code() -> None:
    assert outside_code("a <b> `<pool>-<index>`\n if x < y") == "a &lt;b> `<pool>-<index>` if x < y"
    assert bullet("word " * 40).splitlines()[1].startswith("  word")


def test_a_table_is_aligned_and_escapes_pipes() -> None:
    assert table(["a", "b"], [["`x|y`", "one"], ["z", ""]]) == (
        "| a      | b |\n"
        "| ------ | --- |\n"
        "| `x\\|y` | one |\n"
        "| z      | |\n"
    )  # fmt: skip
