"""The site of the documents: every link of it leads somewhere, and nothing but the repository is linked to for code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders.browser import a_browser
from site_hooks import on_page_markdown

ROOT = Path(__file__).parents[2]


class Page:
    """As far as the hook looks at one."""

    def __init__(self, path: str) -> None:
        self.file = self
        self.src_uri = path


def read(markdown: str, page: str = "guide/laptop.md") -> str:
    return on_page_markdown(markdown, page=Page(page), config={"repo_url": "https://code"}, files=())


def test_a_link_that_leaves_the_documents_leads_to_the_repository() -> None:
    assert read("see [x](../../examples/a.yaml)") == "see [x](https://code/blob/main/examples/a.yaml)"
    assert read("[x](../hack/images/README.md#a)", "install.md") == "[x](https://code/blob/main/hack/images/README.md#a)"
    assert read("[x](../api.md#a) [y](https://z/../q) [z](#here)") == "[x](../api.md#a) [y](https://z/../q) [z](#here)"


def test_a_list_after_a_paragraph_is_a_list_and_code_stays_as_it_is() -> None:
    assert read("These:\n- one\n- two") == "These:\n\n- one\n- two"
    assert read("```text\nThese:\n- [x](../../y)\n```") == "```text\nThese:\n- [x](../../y)\n```"


def build(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "mkdocs"), "build", "--site-dir", str(site), *options]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_dead_link_stops_the_build(tmp_path: Path) -> None:
    """By the very settings of the site, on two pages."""
    pages, settings = tmp_path / "docs", tmp_path / "mkdocs.yml"
    pages.mkdir()
    (pages / "README.md").write_text("# First\n\n[second](second.md#there) [dead](nowhere.md) [no heading](second.md#nope)\n")
    (pages / "second.md").write_text("# There\n")
    written = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    settings.write_text(written.replace("docs_dir: docs", f"docs_dir: {pages}").replace("hack/", f"{ROOT}/hack/"))
    done = build(tmp_path / "site", "--config-file", str(settings))
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
    assert "#nope" in done.stderr
    assert "#there" not in done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_is_built_and_no_link_of_it_is_dead(site: Path) -> None:
    assert (site / "guide" / "laptop" / "index.html").exists()
    first, documents = (site / "index.html").read_text(), (site / "documents" / "index.html").read_text()
    assert "blob/main/examples/quickstart.yaml" in first, "the first page is that of the repository"
    assert "read it to" in documents
    assert (site / "runbook" / "LearnersLost" / "index.html").exists()


LOADING = re.compile(r"<(?!a\b|form\b)\w+\b[^>]*?\s(?:src|href|srcset|data|poster)=[\"']?((?:https?:)?//[^\"'\s>]+)", re.IGNORECASE)
"""What an element other than a link to a page names of another host."""
STYLED = re.compile(r"(?:@import\s+|url\()\s*(?:url\()?[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_takes_no_script_style_font_or_picture_from_elsewhere(site: Path) -> None:
    pages, styles = (sorted(site.rglob(f"*.{ending}")) for ending in ("html", "css"))
    assert len(pages) > 100
    assert styles
    taken = {address for path in pages for address in LOADING.findall(path.read_text())}
    taken |= {address for path in (*pages, *styles) for address in STYLED.findall(path.read_text())}
    assert taken == set()


def test_what_is_taken_from_elsewhere_is_found() -> None:
    page = """<a href="https://a">x</a> <script async src="https://b/b.js"></script> <link rel="preload" href='//c/c.css'>"""
    assert LOADING.findall(page) == ["https://b/b.js", "//c/c.css"]
    assert STYLED.findall("@import 'https://d'; a { src: url(//e/f.woff2) url(own.png) }") == ["https://d", "//e/f.woff2"]


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_states_are_drawn_by_the_sites_own_files(site: Path) -> None:
    """In a browser that reaches nothing but the folder of the site: the theme draws the diagram into a shadow root, which no program reads,
    so its size tells."""
    asked: list[str] = []
    address = "http://site.invalid/"
    with a_browser() as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.route("**/*", lambda route: route.abort())
        page.route(f"{address}**", lambda route: route.fulfill(path=file_of(site, route.request.url)))
        page.goto(f"{address}states/")
        page.wait_for_function("document.querySelector('div.mermaid')?.getBoundingClientRect().height > 300", timeout=180_000)
    assert f"{address}assets/javascripts/mermaid.tiny.js" in asked
    assert [url for url in asked if not url.startswith(address)] == []


def file_of(site: Path, url: str) -> Path:
    """The file of the site that a server would send for the address."""
    path = site / url.partition("://")[2].partition("/")[2].partition("?")[0].partition("#")[0]
    return path / "index.html" if path.is_dir() else path
