"""A package that only an extra brings is named with its extra."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "missing", "extra"), [("hf", "transformers", "hf"), ("hf", "accelerate", "hf"), ("lightning", "lightning", "lightning")]
)
def test_an_import_without_its_packages_names_the_extra(module: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import diloco.torch.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"ImportError: diloco.torch.{module} wants the packages of an extra: pip install --find-links dist 'diloco[{extra}]'"
    )
