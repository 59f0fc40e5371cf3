"""The site of the documents: every link of it leads somewhere, and nothing but the repository is linked to for code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
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


@pytest.mark.slow
def test_the_site_is_built_and_no_link_of_it_is_dead(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "guide" / "laptop" / "index.html").exists()
    assert (tmp_path / "runbook" / "LearnersLost" / "index.html").exists()
    loaded = {
        address
        for path in tmp_path.rglob("*.html")
        for address in re.findall(r"<(?:script|img|link rel=\"stylesheet\")[^>]* (?:src|href)=\"(https?://[^\"]+)", path.read_text())
    }
    assert loaded == set()
