"""The dashboard's pages as they are at one time, in one file that needs no other. Pure.

The address of a page is a fragment, and the style shows only the page that it names. The file's policy forbids requests and scripts.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element

from diloco_cli.dashboard.page import STYLE, Page
from diloco_cli.html import document
from diloco_cli.job_tables import NOTHING
from diloco_cli.svg import element
from diloco_cli.view_text import duration

BASE: Final = "#"
"""Every path begins with it. In a served dashboard the token has its place."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_ONE_AT_A_TIME = """
article { display: none; } article:target { display: block; }
body:not(:has(article:target)) article:first-of-type { display: block; }
@media print { article { display: block; break-after: page; } nav { display: none; } }
"""


class Placed(NamedTuple):
    """A page of the file."""

    path: str
    """The path below BASE."""
    page: Page
    name: str = ""
    """Its name in the navigation. "" if only links on other pages lead to it."""


def whole(title: str, pages: Sequence[Placed], now: float) -> str:
    """The file as text. It opens with the first page. Times are shown relative to `now` (seconds since the epoch)."""
    links = [element("a", placed.name, href=f"{BASE}{placed.path}") for placed in pages if placed.name]
    articles = [element("article", *_parts(placed.page), id=placed.path) for placed in pages]
    known = {f"{BASE}{placed.path}" for placed in pages}
    for article in articles:
        _make_static(article, known, now)
    head = [element("meta", http_equiv="Content-Security-Policy", content=_POLICY), element("style", STYLE + _ONE_AT_A_TIME)]
    menu = [element("nav", *links, aria_label="Pages")] if len(links) > 1 else []
    return document(title, head, [*menu, element("main", *articles)])


def _parts(page: Page) -> Iterator[Element]:
    for parts in page.sections.values():
        if parts:
            yield element("section", *parts)


def _make_static(article: Element, known: set[str], now: float) -> None:
    """Write out the times that the dashboard's script would count, and turn links to missing pages into text."""
    for node in article.iter():
        if node.tag == "time":
            seconds = now - datetime.fromisoformat(node.attrib["datetime"]).timestamp()
            until = node.attrib.pop("data-kind") == "until"
            node.attrib["title"] = node.text or ""
            if not until:
                node.text = duration(max(0.0, seconds))
            else:
                node.text = duration(-seconds) if seconds < 0 else NOTHING
        elif node.tag == "a" and node.attrib["href"] not in known:
            node.tag = "span"
            del node.attrib["href"]
