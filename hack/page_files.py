"""The files that a page tells its reader to write. Each is a fenced block behind a mark with its path, `<!-- file: FOLDER/NAME -->`.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import re
from pathlib import Path

_FILE = re.compile(r"^<!-- file: (\S+) -->\n```[a-z]+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def of(page: Path) -> dict[str, str]:
    """Path -> text, in the order of the page."""
    return dict(_FILE.findall(page.read_text()))
