"""Pages as one file that needs nothing else: what the dashboard serves, at one time. Pure.

The address of a page is a fragment, and the style shows the page that it names. The policy of the file forbids every request and script.

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
"""What every path begins with, in place of the token of a dashboard that is served."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_ONE_AT_A_TIME = """
article { display: none; } article:target { display: block; }
body:not(:has(article:target)) article:first-of-type { display: block; }
@media print { article { display: block; break-after: page; } nav { display: none; } }
"""


class Placed(NamedTuple):
    """A page of the file."""

    path: str
    """Below BASE."""
    page: Page
    name: str = ""
    """In the navigation; "": links on other pages lead to it."""


def whole(title: str, pages: Sequence[Placed], now: float) -> str:
    """Return the file; the first page is the one that it opens with. `now`: when it was made, from which times are counted."""
    links = [element("a", each.name, href=f"{BASE}{each.path}") for each in pages if each.name]
    articles = [element("article", *_parts(each.page), id=each.path) for each in pages]
    known = {f"{BASE}{each.path}" for each in pages}
    for article in articles:
        _settle(article, known, now)
    head = [element("meta", http_equiv="Content-Security-Policy", content=_POLICY), element("style", STYLE + _ONE_AT_A_TIME)]
    menu = [element("nav", *links, aria_label="Pages")] if len(links) > 1 else []
    return document(title, head, [*menu, element("main", *articles)])


def _parts(page: Page) -> Iterator[Element]:
    for parts in page.sections.values():
        if parts:
            yield element("section", *parts)


def _settle(article: Element, known: set[str], now: float) -> None:
    """Write out what a browser with the dashboard's script would count, and leave no link that leads nowhere."""
    for each in article.iter():
        if each.tag == "time":
            seconds = now - datetime.fromisoformat(each.attrib["datetime"]).timestamp()
            until = each.attrib.pop("data-kind") == "until"
            each.attrib["title"] = each.text or ""
            each.text = duration(max(0.0, seconds)) if not until else duration(-seconds) if seconds < 0 else NOTHING
        elif each.tag == "a" and each.attrib["href"] not in known:
            each.tag = "span"
            del each.attrib["href"]
