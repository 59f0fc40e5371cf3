from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from diloco_operator.api import conditions
from diloco_operator.api.crd import places

ROOT = Path(__file__).parents[4]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_docs", ROOT / "hack" / "api_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_in_the_repository_is_up_to_date() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == generator().reference(), "run `make docs`"


def test_reference_has_every_field_and_every_reason() -> None:
    text = generator().reference()
    fields = {place.rpartition(".")[2].removesuffix("[]") for place in places() if place.startswith(("spec", "status"))}
    assert [field for field in fields if f"`{field}`" not in text and field != "containers"] == []
    reasons = [value for name, value in vars(conditions).items() if name.startswith(("REASON_", "UNIT_", "POOL_"))]
    assert [reason for reason in reasons if f"`{reason}`" not in text] == []
