"""Hooks of `mkdocs build`. README.md becomes the first page, links to files that are no documents lead to the repository, and pages with
diagrams load the library that draws them from the site itself.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

_ROOT = Path(__file__).parents[1]
_DOCUMENTS = "documents.md"
_LOCKED = Path(__file__).parent / "site"
"""The folder with npm's lock file."""
_LIBRARY = "@mermaid-js/tiny"
_DIAGRAMS = "assets/javascripts/mermaid.tiny.js"
"""Path in the site of the library that draws diagrams."""
_TARGET = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
"""The target of a link. The text of the link may have begun on the line before."""
_FENCE = re.compile(r"^ *(```|~~~)")
_ITEM = re.compile(r"^ *([-*]|\d+\.) ")


def on_files(files: Any, *, config: Any) -> Any:
    """Make the repository's README the first page. The list of documents, docs/README.md, moves to a page of its own. Add the library that
    draws diagrams: the theme loads it from another host if the page has not loaded it."""
    source = _installed() / "dist" / posixpath.basename(_DIAGRAMS)
    files.append(File.generated(config, _DIAGRAMS, abs_src_path=str(source)))
    if Path(config["docs_dir"]) == _ROOT / "docs":  # a test builds two pages of its own
        first = files.get_file_from_path("README.md")
        files.append(File.generated(config, _DOCUMENTS, content=first.content_string))
        files.remove(first)
        files.append(File.generated(config, "README.md", content=_TARGET.sub(_from_the_top, (_ROOT / "README.md").read_text())))
    return files


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Load the library in pages with a diagram, before the theme's own script asks for it. Remove the mark of the link to the repository:
    the theme's script would ask GitHub for its stars whenever someone reads a page."""
    output = output.replace(' data-md-component="source"', "")
    if '<pre class="mermaid">' not in output:
        return output
    return output.replace("</head>", f'<script src="{get_relative_url(_DIAGRAMS, page.url)}"></script></head>', 1)


def _installed() -> Path:
    """The folder of the library. npm installs the locked version if it is not there. Raises PluginError."""
    folder = _LOCKED / "node_modules" / _LIBRARY
    locked = json.loads((_LOCKED / "package-lock.json").read_text())["packages"][f"node_modules/{_LIBRARY}"]["version"]
    manifest = folder / "package.json"
    if manifest.is_file() and json.loads(manifest.read_text())["version"] == locked:
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise PluginError(f"{_LIBRARY} draws the diagrams, and npm, which installs it, is missing: apt-get install npm")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=_LOCKED, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PluginError(f"npm could not install {_LIBRARY} in {_LOCKED}: {done.stderr.strip()}")
    return folder


def _from_the_top(found: re.Match[str]) -> str:
    target, anchor = found[1], found[2] or ""
    if ":" in target:
        return found[0]
    inside = target.removeprefix("docs/")
    below = _DOCUMENTS if inside == "README.md" else inside
    return f"]({f'../{target}' if inside == target else below}{anchor})"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page with its links for the site, and with a blank line before each list: mkdocs needs one, GitHub does not."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        if fenced:
            lines.append(line)
            continue
        if _ITEM.match(line) and lines and _is_paragraph(lines[-1]):
            lines.append("")
        lines.append(_TARGET.sub(lambda match: _linked(match, page.file.src_uri, config["repo_url"]), line))
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
