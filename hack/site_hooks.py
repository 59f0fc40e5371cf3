"""What `mkdocs build` does beside its own: links to files of the repository that are no documents lead to the repository.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_TARGET = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
"""The target of a link, whose text may have begun on the line before."""
_FENCE = re.compile(r"^ *(```|~~~)")
_ITEM = re.compile(r"^ *([-*]|\d+\.) ")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the page as mkdocs reads it. GitHub needs no blank line before a list, and mkdocs does."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        fenced ^= bool(_FENCE.match(line))
        if not fenced:
            if _ITEM.match(line) and lines and _is_paragraph(lines[-1]):
                lines.append("")
            line = _TARGET.sub(lambda found: _linked(found, page.file.src_uri, config["repo_url"]), line)
        lines.append(line)
    return "\n".join(lines)


def _is_paragraph(line: str) -> bool:
    return bool(line) and not line.startswith((" ", "-", "*", "#", "|", ">", "<")) and not _ITEM.match(line)


def _linked(found: re.Match[str], source: str, repository: str) -> str:
    target, anchor = found[1], found[2] or ""
    if ":" in target:
        return found[0]
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), target))
    if path.startswith("docs/"):
        return found[0]
    return f"]({repository}/blob/main/{path}{anchor})"
