"""Writes the rights that grantors need into docs/install.md, from the adapters' own lists."""

from __future__ import annotations

from pathlib import Path

from diloco_operator.reconcile.grantors.registry import WATCHES
from markdown_text import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "install.md"
BEGIN, END = "<!-- rights for grantors, written by hack/grantor_docs.py -->\n", "<!-- end of rights for grantors -->\n"
ORDER = ("get", "list", "watch", "create", "patch", "delete")


def rows() -> list[list[str]]:
    return [
        [each.resource.plural, ", ".join(sorted(["list", "watch", *each.verbs.split()], key=ORDER.index)), each.purpose] for each in WATCHES
    ]


def written(page: str) -> str:
    """Return the page with the table as it must be."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no place for the table: it needs the lines {BEGIN.strip()} and {END.strip()}")
    return f"{head}{BEGIN}\n{table(['what', 'verbs', 'why'], rows())}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
