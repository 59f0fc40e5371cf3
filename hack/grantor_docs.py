"""Writes the rights that grantors need into docs/install.md, from the adapters' own lists."""

from __future__ import annotations

from pathlib import Path

from diloco_operator.reconcile.grantors.registry import WATCHES
from markdown_text import between, table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "install.md"
BEGIN, END = "<!-- rights for grantors, written by hack/grantor_docs.py -->\n", "<!-- end of rights for grantors -->\n"
ORDER = ("get", "list", "watch", "create", "patch", "delete")


def rows() -> list[list[str]]:
    return [
        [each.resource.plural, ", ".join(sorted(["list", "watch", *each.verbs.split()], key=ORDER.index)), each.purpose] for each in WATCHES
    ]


def written(page: str) -> str:
    return between(page, BEGIN, END, table(["what", "verbs", "why"], rows()))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
