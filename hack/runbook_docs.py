"""Writes docs/runbook, with a page for each reason that a person has to do something about: `python hack/runbook_docs.py`.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from diloco_cli.runbook import RUNBOOK, Advice
from diloco_operator.api.reasons import ReasonRow, all_reasons
from markdown_text import bullet, paragraph

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "runbook"
INTRODUCTION = """\
Generated from `controller/diloco_cli/runbook.py` and the table of reasons: change them and run `make docs`.

`kubectl get dlj` shows a job's reason, `kubectl diloco status JOB` those of its units and pools, and `kubectl diloco explain JOB` the one
that matters most, with a link to its page here. A page says what its reason means, how to check it, and what to do.
"""
NOTHING_TO_DO = """\
## Reasons that ask nothing

These say how things go, or the same as a reason above that stands beside them. The [API reference](../api.md#conditions) has their
meanings.
"""


def pages() -> Mapping[str, str]:
    """Name of the file -> the page, as Markdown."""
    rows: dict[str, list[ReasonRow]] = {}
    for row in all_reasons():
        rows.setdefault(row.value, []).append(row)
    reason_pages = {f"{reason}.md": _page(reason, rows[reason], advice) for reason, advice in RUNBOOK.items()}
    return {"README.md": _index(rows), **reason_pages}


def _page(reason: str, rows: Sequence[ReasonRow], advice: Advice) -> str:
    parts = [f"# {reason}\n", *_meanings(rows)]
    for title, sentences in (("Check", advice.check), ("Do", advice.act)):
        parts += [f"## {title}\n", "".join(bullet(each) for each in sentences)]
    return "\n".join(parts)


def _meanings(rows: Sequence[ReasonRow]) -> Iterator[str]:
    yield "".join(bullet(f"**{_where(row)}**: {row.meaning}") for row in rows)


def _where(row: ReasonRow) -> str:
    if row.status:
        return f"Condition `{row.subject}` is {row.status}"
    return row.subject


def _index(rows: Mapping[str, Sequence[ReasonRow]]) -> str:
    listed: dict[str, list[str]] = {}
    for reason in sorted(RUNBOOK):
        for subject in {row.subject: None for row in rows[reason]}:
            listed.setdefault(subject, []).append(f"[`{reason}`]({reason}.md)")
    others = ", ".join(f"`{reason}`" for reason in sorted(rows.keys() - RUNBOOK.keys()))
    introduction = map(paragraph, INTRODUCTION.strip().split("\n\n"))
    heading, _, nothing_to_do = NOTHING_TO_DO.partition("\n\n")
    parts = [
        "# Runbook\n",
        *introduction,
        "".join(bullet(f"**{subject}**: {', '.join(links)}") for subject, links in listed.items()),
        f"{heading}\n",
        paragraph(nothing_to_do),
        paragraph(f"{others}."),
    ]
    return "\n".join(parts)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
